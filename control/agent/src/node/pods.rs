//! Pods that are attached and detached.
//!
//! Attaching has three steps. The control loop reserves an address; a thread that may block makes the device
//! ([`DeviceWork`](crate::device_work::DeviceWork)), or the caller makes it and hands its queues over; the control loop
//! takes the device as a port, and settles: tables name the pod. The caller gets its reply after that, so the pod's policy
//! is in force; if the tables were refuted (`--verify-tables`), nothing passes the pod. Detaching goes the other way round.
//! Work for many pods runs at once; requests for one pod run one after the other, in order of arrival. What fails leaves
//! nothing: neither a device nor an address.

use std::net::IpAddr;
use std::panic::resume_unwind;
use std::time::{Duration, Instant};
use std::{io, mem};

use manx_dataplane::port::vxlan;
use manx_dataplane::tables::PortId;
use manx_policy_compiler::model::ObjectName;
use nix::errno::Errno;

use super::Agent;
use super::attachments::{
    AttachRequest, AttachedPod, Caller, Departure, Done, EarlyAttachment, Made, Maker, PodRequest,
    Reserved, object_name, pod_name,
};
use crate::device_work::Completed;
use crate::error::Error;
use crate::settings::Network;
use manx_api::{self as api, Attach, Attached, AttachmentId, ErrorKind, Failure};
use manx_devices::pod_device::PodDevice;
use manx_ipam::host_local;
use manx_objects::object::Kind;

/// How long an attachment waits for its pod's object.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same while the API server tells nothing of pods. kubelet makes the object of a static pod at the start of each of
/// its own tries, and makes none while this one waits.
const PATIENCE_BEHIND: Duration = Duration::from_secs(2);

impl Agent {
    /// Does what is asked for, now or after what is under way for the same pod.
    pub(super) fn submit(&mut self, request: PodRequest) {
        let name = request.pod();
        match self.attachments.queue(&name, request) {
            Ok(()) => {}
            Err(PodRequest::Attach(request, caller)) => self.begin_attach(name, *request, caller),
            Err(PodRequest::Detach(detach, caller)) => {
                self.give_up_early(&name, detach.id.as_ref());
                let reply = Some((caller, Ok(api::Reply::Detached)));
                // A pod that started again has another sandbox under the same name. The end of the former one comes
                // late.
                let is_other = detach.id.is_some()
                    && detach.id.as_ref() != self.attachments.leases().id(&detach.pod);
                let release = (!is_other).then_some(detach.pod);
                let departure = Departure { release, reply };
                if is_other {
                    return self.depart(departure);
                }
                self.begin_detach(&name, departure);
            }
        }
    }

    /// The first step: addresses are reserved, those that the request names or the next in turn, and a thread makes the
    /// device. A repeated request for what is there gets its reply at once; another device of the pod goes first.
    fn begin_attach(&mut self, name: ObjectName, request: AttachRequest, caller: Caller) {
        let AttachRequest { attach, netns, maker } = &request;
        let refused = self.refuse_second_interface(attach);
        if let Some(message) = refused.or_else(|| self.refuse_maker(&request)) {
            let failure = Failure { kind: ErrorKind::Invalid, message };
            return self.attachments.reply(caller, Err(failure));
        }
        if let Some(AttachedPod { device, local }) = self.attachments.find(&name) {
            if device.is(&attach.netns, *netns, &attach.interface) {
                let found = attached(device, local.addresses.clone());
                let others = self.view.others(&self.inputs, &name);
                let reserved = self.attachments.reserve(attach, &others);
                let refused = |error: host_local::Error| failure(error.kind(), &error);
                return self.attachments.reply(caller, reserved.map(|_| found).map_err(refused));
            }
            let departure = Departure { release: Some(attach.pod.clone()), reply: None };
            self.begin_detach(&name, departure);
            return self.submit(PodRequest::Attach(Box::new(request), caller));
        }
        if self.inputs.may_come(&name) {
            let is_behind = self.inputs.source.is_behind(Kind::Pod);
            let until = Instant::now() + if is_behind { PATIENCE_BEHIND } else { PATIENCE };
            return self.attachments.early.push(EarlyAttachment { name, request, caller, until });
        }
        if let Some(holder) = self.view.holder(&self.inputs, &name, &attach.addresses) {
            return self.attachments.reply(caller, Err(failure(ErrorKind::Invalid, &holder)));
        }
        let others = self.view.others(&self.inputs, &name);
        let addresses = match self.attachments.reserve(attach, &others) {
            Ok(addresses) => addresses,
            Err(error) => {
                return self.attachments.reply(caller, Err(failure(error.kind(), &error)));
            }
        };
        self.inputs.assign(&name, Some(addresses.clone()));
        let mtu = match &attach.made {
            Some(made) => made.mtu,
            None => self.attachments.pod_mtu(&self.view.topology),
        };
        // Where there is VXLAN, a pod's super-packets have as many segments as its socket sends at once.
        let segments = self.view.has_vxlan().then(|| vxlan::segments_at_once(mtu));
        let is_callers = *maker == Maker::Caller
            && (attach.made.is_some() || self.attachments.device(attach).is_tuntap());
        let netns = netns.filter(|_| is_callers);
        let reserved = Reserved { attach: request.attach, caller, addresses, mtu };
        match netns {
            Some(netns) => self.attachments.start_reserved(name, reserved, segments, netns),
            None => self.attachments.start_attach(name, reserved, segments),
        }
    }

