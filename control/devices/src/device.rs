//! Devices whose packets Manx carries: an interface in somebody's namespace (a pod's, the node's), its queues in our
//! hands.
//!
//! A TUN or TAP device lies whole in the namespace. A veth has its far end in a namespace of the agent's own
//! ([`AgentNamespace`]), where a packet socket reads it; such a socket only gets copies, so that namespace must be one
//! in which the kernel itself can do nothing with a packet: no address, no IPv6, no forwarding.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use ipnet::IpNet;
use manx_dataplane::port::PacketIo;
use manx_dataplane::port::link::{Link, Mac};
use manx_dataplane::port::packet::{PacketPort, Receipt};
use manx_dataplane::port::relay::Ends;
use manx_dataplane::port::tuntap::{Kind, Queue, Settings};
use manx_dataplane::worker::Polling;

use crate::shelter;
use manx_api::{Device, ErrorKind};
use manx_linux::doctor::{self, Lack};
use manx_linux::netlink::{self, Netlink, Peer, Route, Veth};
use manx_linux::netns::{self, sysctl};

/// What the other end of every link takes for our hardware address, as Calico's host ends have it; it is never seen
/// beyond the link.
const OWN_MAC: Mac = [0xee; 6];
/// How the hardware addresses of devices begin: locally administered, unicast, and as some other CNI plugins have
/// them.
const MAC_PREFIX: [u8; 2] = [0x0a, 0x58];
/// Packets (super-packets count once) that a TUN or TAP device keeps for us while we are busy; the driver's own choice
/// is 500.
const QUEUE_LEN: u32 = 1000;

/// Why a device cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The namespace.
    #[error(transparent)]
    Namespace(#[from] netns::Error),
    /// The kernel refuses a link, an address or a route.
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    /// The name is taken.
    #[error(
        "there is an interface {interface} in {place} already, and it is not Manx's: remove it (ip link delete {interface}) or ask \
         for another name"
    )]
    Exists {
        /// Its name.
        interface: String,
        /// Whose namespace.
        place: String,
    },
    /// The environment does not allow this kind of device.
    #[error(transparent)]
    Lacking(#[from] Lack),
    /// The agent may not enter namespaces, and has none of its own.
    #[error(
        "this agent runs without CAP_SYS_ADMIN and makes no devices of pods: attach by the CNI plugin, which makes TUN and TAP \
         devices itself, or give the agent CAP_SYS_ADMIN, which veth pods need anyway"
    )]
    NotAllowed,
    /// Another kind of device was to be made of queues.
    #[error("a {0} has no queues to hand over: expected TUN or TAP")]
    NoQueues(Device),
    /// The shelter of another plugin's host ends.
    #[error(transparent)]
    Shelter(#[from] shelter::Error),
    /// The descriptors that were handed over are not the device's queues.
    #[error(
        "the descriptors are not the queues of interface {interface}: {found}; expected {expected}"
    )]
    NotQueues {
        /// Its name.
        interface: String,
        /// What was handed over.
        found: String,
        /// What was reserved.
        expected: String,
    },
    /// The queues cannot be opened.
    #[error("the queues of interface {interface} cannot be opened: {source}")]
    Queues {
        /// Its name.
        interface: String,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    /// The kind that the agent's socket reports.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Namespace(
                netns::Error::Open { .. }
                | netns::Error::Process(_)
                | netns::Error::NotANamespace(_),
            )
            | Self::Exists { .. }
            | Self::NotQueues { .. } => ErrorKind::Invalid,
            Self::Namespace(_) | Self::Lacking(_) | Self::NotAllowed => ErrorKind::Environment,
            Self::Netlink(error) => match error.errno() {
                Some(libc::EPERM | libc::EACCES | libc::EROFS | libc::EOPNOTSUPP) => {
                    ErrorKind::Environment
                }
                _ => ErrorKind::Internal,
            },
            Self::Queues { .. } | Self::NoQueues(_) | Self::Shelter(_) => ErrorKind::Internal,
        }
    }
}

/// The namespace of the agent's own in which devices are made, and in which the far ends of veths lie. It lives as long
/// as this value, and the veths with it: when the agent dies, they are gone.
#[derive(Debug)]
pub struct AgentNamespace {
    netns: OwnedFd,
    /// Whether it is the agent's alone. Without `CAP_SYS_ADMIN` it is the one that the agent was started in.
    is_own: bool,
    made: AtomicU32,
}

