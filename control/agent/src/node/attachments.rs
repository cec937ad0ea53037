//! Attachments: the pods of this node, their addresses, the devices that hold them and the node, and device work under
//! way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::Receiver;
use manx_dataplane::encapsulation::Encapsulation;
use manx_dataplane::tables::PortId;
use manx_policy_compiler::model::ObjectName;
use tokio::sync::{mpsc, oneshot};

use super::ports::PodPorts;
use super::view::View;
use crate::device_work::{Completed, DeviceWork};
use crate::error::Error;
use crate::holding::{Holding, LastAgent};
use crate::host_device::{self, HostDevice};
use crate::server::{Handover, Outcome};
use crate::service_device::ServiceDevice;
use crate::settings::{Network, Services, Settings};
use manx_api::{Attach, Detach, Device, PodName, Reservation, Response};
use manx_calculation::calc::{self, HostSide, Local};
use manx_calculation::topology::{HostNetwork, Topology};
use manx_devices::device::{self, AgentNamespace, DeviceSpec, OpenDevice};
use manx_devices::holder::Held;
use manx_devices::pod_device::{self, PodDevice};
use manx_devices::shelter;
use manx_ipam::file::FileStore;
use manx_ipam::host_local::{self, HostLocal, Wish};
use manx_ipam::leases::Leases;
use manx_linux::{netlink, netns};

/// What callers call a pod.
pub(super) fn pod_name(ObjectName { namespace, name }: &ObjectName) -> PodName {
    PodName { namespace: namespace.clone(), name: name.clone() }
}

/// What tables and objects call it.
pub(super) fn object_name(PodName { namespace, name }: &PodName) -> ObjectName {
    ObjectName::new(namespace, name)
}

/// Waits for a change of leases, as the control loop must.
fn wait<F: Future<Output: Send> + Send>(change: F) -> F::Output {
    let whole = || {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.map(|runtime| runtime.block_on(change))
    };
    match std::thread::scope(|scope| scope.spawn(whole).join()) {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => resume_unwind(Box::new(error)),
        Err(panic) => resume_unwind(panic),
    }
}

/// How long the devices of the last agent may take. A path may lead to a mount that does not answer.
const RESUMING: Duration = Duration::from_secs(5);

/// How long the removal of a pod's device waits until workers have closed its queues.
const CLOSING: Duration = Duration::from_secs(1);

/// Takes the reply to a request. A client that went away has closed it.
pub(crate) type Caller = oneshot::Sender<Outcome>;

/// A caller and the reply that it gets.
pub(crate) type Answered = (Caller, Response);

/// What a caller wants of a pod.
pub(crate) enum PodRequest {
    /// To be attached.
    Attach(Box<AttachRequest>, Caller),
    /// To be detached, and its addresses released.
    Detach(Box<Detach>, Caller),
}

/// A pod's attachment.
pub(crate) struct AttachRequest {
    pub(crate) attach: Attach,
    /// The namespace that was at the path of the request when it came, or came with it.
    pub(crate) netns: Option<netns::Identity>,
    /// Who makes a TUN or TAP device.
    pub(crate) maker: Maker,
}

/// Who makes a pod's TUN or TAP device. A veth is the agent's to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Maker {
    /// A thread of the agent.
    Agent,
    /// The process that asks, which hands its queues over.
    Caller,
}

impl PodRequest {
    /// The pod.
    pub(super) fn pod(&self) -> ObjectName {
        let pod = match self {
            Self::Attach(request, _) => &request.attach.pod,
            Self::Detach(detach, _) => &detach.pod,
        };
        object_name(pod)
    }

    /// Whether it is an attachment that no caller waits for any more. A detachment is done all the same.
    pub(super) fn is_abandoned(&self) -> bool {
        matches!(self, Self::Attach(_, caller) if caller.is_closed())
    }

    /// Whether `next`, a later request for the same pod, does all that this one is still to do.
    fn is_replaced_by(&self, next: &Self) -> bool {
        match self {
            Self::Attach(..) => self.is_abandoned(),
            Self::Detach(this, caller) => match next {
                Self::Detach(next, _) => {
                    caller.is_closed() && (next.id.is_none() || next.id == this.id)
                }
                Self::Attach(..) => false,
            },
        }
    }
}

/// The state of a pod that this node has something of.
enum Pod {
    /// It is being attached or detached. The requests wait for that, in order of arrival.
    UnderWay(VecDeque<PodRequest>),
    /// It has a port, and the tables name it.
    Attached(AttachedPod),
}

