//! The steps of attaching and detaching that take time. Each sets the pod's state and starts the work, whose result is one
//! [`WorkResult`].

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::Receiver;
use manx_policy_compiler::model::ObjectName;
use tokio::sync::oneshot;

use super::{Attachments, WorkResult};
use crate::addresses::{self, Wanted};
use crate::node::pod_request::{AttachRequest, Caller, PendingReply, failure, pod_name};
use crate::node::pod_state::{AfterRemoval, Making, ToRelease};
use crate::server::{Handover, Outcome};
use manx_api::{self as api, Attach, AttachmentId, Device};
use manx_devices::device::{AgentNamespace, DeviceSpec};
use manx_devices::holder::Held;
use manx_devices::pod_device::{self, PodDevice};
use manx_ipam::host_local::Reservation;
use manx_ipam::leases::Leases;
use manx_linux::netns;

/// The time that the removal of a pod's device waits for workers to close its queues.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The limits of a pod's device that differ from the pattern.
#[derive(Clone, Copy)]
pub(in crate::node) struct DeviceLimits {
    pub(in crate::node) mtu: u32,
    pub(in crate::node) segments: Option<u32>,
}

impl DeviceLimits {
    /// The specification of a pod's device.
    fn device_spec<'a>(
        self,
        pattern: DeviceSpec<'a>,
        interface: &'a str,
        addresses: &'a [IpAddr],
        device: Device,
    ) -> DeviceSpec<'a> {
        let Self { mtu, segments } = self;
        DeviceSpec { interface, addresses, mtu, segments, device, ..pattern }
    }
}

impl Attachments {
    /// Reserves addresses.
    pub(in crate::node) fn start_reserving(
        &mut self,
        name: &ObjectName,
        request: AttachRequest,
        caller: Caller,
        wanted: Wanted,
    ) {
        let addresses = self.addresses.clone();
        self.pods.begin_reserving(name, request, caller);
        let reserve = async move { WorkResult::Reserved(addresses.reserve(wanted).await) };
        self.work.start_async(name.clone(), reserve);
    }

    /// Changes an attached pod's attachment id to that of a repeated request, perhaps of another sandbox: first in its
    /// lease, then in the holder. The next agent restores the device only if both name the same sandbox.
    pub(in crate::node) fn start_renewing(
        &mut self,
        name: &ObjectName,
        request: AttachRequest,
        asks: (Caller, api::Reply),
        wanted: Wanted,
    ) {
        let addresses = self.addresses.clone();
        let (restart_state, pod) = (Arc::clone(&self.restart_state), request.attach.pod.clone());
        self.pods.begin_renewing(name, request, asks);
        let reserve = async move {
            let reserved = addresses.reserve(wanted).await;
            Ok((reserved, addresses.leases()))
        };
        // The holder gets the id that the lease has now. That may be the new id even if the write of the lease failed.
        let rename = move |(reserved, leases): (_, Arc<Leases>)| {
            if let Some(id) = leases.id(&pod) {
                restart_state.rename(&pod, &id.sandbox);
            }
            WorkResult::Renewed(reserved)
        };
        self.work.start_when(name.clone(), reserve, rename);
    }

    /// Makes the pod's device on a thread.
    pub(in crate::node) fn start_making(
        &mut self,
        name: &ObjectName,
        attach: Attach,
        caller: Caller,
        reservation: Reservation,
        limits: DeviceLimits,
    ) {
        let pattern = self.devices.pattern;
        let (device, addresses) = (self.devices.kind(&attach), reservation.addresses().to_vec());
        let making = Making { attach: attach.clone(), reservation, caller: Some(caller) };
        self.pods.begin_making(name, making);
        self.work.start(name.clone(), move |namespace| {
            let wanted = limits.device_spec(pattern, &attach.interface, &addresses, device);
            WorkResult::Made(pod_device::attach(namespace, &attach.netns, &wanted))
        });
    }

