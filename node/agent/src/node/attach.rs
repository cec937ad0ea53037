//! The attachment of pods.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use manx_policy_compiler::model::ObjectName;

use super::Agent;
use super::attachments::DeviceResult;
use super::attachments::steps::DeviceLimits;
use super::pod_request::{AttachRequest, Caller, Maker, PodRequest, failure};
use super::pod_state::{AfterRemoval, AttachedPod, Making, Renewing, Reserving, ToRelease};
use crate::addresses::{self, Wanted};
use crate::pool_addresses::Known;
use crate::settings::Network;
use manx_api::{self as api, Attach, Attached, ErrorKind, Failure};
use manx_devices::pod_device::PodDevice;
use manx_ipam::host_local::{Request, Reservation};
use manx_objects::object::Kind;

/// The time that an attachment waits for its pod's object.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same time while the API server reports no changes of pods. It is shorter because kubelet makes a static pod's object
/// at the start of each attempt, and does not make it while an attempt waits.
const PATIENCE_BEHIND: Duration = Duration::from_secs(2);

impl Agent {
    /// The first step: addresses are reserved, either those that the request names or the next ones in the allocator's
    /// order. A repeated request for the same device only changes the device's attachment id to the request's. Another
    /// device of the pod is removed first.
    pub(super) fn begin_attach(
        &mut self,
        name: &ObjectName,
        request: AttachRequest,
        caller: Caller,
    ) {
        let AttachRequest { attach, netns, .. } = &request;
        let refused = self.refuse_second_interface(attach);
        if let Some(message) = refused.or_else(|| self.refuse_maker(&request)) {
            let failure = Failure { kind: ErrorKind::Invalid, message };
            return self.attachments.reply(caller, Err(failure));
        }
        if let Some(AttachedPod { device, local }) = self.attachments.pods.find(name) {
            // The pools identify a pod's addresses by its attachment, so another attachment gets other addresses.
            let is_known = self.attachments.pools().is_none()
                || self.attachments.leases().id(&attach.pod) == attach.id().as_ref();
            if is_known && device.matches(&attach.netns, *netns, &attach.interface) {
                let asks = (caller, attached(device, local.addresses.clone()));
                let wanted = self.wanted_addresses(name, &request.attach);
                return self.attachments.start_renewing(name, request, asks, wanted);
            }
            let after = AfterRemoval { to_release: Some(ToRelease::Lease), reply: None };
            self.begin_detach(name, after);
            return self.submit(PodRequest::Attach(Box::new(request), caller));
        }
        if self.inputs.is_object_pending(name) {
            let is_behind = self.inputs.source.is_behind(Kind::Pod);
            let until = Instant::now() + if is_behind { PATIENCE_BEHIND } else { PATIENCE };
            let request = AttachRequest { until: request.until.or(Some(until)), ..request };
            return self.attachments.pods.expect(name, request, caller);
        }
        if let Some(taken) = self.view.find_owner(&self.inputs, name, &attach.addresses) {
            return self.attachments.reply(caller, Err(failure(ErrorKind::Invalid, &taken)));
        }
        let wanted = self.wanted_addresses(name, &request.attach);
        self.attachments.start_reserving(name, request, caller, wanted);
    }

    /// The requested addresses, and the cluster's data that the allocator needs.
    fn wanted_addresses(&self, name: &ObjectName, attach: &Attach) -> Wanted {
        let Attach { pod, addresses, .. } = attach;
        let (taken, known) = match self.attachments.pools() {
            Some(_) => (BTreeMap::new(), self.view.known_to_pools(&self.inputs)),
            None => (self.view.taken_addresses(&self.inputs, name), Known::default()),
        };
        let (pod, addresses) = (pod.clone(), addresses.clone());
        Wanted { request: Request { pod, addresses, id: attach.id(), taken }, known }
    }