/// An attachment of a pod whose object has not come yet. It would have no policy, so nothing would pass.
pub(super) struct EarlyAttachment {
    pub(super) name: ObjectName,
    pub(super) request: AttachRequest,
    pub(super) caller: Caller,
    /// When it is given up.
    pub(super) until: Instant,
}

/// A pod with a device and a port.
pub(crate) struct AttachedPod {
    pub(super) device: PodDevice,
    pub(super) local: Local,
}

impl AttachedPod {
    fn has_port(&self, port: PortId) -> bool {
        self.local.port == port || self.local.host.as_ref().is_some_and(|it| it.port == port)
    }
}

/// A pod with addresses, and without a device yet.
pub(crate) struct Reserved {
    pub(super) attach: Attach,
    pub(super) caller: Caller,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) mtu: u32,
}

/// What follows when a pod's device is gone.
pub(crate) struct Departure {
    /// Whose addresses are released; `None`: the pod keeps them.
    pub(super) release: Option<PodName>,
    pub(super) reply: Option<Answered>,
}

/// A pod's device, or why there is none.
pub(crate) type Made = Result<(PodDevice, OpenDevice), device::Error>;

/// What a thread has done for a pod.
pub(crate) enum Done {
    /// It has made the device, or nothing.
    Made(Box<Reserved>, Made),
    /// It has removed the device.
    Removed(Departure),
}

/// See the module.
pub(crate) struct Attachments {
    pods: BTreeMap<ObjectName, Pod>,
    /// Attachments that wait for their pods' objects.
    pub(super) early: Vec<EarlyAttachment>,
    /// Requests that have waited and wait no longer: the next turn of the control loop is theirs.
    pub(super) ready: Vec<PodRequest>,
    /// Pods that are to be detached when new tables do not name them.
    pub(super) gone: Vec<(ObjectName, AttachedPod, Departure)>,
    /// Replies that are sent when what they tell is in force.
    replies: Vec<Answered>,
    addresses: HostLocal<FileStore>,
    work: DeviceWork<Done>,
    pub(super) holding: Arc<Holding>,
    /// Pods of the last agent that were not taken over, and why.
    pub(super) refused: BTreeMap<PodName, String>,
    namespace: Arc<AgentNamespace>,
    host_device: HostDevice,
    service_device: Option<ServiceDevice>,
    /// The node's own device, with the uplink's MTU: pods' are like it, but for names, addresses and MTU.
    pattern: DeviceSpec<'static>,
    /// Whose network the pods are in.
    network: Network,
    /// The last number of an attachment.
    last: u32,
}

/// The node's own devices.
pub(super) struct OwnDevices {
    /// The host port's.
    pub(super) host: OpenDevice,
    /// That of what the node forwards, in a network of Manx.
    pub(super) forwarded: Option<OpenDevice>,
    /// The service port's, if the node translates service addresses.
    pub(super) service: Option<OpenDevice>,
}

impl Attachments {
    /// No pods yet. Makes the node's own devices, whose queues are for the workers, and the receiver of all device work
    /// that will be completed.
    pub(super) fn open(
        settings: &Settings,
        blocks: &[ipnet::IpNet],
        uplink: &netlink::Link,
    ) -> Result<(Self, OwnDevices, mpsc::UnboundedReceiver<Completed<Done>>), Error> {
        let queues = settings.cores.len();
        let fresh = match settings.network {
            Network::Manx => Leases::new(blocks).map_err(host_local::Error::from)?,
            Network::OtherPlugin => {
                shelter::Lock::create(&shelter::path(&settings.socket))?;
                Leases::without_blocks()
            }
        };
        let key = host_local::key(&settings.name);
        let file = FileStore::new(settings.socket.with_extension("addresses"), key);
        let addresses = wait(HostLocal::open(file, &settings.name, fresh))?;
        let namespace = Arc::new(AgentNamespace::create_if_allowed()?);
        let pattern = DeviceSpec {
            interface: host_device::NAME,
            addresses: &[],
            mtu: uplink.mtu,
            segments: None,
            device: pod_device::choose(settings.pod_device, queues)?,
            queues,
            polling: settings.polling,
        };
        if !namespace.is_own() {
            if pattern.device == Device::Veth {
                return Err(device::Error::NotAllowed.into());
            }
            tracing::info!(
                "without CAP_SYS_ADMIN: pods are attached by the CNI plugin, which makes their devices"
            );
        }
        let (host_device, host) =
            HostDevice::attach(&namespace, &pattern, &uplink.name, settings.network)?;
        let (service_device, service) = match settings.services {
            Services::None => (None, None),
            Services::KubeProxy => {
                let (device, held) = ServiceDevice::attach(&namespace, &pattern)?;
                (Some(device), Some(held))
            }
        };
        let own = OwnDevices { host: host.own, forwarded: host.forwarded, service };
        let (work, completed) = DeviceWork::new(Arc::clone(&namespace));
        let (holding, refused) = (Arc::new(Holding::new(&settings.socket)), BTreeMap::new());
        tokio::spawn(Arc::clone(&holding).watch());
        let attachments = Self {
            pods: BTreeMap::new(),
            early: Vec::new(),
            ready: Vec::new(),
            gone: Vec::new(),
            replies: Vec::new(),
            addresses,
            work,
            holding,
            refused,
            namespace,
            host_device,
            service_device,
            pattern,
            network: settings.network,
            last: 0,
        };
        Ok((attachments, own, completed))
    }