impl AgentNamespace {
    /// Makes it, with IPv6 and forwarding off, and no answer to ARP.
    pub fn create() -> Result<Self, Error> {
        let netns = netns::create()?;
        netns::run_in(&netns, || sysctl::apply(sysctl::SILENT))?.map_err(netlink::Error::from)?;
        Ok(Self { netns, is_own: true, made: AtomicU32::new(0) })
    }

    /// The same; where that takes a capability that the caller does not have, the caller's own namespace. The node's own
    /// TUN or TAP device can be made there, and nothing else.
    pub fn create_if_allowed() -> Result<Self, Error> {
        match Self::create() {
            Err(Error::Namespace(netns::Error::Unshare(errno))) if errno as i32 == libc::EPERM => {
                Ok(Self { netns: netns::current()?, is_own: false, made: AtomicU32::new(0) })
            }
            result => result,
        }
    }

    /// A pod's namespace, for a device with one queue: no other process can open a second one, so it needs no place
    /// apart. To make and end a namespace costs more than the device.
    pub fn of_pod(netns: &OwnedFd) -> Result<Self, Error> {
        let netns = netns.try_clone().map_err(netns::Error::Thread)?;
        Ok(Self { netns, is_own: false, made: AtomicU32::new(0) })
    }

    /// Whether devices of pods can be made here.
    pub const fn is_own(&self) -> bool {
        self.is_own
    }

    /// A name that no interface in this namespace has had: several threads make devices here at once. Where others could
    /// look on, they do not know it before the device has its owner.
    fn next_name(&self) -> String {
        if self.is_own {
            return format!("far{}", self.made.fetch_add(1, Ordering::Relaxed));
        }
        format!("m{:014x}", RandomState::new().build_hasher().finish() >> 8)
    }
}

impl AsFd for AgentNamespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.netns.as_fd()
    }
}

/// A device to make.
#[derive(Debug, Clone, Copy)]
pub struct DeviceSpec<'a> {
    /// The interface's name.
    pub interface: &'a str,
    /// The kind.
    pub device: Device,
    /// Its addresses. Each is alone on the link (/32, /128).
    pub addresses: &'a [IpAddr],
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Of how many segments super-packets from a TUN or TAP device may be; `None`: of as many as the kernel likes.
    pub segments: Option<u32>,
    /// How many queues: one for each worker.
    pub queues: usize,
    /// Whether the workers that own them sleep.
    pub polling: Polling,
}

/// What was made, without its queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatedDevice {
    /// The kind.
    pub device: Device,
    /// The interface's index in its namespace.
    pub index: u32,
    /// The name of a veth's far end in the agent's namespace.
    far_end: Option<String>,
}

/// The queues of a device, in worker order.
pub type Queues = Vec<Box<dyn PacketIo>>;

/// All that a device is held by.
pub struct OpenDevice {
    /// Its queues.
    pub queues: Queues,
    /// Those of its host side, where another plugin has connected the pod.
    pub host: Option<Queues>,
    /// The settings of a TUN or TAP device of several queues, which others may change, too.
    pub settings: Option<Settings>,
}

impl From<Queues> for OpenDevice {
    fn from(queues: Queues) -> Self {
        Self { queues, host: None, settings: None }
    }
}

/// Makes the device in `netns`, which messages call `place`: addresses, MTU, up, its queues open. Nothing is left
/// behind when it fails.
pub fn make(
    agent: &AgentNamespace,
    netns: BorrowedFd<'_>,
    place: &str,
    wanted: &DeviceSpec<'_>,
) -> Result<(CreatedDevice, OpenDevice), Error> {
    check_free(netns, place, wanted.interface)?;
    match wanted.device {
        Device::Tun | Device::Tap => {
            let (made, queues) = make_tuntap(agent, netns, wanted)?;
            Ok((made, open(queues, wanted)?))
        }
        Device::Veth if !agent.is_own => Err(Error::NotAllowed),
        Device::Veth => {
            let far_end = agent.next_name();
            make_veth(agent, netns, wanted, &far_end).inspect_err(|_| {
                // The first error is the one to tell.
                let _ = remove_link(agent.as_fd(), &far_end);
            })
        }
    }
}

/// The kind of a device of `/dev/net/tun`; `None` for a veth.
pub(crate) const fn kind(device: Device) -> Option<Kind> {
    match device {
        Device::Tun => Some(Kind::Tun),
        Device::Tap => Some(Kind::Tap),
        Device::Veth => None,
    }
}

/// The device that has queues of this kind.
pub(crate) const fn device_of(kind: Kind) -> Device {
    match kind {
        Kind::Tun => Device::Tun,
        Kind::Tap => Device::Tap,
    }
}