    /// Makes the caller make the pod's device. If the caller does not, the reservation ends.
    pub(in crate::node) fn start_making_by_caller(
        &mut self,
        name: &ObjectName,
        attach: Attach,
        (caller, netns): (Caller, netns::Identity),
        reservation: Reservation,
        limits: DeviceLimits,
    ) {
        let pattern = self.devices.pattern;
        let (device, addresses) = (self.devices.kind(&attach), reservation.addresses().to_vec());
        let (handover, handed) = oneshot::channel();
        let to_make = api::Reservation {
            device,
            addresses: addresses.clone(),
            mtu: limits.mtu,
            queues: pattern.queues,
            segments: limits.segments,
        };
        // This fails if the client has gone. Then the handover's channel is closed, too.
        let _ = caller.send(Outcome::Reserved(to_make, handover));
        let making = Making { attach: attach.clone(), reservation, caller: None };
        self.pods.begin_making(name, making);
        let restart_state = Arc::clone(&self.restart_state);
        let take_over = move |Handover { queues, answer }| {
            let attach = Attach { addresses: addresses.clone(), ..attach };
            let wanted = limits.device_spec(pattern, &attach.interface, &addresses, device);
            let own: io::Result<Vec<OwnedFd>> = queues.iter().map(OwnedFd::try_clone).collect();
            let made = match attach.made {
                None => pod_device::adopt(queues, &attach.netns, netns, &wanted),
                Some(_) => pod_device::relay(queues, &attach, netns, &wanted),
            };
            if made.is_ok() {
                restart_state.keep(Held { attach, mtu: limits.mtu }, own);
            }
            WorkResult::HandedOver(answer, made)
        };
        let handed = async { handed.await.map_err(|_| WorkResult::NotHandedOver) };
        self.work.start_when(name.clone(), handed, take_over);
    }

    /// Removes a pod's device on a thread. If that hangs, the device ends when the workers close its queues. The channels
    /// in `closed` end when the queues are closed. A device that ends with its last queue must be gone before the reply.
    pub(in crate::node) fn start_removing(
        &mut self,
        name: &ObjectName,
        device: PodDevice,
        closed: Vec<Receiver<()>>,
        after: AfterRemoval,
    ) {
        self.pods.begin_removing(name, after);
        let pod = pod_name(name);
        let restart_state = Arc::clone(&self.restart_state);
        let remove = move |namespace: &AgentNamespace| {
            if device.device().ends_with_queues() {
                let until = Instant::now() + CLOSE_TIMEOUT;
                for queues in &closed {
                    // Nothing is sent through this channel. It ends when the queues are closed.
                    let _ = queues.recv_deadline(until);
                }
            }
            restart_state.release(&pod);
            if let Err(error) = device.detach(namespace) {
                tracing::warn!(%pod, %error, "the pod's interface could not be removed");
            }
        };
        self.work.start_bounded(name.clone(), remove, WorkResult::Removed);
    }

    /// Releases the pools' addresses of an attachment that is not the pod's current one. This may run next to other work
    /// for the pod, because the attachment has its own handle.
    pub(in crate::node) fn start_releasing_other(
        &self,
        id: AttachmentId,
        reply: Option<PendingReply>,
    ) {
        let addresses = self.addresses.clone();
        tokio::spawn(async move {
            let released = addresses.release_unleased(&id).await;
            if let Err(error) = &released {
                tracing::warn!(%id, %error, "the addresses of this attachment stay taken");
            }
            if let Some((caller, response)) = reply {
                let failed = |error: addresses::Error| failure(error.kind(), &error);
                let response = released.map_err(failed).and(response);
                // A client that went away no longer waits.
                let _ = caller.send(Outcome::Reply(response));
            }
        });
    }

    /// Releases the pod's addresses.
    pub(in crate::node) fn start_releasing(
        &mut self,
        name: &ObjectName,
        to_release: ToRelease,
        reply: Option<PendingReply>,
    ) {
        self.pods.begin_releasing(name, reply);
        let (addresses, pod) = (self.addresses.clone(), pod_name(name));
        self.work.start_async(name.clone(), async move {
            WorkResult::Released(match to_release {
                ToRelease::Lease => addresses.release(&pod).await,
                ToRelease::Reservation(reservation) => addresses.abort(&pod, reservation).await,
            })
        });
    }
}