    /// What the last agent has left.
    pub(super) async fn resume(&self) -> LastAgent {
        let (holding, pattern) = (Arc::clone(&self.holding), self.pattern);
        let resuming = tokio::task::spawn_blocking(move || holding.resume(&pattern));
        match tokio::time::timeout(RESUMING, resuming).await {
            Ok(Ok(last)) => last,
            Ok(Err(error)) => resume_unwind(error.into_panic()),
            Err(_) => {
                tracing::error!(
                    "the devices of the last agent cannot be examined within {} s: pods have to be attached anew",
                    RESUMING.as_secs()
                );
                LastAgent::default()
            }
        }
    }

    /// The pods that are attached.
    pub(super) fn attached(&self) -> impl Iterator<Item = (&ObjectName, &AttachedPod)> {
        self.pods.iter().filter_map(|(name, pod)| match pod {
            Pod::Attached(pod) => Some((name, pod)),
            Pod::UnderWay(_) => None,
        })
    }

    /// The same, as the tables are made of them.
    pub(super) fn locals(&self) -> BTreeMap<&ObjectName, &Local> {
        self.attached().map(|(name, pod)| (name, &pod.local)).collect()
    }

    /// A pod, if it is attached.
    pub(super) fn find(&self, name: &ObjectName) -> Option<&AttachedPod> {
        let Pod::Attached(pod) = self.pods.get(name)? else { return None };
        Some(pod)
    }

    /// The attached pod that has this port.
    pub(super) fn pod_at(&self, port: PortId) -> Option<ObjectName> {
        self.attached().find(|(_, pod)| pod.has_port(port)).map(|(name, _)| name.clone())
    }

    /// Whether this port is a pod's that is being detached.
    pub(super) fn is_of_gone(&self, port: PortId) -> bool {
        self.gone.iter().any(|(_, pod, _)| pod.has_port(port))
    }

    /// Has a request wait for what is under way for its pod. `Err`: nothing is.
    pub(super) fn queue(
        &mut self,
        name: &ObjectName,
        request: PodRequest,
    ) -> Result<(), PodRequest> {
        match self.pods.get_mut(name) {
            Some(Pod::UnderWay(waiting)) => {
                // Callers give up and try again, and must not pile up behind work that hangs.
                waiting.retain(|earlier| !earlier.is_replaced_by(&request));
                waiting.push_back(request);
                Ok(())
            }
            Some(Pod::Attached(_)) | None => Err(request),
        }
    }

    /// Has a thread make the pod's device.
    pub(super) fn start_attach(
        &mut self,
        name: ObjectName,
        reserved: Reserved,
        segments: Option<u32>,
    ) {
        let pattern = self.pattern;
        self.pods.insert(name.clone(), Pod::UnderWay(VecDeque::new()));
        self.work.start(name, move |namespace| {
            let wanted = DeviceSpec {
                interface: &reserved.attach.interface,
                addresses: &reserved.addresses,
                mtu: reserved.mtu,
                segments,
                device: reserved.attach.device.unwrap_or(pattern.device),
                ..pattern
            };
            let made = pod_device::attach(namespace, &reserved.attach.netns, &wanted);
            Done::Made(Box::new(reserved), made)
        });
    }

    /// The pods of this node that another plugin has connected and that this agent does not carry.
    pub(super) fn not_judged<'a>(&'a self, view: &'a View) -> impl Iterator<Item = PodName> + 'a {
        let all = (self.network == Network::OtherPlugin).then(|| view.pods_here());
        let others = all.into_iter().flatten().filter(|name| !self.pods.contains_key(name));
        others.map(pod_name).filter(|pod| !self.refused.contains_key(pod))
    }