/// The hardware address of a device. It ends as the first of the device's addresses does, or as its name if it has none.
/// The process that makes the device and the agent that reads its queues both work it out, and tell each other nothing.
fn hardware_address(interface: &str, addresses: &[IpAddr]) -> Mac {
    let ends_as = |bytes: &[u8]| bytes.last_chunk().copied().unwrap_or_default();
    let [a, b, c, d]: [u8; 4] = match addresses.first() {
        Some(IpAddr::V4(address)) => address.octets(),
        Some(IpAddr::V6(address)) => ends_as(&address.octets()),
        None => ends_as(interface.as_bytes()),
    };
    let [first, second] = MAC_PREFIX;
    [first, second, a, b, c, d]
}

/// The hardware address of a device, if it has one.
pub fn mac(wanted: &DeviceSpec<'_>) -> Option<Mac> {
    wanted.device.is_ethernet().then(|| hardware_address(wanted.interface, wanted.addresses))
}

/// The link of a device that has a hardware address.
fn link(wanted: &DeviceSpec<'_>) -> Link {
    let peer = hardware_address(wanted.interface, wanted.addresses);
    Link { own: OWN_MAC, peer, addresses: wanted.addresses.to_vec() }
}

/// Checks that an interface's name is free in a namespace.
pub fn check_free(netns: BorrowedFd<'_>, place: &str, interface: &str) -> Result<(), Error> {
    let taken = netlink::in_netns(netns, async |netlink| netlink.link(interface).await)?;
    if taken.is_some() {
        let (interface, place) = (interface.to_owned(), place.to_owned());
        return Err(Error::Exists { interface, place });
    }
    Ok(())
}

impl CreatedDevice {
    /// A route through the device.
    pub fn route(&self, destination: IpNet, source: Option<IpAddr>) -> Route {
        let via = self.gateway(destination.addr());
        // A link-local next hop of IPv6 is on the link by itself.
        let onlink = via.is_some_and(|via| via.is_ipv4());
        Route { source, via, onlink, ..Route::direct(destination, self.index) }
    }

    /// The next hop of routes to this address's family, and its hardware address. `None`: they need none.
    pub fn neighbour(&self, of: IpAddr) -> Option<(IpAddr, Mac)> {
        self.gateway(of).map(|gateway| (gateway, OWN_MAC))
    }

    fn gateway(&self, of: IpAddr) -> Option<IpAddr> {
        self.device.is_ethernet().then(|| manx_api::gateway(of))
    }

    /// Removes what closing the queues does not. Repeating it is no error.
    pub fn remove(&self, agent: &AgentNamespace) -> Result<(), Error> {
        match &self.far_end {
            // A TUN or TAP device goes with its last queue.
            None => Ok(()),
            Some(far_end) => remove_link(agent.as_fd(), far_end),
        }
    }
}

/// Holds a TUN or TAP device by its queues.
pub fn open(queues: Vec<Queue>, wanted: &DeviceSpec<'_>) -> Result<OpenDevice, Error> {
    let error = |source| Error::Queues { interface: wanted.interface.to_owned(), source };
    // A device with one queue gives none to any other process, so none can change them.
    let several = queues.first().filter(|queue| queue.has_several());
    let settings = several.map(Queue::settings).transpose().map_err(error)?;
    let queues = queues.into_iter().map(|queue| queue.into_port(|| link(wanted))).collect();
    Ok(OpenDevice { queues, host: None, settings })
}

