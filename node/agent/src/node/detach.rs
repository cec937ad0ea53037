//! Pods that are detached, and pods whose devices are gone.

use std::io;

use manx_dataplane::tables::PortId;
use manx_policy_compiler::model::ObjectName;
use nix::errno::Errno;

use super::Agent;
use super::pod_request::{Answered, AttachRequest, Caller, failure};
use super::pod_state::{Apart, AttachedPod, Departure, GivesBack, Releasing};
use crate::error::Error;
use crate::settings::Network;
use manx_api::{self as api, AttachmentId, Detach, ErrorKind, Failure};
use manx_ipam::host_local;

impl Agent {
    /// Detaches a pod, if it has the attachment that is named.
    pub(super) fn detach(&mut self, name: &ObjectName, detach: &Detach, caller: Caller) {
        self.give_up_expected(name, detach.id.as_ref());
        let reply = Some((caller, Ok(api::Reply::Detached)));
        // A pod that started again has another sandbox under the same name. The end of the former one comes late.
        let is_other = detach.id.is_some() && detach.id != self.attachments.id(name);
        if is_other {
            return self.answer(reply);
        }
        self.begin_detach(name, Departure { gives_back: Some(GivesBack::Lease), reply });
    }

    /// Gives up attachments that still wait for the pod's object: their end has overtaken them.
    fn give_up_expected(&mut self, name: &ObjectName, id: Option<&AttachmentId>) {
        let is_gone = |request: &AttachRequest| id.is_none() || request.attach.id().as_ref() == id;
        for caller in self.attachments.pods.give_up(name, |request, _| is_gone(request)) {
            let message = format!("Pod {name} was detached before its object was known");
            let failure = Failure { kind: ErrorKind::Unknown, message };
            self.attachments.reply(caller, Err(failure));
        }
    }

    /// First nothing leads to the pod, then its port goes, then its device, on a thread; the address may be another
    /// pod's only after that. [`Agent::end_leaving`] goes on when tables no longer name it.
    pub(super) fn begin_detach(&mut self, name: &ObjectName, departure: Departure) {
        match self.attachments.pods.begin_leaving(name, departure) {
            None => self.inputs.note_pods(),
            Some(Departure { gives_back: Some(gives_back), reply }) => {
                self.give_back(name, gives_back, reply);
            }
            Some(Departure { gives_back: None, reply }) => self.answer(reply),
        }
    }

    /// Takes the ports of pods that are to be detached from the workers, and has their devices removed. The last tables do
    /// not name these pods, if they could be made.
    pub(super) fn end_leaving(&mut self) {
        for (name, AttachedPod { device, local }, departure) in self.attachments.pods.end_leaving()
        {
            let ports = [Some(local.port), local.host.map(|it| it.port)].into_iter().flatten();
            let version = self.calculated.tables.version;
            let closed = ports.map(|port| self.dataplane.ports.detach(port, version)).collect();
            if departure.gives_back.is_some() {
                tracing::info!(pod = %name, "detached");
            }
            self.attachments.start_removing(&name, device, closed, departure);
        }
    }

    /// The device is gone.
    pub(super) fn end_removing(&mut self, name: &ObjectName) -> Option<()> {
        let Departure { gives_back, reply } = self.attachments.pods.end_removing(name)?;
        if let Some(gives_back) = gives_back {
            self.give_back(name, gives_back, reply);
        } else {
            self.attachments.pods.set_apart(name, Apart::Lost);
            self.answer(reply);
        }
        Some(())
    }

    /// Nothing of the pod is here but its addresses: its object loses them, and then they are released.
    pub(super) fn give_back(
        &mut self,
        name: &ObjectName,
        gives_back: GivesBack,
        reply: Option<Answered>,
    ) {
        self.inputs.assign(name, None);
        self.attachments.start_releasing(name, gives_back, reply);
    }

    /// A caller whose pod's addresses stay taken is told, and may try again.
    pub(super) fn end_releasing(
        &mut self,
        name: &ObjectName,
        released: Result<(), host_local::Error>,
    ) -> Option<()> {
        let failed = released.err();
        if let Some(error) = &failed {
            tracing::error!(pod = %name, %error, "the pod's addresses could not be released and stay taken");
        }
        let reason = failed.as_ref().map(ToString::to_string);
        let Releasing { reply } = self.attachments.pods.end_releasing(name, reason)?;
        self.answer(reply.map(|(caller, response)| match (response, failed) {
            (Ok(_), Some(error)) => (caller, Err(failure(error.kind(), &error))),
            (response, _) => (caller, response),
        }));
        Some(())
    }

    fn answer(&mut self, reply: Option<Answered>) {
        if let Some((caller, response)) = reply {
            self.attachments.reply(caller, response);
        }
    }

    /// The workers have lost a port. A pod's namespace that goes takes the device along: that is how most pods end. The
    /// pod keeps its addresses until it is detached, and may be attached anew; but another plugin's pod may also have
    /// been given back. Losing a port of the node itself ends the agent.
    pub(super) fn handle_lost_port(&mut self, port: PortId, error: io::Error) {
        if self.attachments.pods.is_of_leaving(port) {
            return;
        }
        let Some(name) = self.dataplane.ports.name(port) else { return };
        let Some(pod) = self.attachments.pods.pod_at(port) else {
            self.failed = Some(Error::NodePortLost { port: name.to_owned(), source: error });
            return;
        };
        if is_gone(&error) {
            tracing::info!(port = name, %error, "the pod's device is gone; nothing passes until it is attached anew");
        } else {
            tracing::warn!(port = name, %error, "the pod's device failed; nothing passes until it is attached anew");
        }
        let gives_back = match self.attachments.network() {
            Network::Manx => None,
            Network::OtherPlugin => Some(GivesBack::Lease),
        };
        self.begin_detach(&pod, Departure { gives_back, reply: None });
    }
}

/// Whether a device says so that is there no longer: TUN and TAP, and packet sockets.
fn is_gone(error: &io::Error) -> bool {
    let gone = [Errno::EBADFD, Errno::ENETDOWN, Errno::ENODEV, Errno::ENXIO];
    error.raw_os_error().is_some_and(|code| gone.contains(&Errno::from_raw(code)))
}