    /// Takes back the addresses of pods that another plugin has connected and that are not attached: it gives addresses
    /// out as it likes.
    pub(super) fn forget_others(&mut self) {
        if self.network == Network::OtherPlugin {
            let (pods, refused) = (&self.pods, &self.refused);
            // One that was refused keeps them until it is detached, which the other plugin's DEL comes after.
            let is_here =
                |pod: &PodName| pods.contains_key(&object_name(pod)) || refused.contains_key(pod);
            if let Err(error) = wait(self.addresses.retain(is_here)) {
                tracing::error!(%error, "addresses of pods that are gone stay taken");
            }
        }
    }

    /// Whose network the pods are in.
    pub(super) fn network(&self) -> Network {
        self.network
    }

    /// The kind of the device that a request asks for.
    pub(super) fn device(&self, attach: &Attach) -> Device {
        attach.device.unwrap_or(self.pattern.device)
    }

    /// Has the caller make the pod's device. If it does not, the pod's addresses are released.
    pub(super) fn start_reserved(
        &mut self,
        name: ObjectName,
        reserved: Reserved,
        segments: Option<u32>,
        netns: netns::Identity,
    ) {
        let pattern = self.pattern;
        let Reserved { attach, caller, addresses, mtu } = reserved;
        let device = self.device(&attach);
        let (handover, handed) = oneshot::channel();
        let reservation = Reservation {
            device,
            addresses: addresses.clone(),
            mtu,
            queues: pattern.queues,
            segments,
        };
        // A client that went away takes the channel along.
        let _ = caller.send(Outcome::Reserved(reservation, handover));
        self.pods.insert(name.clone(), Pod::UnderWay(VecDeque::new()));
        let without = Done::Removed(Departure { release: Some(attach.pod.clone()), reply: None });
        let holding = Arc::clone(&self.holding);
        let take_over = move |Handover { queues, answer }| {
            let attach = Attach { addresses: addresses.clone(), ..attach };
            let wanted = DeviceSpec {
                interface: &attach.interface,
                addresses: &addresses,
                mtu,
                segments,
                device,
                ..pattern
            };
            let own: io::Result<Vec<OwnedFd>> = queues.iter().map(OwnedFd::try_clone).collect();
            let made = match attach.made {
                None => pod_device::adopt(queues, &attach.netns, netns, &wanted),
                Some(_) => pod_device::relay(queues, &attach, netns, &wanted),
            };
            if made.is_ok() {
                let attach = attach.clone();
                holding.keep(Held { attach, mtu }, own);
            }
            Done::Made(Box::new(Reserved { attach, caller: answer, addresses, mtu }), made)
        };
        self.work.start_when(name, handed, take_over, without);
    }

    /// Has a thread remove a pod's device. If that hangs, the device goes with its queues, which the workers have given
    /// up. `closed` ends when they have closed them. A TUN or TAP device goes with its last queue, and it has to be gone
    /// before the reply.
    pub(super) fn start_removal(
        &mut self,
        name: &ObjectName,
        device: PodDevice,
        closed: Vec<Receiver<()>>,
        then: Departure,
    ) {
        self.pods.entry(name.clone()).or_insert_with(|| Pod::UnderWay(VecDeque::new()));
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
        self.work.start_bounded(name.clone(), remove, Done::Removed(then));
    }

    /// The work for a pod has ended: the requests that waited for it are ready.
    pub(super) fn end_work(&mut self, name: &ObjectName) {
        if let Some(Pod::UnderWay(waiting)) = self.pods.remove(name) {
            self.ready.extend(waiting);
        }
    }

    /// A pod is attached: it gets an endpoint of its own.
    pub(super) fn insert(
        &mut self,
        name: ObjectName,
        device: PodDevice,
        PodPorts { own: port, host }: PodPorts,
        addresses: Vec<IpAddr>,
    ) {
        self.last += 1;
        let (index, attachment, mtu) = (self.free_index(), self.last, device.mtu());
        let host = host.map(|port| HostSide { port, gateways: device.gateways().to_vec() });
        let local = Local { index, attachment, port, host, addresses, mtu };
        self.refused.remove(&pod_name(&name));
        self.pods.insert(name, Pod::Attached(AttachedPod { device, local }));
    }

    /// Takes an attached pod out; its device and its port go when no tables name it. `Err`: it is not attached.
    pub(super) fn take_out(&mut self, name: &ObjectName, then: Departure) -> Result<(), Departure> {
        if self.find(name).is_none() {
            return Err(then);
        }
        let before = self.pods.insert(name.clone(), Pod::UnderWay(VecDeque::new()));
        if let Some(Pod::Attached(pod)) = before {
            self.gone.push((name.clone(), pod, then));
        }
        Ok(())
    }

    /// Has a reply sent when all that is unsettled is settled.
    pub(super) fn reply(&mut self, caller: Caller, response: Response) {
        self.replies.push((caller, response));
    }