/// The device is made in the agent's namespace under a name of its own, then moved and renamed. In the agent's
/// namespace no other process could open a queue before the device has an owner.
///
/// It gets its hardware address before it is moved: what manages a node's interfaces (systemd's `MACAddressPolicy`)
/// gives another one to an interface that comes with one that the kernel chose. An agent without a namespace of its own
/// makes its own devices in the node's, and such a manager may come in between.
pub fn make_tuntap(
    agent: &AgentNamespace,
    netns: BorrowedFd<'_>,
    wanted: &DeviceSpec<'_>,
) -> Result<(CreatedDevice, Vec<Queue>), Error> {
    let kind = kind(wanted.device).ok_or(Error::NoQueues(wanted.device))?;
    doctor::tun_opens()?;
    let error = |source| Error::Queues { interface: wanted.interface.to_owned(), source };
    let made = agent.next_name();
    let queues =
        netns::run_in(agent, || Queue::create(kind, &made, wanted.queues))?.map_err(error)?;
    netlink::in_netns(agent, async |netlink| {
        let link = netlink.existing(&made).await?;
        if let Some(mac) = mac(wanted) {
            netlink.set_mac(link.index, mac).await?;
        }
        netlink.move_to(link.index, netns).await
    })?;
    let index = netlink::in_netns(netns, async |netlink| {
        let link = netlink.existing(&made).await?;
        netlink.rename(link.index, wanted.interface).await?;
        netlink.set_queue_len(link.index, QUEUE_LEN).await?;
        if let Some(segments) = wanted.segments {
            netlink.set_segments(link.index, segments).await?;
        }
        if kind == Kind::Tun {
            // Nobody listens to a link-local address on a device without a link.
            let key = format!("ipv6/conf/{}/addr_gen_mode", wanted.interface);
            sysctl::set_if_present(&key, "1")?;
        }
        set_up(&netlink, link.index, wanted).await?;
        Ok(link.index)
    })?;
    Ok((CreatedDevice { device: wanted.device, index, far_end: None }, queues))
}

fn make_veth(
    agent: &AgentNamespace,
    netns: BorrowedFd<'_>,
    wanted: &DeviceSpec<'_>,
    far_end: &str,
) -> Result<(CreatedDevice, OpenDevice), Error> {
    let ours = link(wanted);
    let mac = Some(ours.peer);
    let peer = Peer { name: wanted.interface, netns: Some(netns), mac, index: None };
    // Our end itself has another one: frames to `OWN_MAC` are then none of its kernel's (`PACKET_OTHERHOST`), which
    // drops them as soon as the packet socket has its copies, and looks for no route.
    let veth = Veth { name: far_end, mac: None, index: None, mtu: wanted.mtu, peer };
    let far_index = netlink::in_netns(agent, async |netlink| {
        netlink.add_veth(&veth).await?;
        let link = netlink.existing(far_end).await?;
        netlink.set_up(link.index).await?;
        Ok(link.index)
    })?;
    let index = netlink::in_netns(netns, async |netlink| {
        let link = netlink.existing(wanted.interface).await?;
        set_up(&netlink, link.index, wanted).await?;
        Ok(link.index)
    })?;
    let opened = netns::run_in(agent, || {
        PacketPort::open(far_index, &ours, wanted.queues, receipt(wanted.polling))
    })?;
    let queues = boxed(opened.map_err(|error| not_opened(wanted.interface, error))?);
    Ok((
        CreatedDevice { device: Device::Veth, index, far_end: Some(far_end.to_owned()) },
        queues.into(),
    ))
}

/// Reads another plugin's veth, whose two ends lie in the shelter.
pub(crate) fn open_relay(
    shelter: &OwnedFd,
    ends: &Ends,
    indices: [u32; 2],
    wanted: &DeviceSpec<'_>,
) -> Result<OpenDevice, Error> {
    let opened = netns::run_in(shelter, || {
        PacketPort::open_relay(indices, ends, wanted.queues, receipt(wanted.polling))
    })?;
    let [queues, host] = opened.map_err(|error| not_opened(wanted.interface, error))?.map(boxed);
    Ok(OpenDevice { queues, host: Some(host), settings: None })
}

fn receipt(polling: Polling) -> Receipt {
    match polling {
        Polling::Adaptive => Receipt::Calls,
        Polling::Busy => Receipt::Ring,
    }
}

fn not_opened(interface: &str, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::PermissionDenied => doctor::packet_sockets_refused(&source).into(),
        _ => Error::Queues { interface: interface.to_owned(), source },
    }
}

fn boxed(ports: Vec<PacketPort>) -> Queues {
    ports.into_iter().map(|port| Box::new(port) as Box<dyn PacketIo>).collect()
}

async fn set_up(
    netlink: &Netlink,
    index: u32,
    wanted: &DeviceSpec<'_>,
) -> Result<(), netlink::Error> {
    netlink.set_mtu(index, wanted.mtu).await?;
    sysctl::make_ipv6_static(wanted.interface)?;
    for address in wanted.addresses {
        netlink.add_address(index, IpNet::from(*address)).await?;
    }
    netlink.set_up(index).await
}

/// It is no error if there is none.
pub(crate) fn remove_link(netns: BorrowedFd<'_>, interface: &str) -> Result<(), Error> {
    netlink::in_netns(netns, async |netlink| match netlink.link(interface).await? {
        Some(link) => netlink.delete_link(link.index).await,
        None => Ok(()),
    })?;
    Ok(())
}
