//! The steps of a pod's way that take time: each brings the pod into its state and starts the work; one
//! [`Done`] follows.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::Receiver;
use manx_policy_compiler::model::ObjectName;
use tokio::sync::oneshot;

use super::{Attachments, Done};
use crate::node::pod_request::{Answered, AttachRequest, Caller, pod_name};
use crate::node::pod_state::{Departure, GivesBack, Making};
use crate::server::{Handover, Outcome};
use manx_api::{self as api, Attach, Device};
use manx_devices::device::{AgentNamespace, DeviceSpec};
use manx_devices::holder::Held;
use manx_devices::pod_device::{self, PodDevice};
use manx_ipam::host_local::{Request, Reservation};
use manx_ipam::leases::Leases;
use manx_linux::netns;

/// How long the removal of a pod's device waits until workers have closed its queues.
const CLOSING: Duration = Duration::from_secs(1);

/// What a pod's device may have different from the pattern.
#[derive(Clone, Copy)]
pub(in crate::node) struct Measures {
    pub(in crate::node) mtu: u32,
    pub(in crate::node) segments: Option<u32>,
}

impl Measures {
    /// A pod's device.
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
    /// Has addresses reserved: those that the request names, or else the next in turn. None of `others` is next.
    pub(in crate::node) fn start_reserving(
        &mut self,
        name: &ObjectName,
        request: AttachRequest,
        caller: Caller,
        others: BTreeMap<IpAddr, String>,
    ) {
        let (addresses, wanted) = (self.addresses.clone(), request_for(&request.attach, others));
        self.pods.begin_reserving(name, request, caller);
        let reserve = async move { Done::Reserved(addresses.reserve(&wanted).await) };
        self.work.follow(name.clone(), reserve);
    }

    /// Gives an attached pod the name of a repeated request, perhaps of another sandbox: first its lease, then its device
    /// in the holder. The next agent takes the device over only if both name the same sandbox.
    pub(in crate::node) fn start_renewing(
        &mut self,
        name: &ObjectName,
        attach: Attach,
        asks: (Caller, api::Reply),
        others: BTreeMap<IpAddr, String>,
    ) {
        let (addresses, wanted) = (self.addresses.clone(), request_for(&attach, others));
        let (holding, pod) = (Arc::clone(&self.holding), attach.pod.clone());
        self.pods.begin_renewing(name, attach, asks);
        let reserve = async move {
            let reserved = addresses.reserve(&wanted).await;
            Ok((reserved, addresses.leases()))
        };
        // The holder follows the lease, which may have its new name even if writing it has failed.
        let rename = move |(reserved, leases): (_, Arc<Leases>)| {
            if let Some(id) = leases.id(&pod) {
                holding.rename(&pod, &id.sandbox);
            }
            Done::Renewed(reserved)
        };
        self.work.start_when(name.clone(), reserve, rename);
    }

    /// Has a thread make the pod's device.
    pub(in crate::node) fn start_making(
        &mut self,
        name: &ObjectName,
        attach: Attach,
        caller: Caller,
        reservation: Reservation,
        measures: Measures,
    ) {
        let pattern = self.devices.pattern;
        let (device, addresses) = (self.devices.kind(&attach), reservation.addresses().to_vec());
        let making = Making { attach: attach.clone(), reservation, caller: Some(caller) };
        self.pods.begin_making(name, making);
        self.work.start(name.clone(), move |namespace| {
            let wanted = measures.device_spec(pattern, &attach.interface, &addresses, device);
            Done::Made(pod_device::attach(namespace, &attach.netns, &wanted))
        });
    }

    /// Has the caller make the pod's device. If it does not, the reservation ends.
    pub(in crate::node) fn start_making_by_caller(
        &mut self,
        name: &ObjectName,
        attach: Attach,
        (caller, netns): (Caller, netns::Identity),
        reservation: Reservation,
        measures: Measures,
    ) {
        let pattern = self.devices.pattern;
        let (device, addresses) = (self.devices.kind(&attach), reservation.addresses().to_vec());
        let (handover, handed) = oneshot::channel();
        let to_make = api::Reservation {
            device,
            addresses: addresses.clone(),
            mtu: measures.mtu,
            queues: pattern.queues,
            segments: measures.segments,
        };
        // A client that went away takes the channel along.
        let _ = caller.send(Outcome::Reserved(to_make, handover));
        let making = Making { attach: attach.clone(), reservation, caller: None };
        self.pods.begin_making(name, making);
        let holding = Arc::clone(&self.holding);
        let take_over = move |Handover { queues, answer }| {
            let attach = Attach { addresses: addresses.clone(), ..attach };
            let wanted = measures.device_spec(pattern, &attach.interface, &addresses, device);
            let own: io::Result<Vec<OwnedFd>> = queues.iter().map(OwnedFd::try_clone).collect();
            let made = match attach.made {
                None => pod_device::adopt(queues, &attach.netns, netns, &wanted),
                Some(_) => pod_device::relay(queues, &attach, netns, &wanted),
            };
            if made.is_ok() {
                holding.keep(Held { attach, mtu: measures.mtu }, own);
            }
            Done::HandedOver(answer, made)
        };
        let handed = async { handed.await.map_err(|_| Done::NotHandedOver) };
        self.work.start_when(name.clone(), handed, take_over);
    }

    /// Has a thread remove a pod's device. If that hangs, the device goes with its queues, which the workers have given
    /// up. `closed` ends when they have closed them. A TUN or TAP device goes with its last queue, and it has to be gone
    /// before the reply.
    pub(in crate::node) fn start_removing(
        &mut self,
        name: &ObjectName,
        device: PodDevice,
        closed: Vec<Receiver<()>>,
        departure: Departure,
    ) {
        self.pods.begin_removing(name, departure);
        let pod = pod_name(name);
        let holding = Arc::clone(&self.holding);
        let remove = move |namespace: &AgentNamespace| {
            if device.device().is_tuntap() {
                let until = Instant::now() + CLOSING;
                for queues in &closed {
                    // Nothing is sent: it ends.
                    let _ = queues.recv_deadline(until);
                }
            }
            holding.release(&pod);
            if let Err(error) = device.detach(namespace) {
                tracing::warn!(%pod, %error, "the pod's interface could not be removed");
            }
        };
        self.work.start_bounded(name.clone(), remove, Done::Removed);
    }

    /// Has the pod's addresses released.
    pub(in crate::node) fn start_releasing(
        &mut self,
        name: &ObjectName,
        gives_back: GivesBack,
        reply: Option<Answered>,
    ) {
        self.pods.begin_releasing(name, reply);
        let (addresses, pod) = (self.addresses.clone(), pod_name(name));
        self.work.follow(name.clone(), async move {
            Done::Released(match gives_back {
                GivesBack::Lease => addresses.release(&pod).await.map(drop),
                GivesBack::Reservation(reservation) => addresses.abort(reservation).await,
            })
        });
    }
}

fn request_for(attach: &Attach, others: BTreeMap<IpAddr, String>) -> Request {
    let (pod, id) = (attach.pod.clone(), attach.id());
    Request { pod, addresses: attach.addresses.clone(), id, others }
}