    /// The reason to refuse a request, if another plugin made the pod's link although Manx connects the pods of this node,
    /// or the reverse.
    fn refuse_maker(&self, request: &AttachRequest) -> Option<String> {
        let AttachRequest { attach, netns, maker, .. } = request;
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

    /// The reason to refuse a second interface of a sandbox: its detachment would detach the first, too.
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

    /// Checks the attachments that wait for their pods' objects. If the object is known now, they continue in the next
    /// turn. If they have waited too long, they fail.
    pub(super) fn check_expected(&mut self, now: Instant) {
        for name in self.attachments.pods.expected() {
            self.attachments.pods.expire(&name, |_, caller| caller.is_closed());
            if !self.inputs.is_object_pending(&name) {
                self.attachments.pods.arrive(&name);
                continue;
            }
            let is_late = |request: &AttachRequest| request.until.is_some_and(|it| it <= now);
            for caller in self.attachments.pods.expire(&name, |request, _| is_late(request)) {
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

    /// The second step: the pod's object gets the addresses, and a thread or the caller makes the device.
    pub(super) fn end_reserving(
        &mut self,
        name: &ObjectName,
        reserved: Result<Reservation, addresses::Error>,
    ) -> Option<()> {
        let Reserving { request, caller, .. } = self.attachments.pods.end_reserving(name)?;
        match reserved {
            Err(error) => {
                self.attachments.reply(caller, Err(failure(error.kind(), &error)));
            }
            Ok(reservation) if caller.is_closed() => {
                self.release_addresses(name, ToRelease::Reservation(reservation), None);
            }
            Ok(reservation) => self.begin_making(name, request, caller, reservation),
        }
        Some(())
    }

    /// The only step for a pod that is attached already. Its lease and its device have received the request's attachment
    /// id, or this has failed. If the device was lost meanwhile, the request makes another one.
    pub(super) fn end_renewing(
        &mut self,
        name: &ObjectName,
        reserved: Result<Reservation, addresses::Error>,
    ) -> Option<()> {
        let Renewing { request, caller, found, then } = self.attachments.pods.end_renewing(name)?;
        let reserved = reserved.map(Reservation::commit);
        if let Some(after) = then {
            self.begin_detach(name, after);
            self.attachments.pods.requeue(name, request, caller);
            return Some(());
        }
        let response = reserved.map(|_| found).map_err(|error| failure(error.kind(), &error));
        self.attachments.reply(caller, response);
        Some(())
    }

    fn begin_making(
        &mut self,
        name: &ObjectName,
        AttachRequest { attach, netns, maker, .. }: AttachRequest,
        caller: Caller,
        reservation: Reservation,
    ) {
        self.inputs.assign(name, Some(reservation.addresses().to_vec()));
        let mtu = match &attach.made {
            Some(made) => made.mtu,
            None => self.attachments.devices.pod_mtu(&self.view.topology),
        };
        let segments = self.view.overlays().into_iter().filter_map(|it| it.segments(mtu)).min();
        let limits = DeviceLimits { mtu, segments };
        let is_callers = maker == Maker::Caller
            && (attach.made.is_some()
                || self.attachments.devices.kind(&attach).can_be_handed_over());
        match netns.filter(|_| is_callers) {
            Some(netns) => {
                let by = (caller, netns);
                self.attachments.start_making_by_caller(name, attach, by, reservation, limits);
            }
            None => self.attachments.start_making(name, attach, caller, reservation, limits),
        }
    }

    /// The third step: the device becomes a port, and its pod an endpoint. If there is no port, the device is removed
    /// before the caller gets the error. A device whose caller has gone is removed, too. `hands_over` is the caller, if
    /// it made the device itself.
    pub(super) fn end_making(
        &mut self,
        name: &ObjectName,
        hands_over: Option<Caller>,
        made: DeviceResult,
    ) -> Option<()> {
        let Making { attach: Attach { pod, .. }, reservation, caller } =
            self.attachments.pods.end_making(name)?;
        let caller = hands_over.or(caller)?;
        let failed = ToRelease::Reservation;
        let (device, open) = match made {
            Ok(made) => made,
            Err(error) => {
                let reply = Some((caller, Err(failure(error.kind(), &error))));
                self.release_addresses(name, failed(reservation), reply);
                return Some(());
            }
        };
        let ports = if caller.is_closed() {
            tracing::info!(%pod, "the caller that attached it has gone; its device goes, too");
            Err(None)
        } else {
            let all = &mut self.dataplane.ports;
            let ports = all.reserve_pod(&open).and_then(|ports| {
                all.serve_pod(ports, &pod.to_string(), open)?;
                Ok(ports)
            });
            ports.map_err(Some)
        };
        match ports {
            Ok(ports) => {
                let addresses = reservation.commit();
                tracing::info!(%pod, ?addresses, device = ?device.device(), "attached");
                let response = Ok(attached(&device, addresses.clone()));
                self.attachments.insert(name, device, ports, addresses);
                self.inputs.note_pods();
                self.attachments.reply(caller, response);
            }
            Err(error) => {
                let reply = error.map(|error| (caller, Err(failure(ErrorKind::Internal, &error))));
                let after = AfterRemoval { to_release: Some(failed(reservation)), reply };
                self.attachments.start_removing(name, device, Vec::new(), after);
            }
        }
        Some(())
    }

    /// Ends an attachment whose caller disconnected before it made the device.
    pub(super) fn abandon_making(&mut self, name: &ObjectName) -> Option<()> {
        let Making { reservation, .. } = self.attachments.pods.end_making(name)?;
        self.release_addresses(name, ToRelease::Reservation(reservation), None);
        Some(())
    }
}

fn attached(device: &PodDevice, addresses: Vec<IpAddr>) -> api::Reply {
    let (mtu, mac) = (device.mtu(), device.mac());
    api::Reply::Attached(Attached { addresses, device: device.device(), mtu, mac })
}