    /// All pods of a node are connected by Manx, or all by another plugin.
    fn refuse_maker(&self, request: &AttachRequest) -> Option<String> {
        let AttachRequest { attach, netns, maker } = request;
        let is_handed_over = *maker == Maker::Caller && netns.is_some();
        let (found, expected) = match (&attach.made, self.attachments.network()) {
            (Some(_), Network::OtherPlugin) if !is_handed_over || attach.addresses.is_empty() => (
                "another plugin's link",
                "its addresses, the pod's network namespace, and a caller that hands the link over",
            ),
            (Some(_), Network::OtherPlugin) | (None, Network::Manx) => return None,
            (Some(_), Network::Manx) => {
                ("another plugin's link", "no `policyOnly`, or an agent with --policy-only")
            }
            (None, Network::OtherPlugin) => (
                "no link",
                "the link that another plugin has made: `policyOnly` behind that plugin",
            ),
        };
        Some(format!(
            "pod {}: the network configuration of manx-cni brings {found}; expected {expected}",
            attach.pod
        ))
    }

    /// A sandbox has one interface: a second one's end would take the first along.
    fn refuse_second_interface(&self, attach: &Attach) -> Option<String> {
        let Attach { pod, interface, sandbox, .. } = attach;
        let leases = self.attachments.leases();
        let has = leases.id(pod)?;
        let is_second = sandbox.as_ref() == Some(&has.sandbox) && *interface != has.interface;
        is_second.then(|| {
            format!(
                "pod {pod} is attached by {has}, and gets no second interface {interface}: Manx gives a pod one interface; detach that \
                 one first"
            )
        })
    }

    /// Gives up attachments that still wait for the pod's object: their end has overtaken them.
    fn give_up_early(&mut self, name: &ObjectName, id: Option<&AttachmentId>) {
        let is_gone = |early: &EarlyAttachment| {
            early.name == *name && (id.is_none() || early.request.attach.id().as_ref() == id)
        };
        let gone: Vec<_> = self.attachments.early.extract_if(.., |early| is_gone(early)).collect();
        for early in gone {
            let message = format!("Pod {name} was detached before its object was known");
            let failure = Failure { kind: ErrorKind::Unknown, message };
            self.attachments.reply(early.caller, Err(failure));
        }
    }

    /// Attachments whose pods are known now go on in the next turn; those that have waited for too long are given up.
    pub(super) fn look_for_early(&mut self, now: Instant) {
        for EarlyAttachment { name, request, caller, until } in
            mem::take(&mut self.attachments.early)
        {
            if caller.is_closed() {
                continue;
            }
            if !self.inputs.may_come(&name) {
                self.attachments.ready.push(PodRequest::Attach(Box::new(request), caller));
            } else if now < until {
                self.attachments.early.push(EarlyAttachment { name, request, caller, until });
            } else {
                let why = match self.inputs.source.stale() {
                    Some(stale) => stale.reason,
                    None => {
                        "found no such object at the API server, expected the pod that is attached"
                            .to_owned()
                    }
                };
                let message = format!("Pod {name} is not known yet: {why}");
                let failure = Failure { kind: ErrorKind::Unknown, message };
                self.attachments.reply(caller, Err(failure));
            }
        }
    }

    /// First nothing leads to the pod, then its port goes, then its device, on a thread; the address may be another
    /// pod's only after that. [`Agent::end_detached`] goes on when tables no longer name it.
    fn begin_detach(&mut self, name: &ObjectName, departure: Departure) {
        match self.attachments.take_out(name, departure) {
            Ok(()) => self.inputs.note_pods(),
            Err(departure) => self.depart(departure),
        }
    }

    /// Takes the ports of pods that are to be detached from the workers, and has their devices removed. The last tables do
    /// not name these pods, if they could be made.
    pub(super) fn end_detached(&mut self) {
        for (name, AttachedPod { device, local }, departure) in
            mem::take(&mut self.attachments.gone)
        {
            let ports = [Some(local.port), local.host.map(|it| it.port)].into_iter().flatten();
            let version = self.calculated.tables.version;
            let closed = ports.map(|port| self.dataplane.ports.detach(port, version)).collect();
            if departure.release.is_some() {
                tracing::info!(pod = %name, "detached");
            }
            self.attachments.start_removal(&name, device, closed, departure);
        }
    }