    /// Sends the replies.
    pub(super) fn send_replies(&mut self) {
        for (caller, response) in self.replies.drain(..) {
            // A client that went away no longer waits.
            let _ = caller.send(Outcome::Reply(response));
        }
    }

    /// The addresses of a pod: those that the request names, or else the next in turn.
    /// None of `others` is next.
    pub(super) fn reserve(
        &mut self,
        attach: &Attach,
        others: &BTreeMap<IpAddr, String>,
    ) -> Result<Vec<IpAddr>, host_local::Error> {
        let (pod, id) = (attach.pod.clone(), attach.id());
        let (addresses, others) = (attach.addresses.clone(), others.clone());
        wait(self.addresses.reserve(&Wish { pod, addresses, id, others }))
            .map(host_local::Reservation::commit)
    }

    /// Who has which addresses.
    pub(super) fn leases(&self) -> Arc<Leases> {
        self.addresses.leases()
    }

    /// Takes a pod's addresses back.
    pub(super) fn release(&mut self, pod: &PodName) -> Result<(), host_local::Error> {
        self.refused.remove(pod);
        let released = wait(self.addresses.release(pod)).map(drop);
        released.inspect_err(|error| {
            tracing::error!(%pod, %error, "the pod's addresses could not be released and stay taken");
        })
    }

    /// The lowest endpoint index that no attached pod has.
    fn free_index(&self) -> u32 {
        let taken: BTreeSet<u32> = self.attached().map(|(_, pod)| pod.local.index).collect();
        (0..)
            .zip(&taken)
            .find(|(index, taken)| index != *taken)
            .map_or(taken.len() as u32, |it| it.0)
    }

    /// The MTU that fits every tunnel that there is, and IPIP, which is Calico's default.
    pub(super) fn pod_mtu(&self, topology: &Topology) -> u32 {
        let overlays = topology.peers().into_iter().map(|peer| peer.overlay);
        let headers = overlays.map(|overlay| calc::encapsulation(overlay).header_len());
        let most = headers.max().unwrap_or(0).max(Encapsulation::Ipip.header_len());
        self.pattern.mtu.saturating_sub(most as u32)
    }

    /// Makes the node's own addresses and routes what they have to be.
    pub(super) fn reconcile_host(&self, desired: &HostNetwork) {
        let reconciled = self.host_device.reconcile(desired).inspect_err(
            |error| tracing::error!(%error, "the node's own routes are not as they should be"),
        );
        for block in reconciled.into_iter().flat_map(|it| it.unreachable) {
            tracing::error!(%block, "the node has no route to the node of this block");
        }
    }

    /// Removes the node's own addresses, routes and rules.
    pub(super) fn remove_host(&self) {
        let service = self.service_device.as_ref();
        if let Some(Err(error)) = service.map(|device| device.detach(&self.namespace)) {
            tracing::warn!(%error, "the rule of the service port could not be removed");
        }
        if let Err(error) = self.host_device.detach(&self.namespace) {
            tracing::warn!(%error, "the node's own routes could not be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> PodName {
        PodName { namespace: "shop".to_owned(), name: "web".to_owned() }
    }

    fn attach() -> (PodRequest, oneshot::Receiver<Outcome>) {
        let (caller, waits) = oneshot::channel();
        let attach = Attach::new(pod(), "/run/netns/web", "eth0");
        (
            PodRequest::Attach(
                Box::new(AttachRequest { attach, netns: None, maker: Maker::Agent }),
                caller,
            ),
            waits,
        )
    }

    fn detach() -> (PodRequest, oneshot::Receiver<Outcome>) {
        let (caller, waits) = oneshot::channel();
        (PodRequest::Detach(Box::new(pod().into()), caller), waits)
    }

    #[test]
    fn only_a_request_without_a_caller_gives_way_and_a_detachment_only_to_a_detachment() {
        let (later_attach, later_detach) = (attach(), detach());
        for (make, by_attach, by_detach, abandoned) in [
            (attach as fn() -> (PodRequest, oneshot::Receiver<Outcome>), true, true, true),
            (detach, false, true, false),
        ] {
            let (request, waits) = make();
            assert!(!request.is_replaced_by(&later_attach.0));
            assert!(!request.is_replaced_by(&later_detach.0));
            assert!(!request.is_abandoned());
            drop(waits);
            assert_eq!(request.is_replaced_by(&later_attach.0), by_attach);
            assert_eq!(request.is_replaced_by(&later_detach.0), by_detach);
            assert_eq!(request.is_abandoned(), abandoned);
        }
    }
}
