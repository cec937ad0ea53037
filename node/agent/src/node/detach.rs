//! The detachment of pods, and the loss of their devices.

use std::io;

use manx_dataplane::tables::PortId;
use manx_policy_compiler::model::ObjectName;
use nix::errno::Errno;

use super::Agent;
use super::pod_request::{AttachRequest, Caller, PendingReply, failure};
use super::pod_state::{AfterRemoval, Apart, AttachedPod, Releasing, ToRelease};
use crate::addresses;
use crate::error::Error;
use crate::settings::Network;
use manx_api::{self as api, AttachmentId, Detach, ErrorKind, Failure};

impl Agent {
    /// Detaches a pod, if it has the named attachment.
    pub(super) fn detach(&mut self, name: &ObjectName, detach: &Detach, caller: Caller) {
        self.expire_expected(name, detach.id.as_ref());
        let reply = Some((caller, Ok(api::Reply::Detached)));
        // A pod that started again has another sandbox under the same name, and the DEL of the former sandbox may come
        // late.
        let is_other = detach.id.is_some() && detach.id != self.attachments.id(name);
        if is_other {
            // A crashed agent may have taken addresses for this attachment before it had a lease for them.
            return match detach.id.clone() {
                Some(id) if self.attachments.pools().is_some() => {
                    self.attachments.start_releasing_other(id, reply);
                }
                _ => self.answer(reply),
            };
        }
        self.begin_detach(name, AfterRemoval { to_release: Some(ToRelease::Lease), reply });
    }

    /// Ends attachments that still wait for the pod's object, although their DEL has already arrived.
    fn expire_expected(&mut self, name: &ObjectName, id: Option<&AttachmentId>) {
        let is_gone = |request: &AttachRequest| id.is_none() || request.attach.id().as_ref() == id;
        for caller in self.attachments.pods.expire(name, |request, _| is_gone(request)) {
            let message = format!("Pod {name} was detached before its object was known");
            let failure = Failure { kind: ErrorKind::Unknown, message };
            self.attachments.reply(caller, Err(failure));
        }
    }

    /// Begins a detachment. First the tables are changed so that they do not contain the pod, then its port is removed,
    /// then its device, on a thread. Another pod may get the address only after that. [`Agent::end_leaving`] continues when
    /// no tables contain the pod.
    pub(super) fn begin_detach(&mut self, name: &ObjectName, after: AfterRemoval) {
        match self.attachments.pods.begin_leaving(name, after) {
            None => self.inputs.note_pods(),
            Some(AfterRemoval { to_release: Some(to_release), reply }) => {
                self.release_addresses(name, to_release, reply);
            }
            Some(AfterRemoval { to_release: None, reply }) => self.answer(reply),
        }
    }

    /// Removes the ports of leaving pods from the workers, and then their devices. The last tables do not contain these
    /// pods, unless no tables could be made.
    pub(super) fn end_leaving(&mut self) {
        for (name, AttachedPod { device, local }, after) in self.attachments.pods.end_leaving() {
            let ports = [Some(local.port), local.host.map(|it| it.port)].into_iter().flatten();
            let version = self.calculated.tables.version;
            let closed = ports.map(|port| self.dataplane.ports.detach(port, version)).collect();
            if after.to_release.is_some() {
                tracing::info!(pod = %name, "detached");
            }
            self.attachments.start_removing(&name, device, closed, after);
        }
    }

    /// Continues after a pod's device was removed.
    pub(super) fn end_removing(&mut self, name: &ObjectName) -> Option<()> {
        let AfterRemoval { to_release, reply } = self.attachments.pods.end_removing(name)?;
        if let Some(to_release) = to_release {
            self.release_addresses(name, to_release, reply);
        } else {
            self.attachments.pods.set_apart(name, Apart::Lost);
            self.answer(reply);
        }
        Some(())
    }

    /// Releases the addresses of a pod that has nothing else on this node. The pod's object loses them first.
    pub(super) fn release_addresses(
        &mut self,
        name: &ObjectName,
        to_release: ToRelease,
        reply: Option<PendingReply>,
    ) {
        self.inputs.assign(name, None);
        self.attachments.start_releasing(name, to_release, reply);
    }

    /// Continues after a release. If the release failed, the caller gets the error and may try again.
    pub(super) fn end_releasing(
        &mut self,
        name: &ObjectName,
        released: Result<(), addresses::Error>,
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

    fn answer(&mut self, reply: Option<PendingReply>) {
        if let Some((caller, response)) = reply {
            self.attachments.reply(caller, response);
        }
    }

    /// Handles a port that the workers have lost. Most pods end in this way: the device ends with the pod's namespace. The
    /// pod keeps its addresses until it is detached, and may be attached again. A pod of another plugin keeps no addresses,
    /// because its link may have been given back to that plugin. The loss of a port of the node itself ends the agent.
    pub(super) fn handle_lost_port(&mut self, port: PortId, error: io::Error) {
        if self.attachments.pods.is_leaving_port(port) {
            return;
        }
        let Some(name) = self.dataplane.ports.name(port) else { return };
        let Some(pod) = self.attachments.pods.find_by_port(port) else {
            self.failed = Some(Error::NodePortLost { port: name.to_owned(), source: error });
            return;
        };
        if is_gone(&error) {
            tracing::info!(port = name, %error, "the pod's device is gone; nothing passes until it is attached anew");
        } else {
            tracing::warn!(port = name, %error, "the pod's device failed; nothing passes until it is attached anew");
        }
        let to_release = match self.attachments.network() {
            Network::Manx => None,
            Network::OtherPlugin => Some(ToRelease::Lease),
        };
        self.begin_detach(&pod, AfterRemoval { to_release, reply: None });
    }
}

/// Whether this is the error of a device that is gone (TUN, TAP, or a packet socket's).
fn is_gone(error: &io::Error) -> bool {
    let gone = [Errno::EBADFD, Errno::ENETDOWN, Errno::ENODEV, Errno::ENXIO];
    error.raw_os_error().is_some_and(|code| gone.contains(&Errno::from_raw(code)))
}