    /// The workers have lost a port. A pod's namespace that goes takes the device along: that is how most pods end. The
    /// pod keeps its addresses until it is detached, and may be attached anew; but another plugin's pod may also have
    /// been given back. Losing a port of the node itself ends the agent.
    pub(super) fn handle_lost_port(&mut self, port: PortId, error: io::Error) {
        if self.attachments.is_of_gone(port) {
            return;
        }
        let Some(name) = self.dataplane.ports.name(port) else { return };
        let Some(pod) = self.attachments.pod_at(port) else {
            self.failed = Some(Error::NodePortLost { port: name.to_owned(), source: error });
            return;
        };
        if is_gone(&error) {
            tracing::info!(port = name, %error, "the pod's device is gone; nothing passes until it is attached anew");
        } else {
            tracing::warn!(port = name, %error, "the pod's device failed; nothing passes until it is attached anew");
        }
        let release = match self.attachments.network() {
            Network::Manx => None,
            Network::OtherPlugin => Some(pod_name(&pod)),
        };
        self.begin_detach(&pod, Departure { release, reply: None });
    }

    /// Device work has ended: pods are attached, and get their replies when tables name them, or are gone.
    pub(crate) fn commit(&mut self, completed: impl IntoIterator<Item = Completed<Done>>) {
        for Completed { pod, result } in completed {
            // An agent that does not know what has become of a device ends.
            let done = result.unwrap_or_else(|panic| resume_unwind(panic));
            self.attachments.end_work(&pod);
            match done {
                Done::Made(reserved, made) => self.adopt(pod, *reserved, made),
                Done::Removed(departure) => self.depart(departure),
            }
        }
    }

    /// Takes a device that was made as a port, and its pod as an endpoint. Where there is no port, the device goes
    /// first, and the caller is told then. A device that no caller waits for any more goes, too.
    fn adopt(&mut self, name: ObjectName, reserved: Reserved, made: Made) {
        let Reserved { attach: Attach { pod, .. }, caller, addresses, .. } = reserved;
        let (device, open) = match made {
            Ok(made) => made,
            Err(error) => {
                let reply = Some((caller, Err(failure(error.kind(), &error))));
                return self.depart(Departure { release: Some(pod), reply });
            }
        };
        if caller.is_closed() {
            tracing::info!(%pod, "the caller that attached it has gone; its device goes, too");
            let departure = Departure { release: Some(pod), reply: None };
            return self.attachments.start_removal(&name, device, Vec::new(), departure);
        }
        let all = &mut self.dataplane.ports;
        let ports = all.reserve_pod(&open).and_then(|ports| {
            all.serve_pod(ports, &pod.to_string(), open)?;
            Ok(ports)
        });
        let ports = match ports {
            Ok(ports) => ports,
            Err(error) => {
                let reply = Some((caller, Err(failure(ErrorKind::Internal, &error))));
                let departure = Departure { release: Some(pod), reply };
                return self.attachments.start_removal(&name, device, Vec::new(), departure);
            }
        };
        tracing::info!(%pod, ?addresses, device = ?device.device(), "attached");
        let response = Ok(attached(&device, addresses.clone()));
        self.attachments.insert(name, device, ports, addresses);
        self.inputs.note_pods();
        self.attachments.reply(caller, response);
    }

    /// The device is gone, or there was none. A caller whose pod's addresses stay taken is told, and may try again.
    fn depart(&mut self, Departure { release, reply: to }: Departure) {
        let released = release.map_or(Ok(()), |pod| {
            self.inputs.assign(&object_name(&pod), None);
            self.attachments.release(&pod)
        });
        if let Some((caller, response)) = to {
            let released = released.map_err(|error| failure(error.kind(), &error));
            let response = response.and_then(|response| released.map(|()| response));
            self.attachments.reply(caller, response);
        }
    }
}

/// Whether a device says so that is there no longer: TUN and TAP, and packet sockets.
fn is_gone(error: &io::Error) -> bool {
    let gone = [Errno::EBADFD, Errno::ENETDOWN, Errno::ENODEV, Errno::ENXIO];
    error.raw_os_error().is_some_and(|code| gone.contains(&Errno::from_raw(code)))
}

fn attached(device: &PodDevice, addresses: Vec<IpAddr>) -> api::Reply {
    let (mtu, mac) = (device.mtu(), device.mac());
    api::Reply::Attached(Attached { addresses, device: device.device(), mtu, mac })
}

fn failure(kind: ErrorKind, error: &impl ToString) -> Failure {
    Failure { kind, message: error.to_string() }
}
