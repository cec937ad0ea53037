//! Devices whose packets Manx carries: an interface in a namespace of a pod or of the node, whose queues the agent has.
//!
//! A TUN or TAP device is entirely in that namespace. A veth has its far end in a namespace of the agent's own
//! ([`AgentNamespace`]), where a packet socket reads it. Such a socket only gets copies, so the kernel must be unable
//! to do anything with a packet in that namespace: no address, no IPv6, no forwarding.

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
use manx_linux::netlink::{self, Hop, Netlink, Peer, Route, Veth};
use manx_linux::netns::{self, sysctl};

/// The hardware address of Manx's end of every link. It is the same as that of Calico's host ends. It is never seen
/// beyond the link.
const OWN_MAC: Mac = [0xee; 6];
/// The first bytes of the hardware addresses of devices: locally administered, unicast, and the same as some other CNI
/// plugins use.
const MAC_PREFIX: [u8; 2] = [0x0a, 0x58];
/// The number of packets (a super-packet counts once) that a TUN or TAP device keeps while the workers are busy; the
/// driver's default is 500.
const QUEUE_LEN: u32 = 1000;

/// The reason why a device cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Namespace(#[from] netns::Error),
    /// The kernel refuses a link, an address or a route.
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    /// The interface's name is taken.
    #[error(
        "there is an interface {interface} in {place} already, and it is not Manx's: remove it (ip link delete {interface}) or ask \
         for another name"
    )]
    Exists {
        interface: String,
        /// The name of the namespace in messages.
        place: String,
    },
    /// The environment does not allow this kind of device.
    #[error(transparent)]
    Lacking(#[from] Lack),
    /// The agent may not enter namespaces, and has no namespace of its own.
    #[error(
        "this agent runs without CAP_SYS_ADMIN and makes no devices of pods: attach by the CNI plugin, which makes TUN and TAP \
         devices itself, or give the agent CAP_SYS_ADMIN, which veth pods need anyway"
    )]
    NotAllowed,
    /// The device cannot be made from queues, because it is neither TUN nor TAP.
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
        interface: String,
        /// A description of the descriptors.
        found: String,
        /// A description of the reserved device.
        expected: String,
    },
    /// The queues cannot be opened.
    #[error("the queues of interface {interface} cannot be opened: {source}")]
    Queues { interface: String, source: io::Error },
}

impl Error {
    /// The error kind that the agent's socket reports.
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

/// The agent's own namespace, in which devices are made, and in which the far ends of veths are. It and the veths exist
/// as long as this value: when the agent dies, they are gone.
#[derive(Debug)]
pub struct AgentNamespace {
    netns: OwnedFd,
    /// Whether the namespace is the agent's alone. Without `CAP_SYS_ADMIN` it is the one in which the agent was
    /// started.
    is_own: bool,
    made: AtomicU32,
}

impl AgentNamespace {
    /// Makes the namespace, with IPv6 and forwarding off, and no replies to ARP.
    pub fn create() -> Result<Self, Error> {
        let netns = netns::create()?;
        netns::run_in(&netns, || sysctl::apply(sysctl::SILENT))?.map_err(netlink::Error::from)?;
        Ok(Self { netns, is_own: true, made: AtomicU32::new(0) })
    }

    /// Makes the namespace, or takes the caller's own if the caller lacks the capability. In the caller's own namespace
    /// only the node's TUN or TAP device can be made.
    pub fn create_if_allowed() -> Result<Self, Error> {
        match Self::create() {
            Err(Error::Namespace(netns::Error::Unshare(errno))) if errno as i32 == libc::EPERM => {
                Ok(Self { netns: netns::current()?, is_own: false, made: AtomicU32::new(0) })
            }
            result => result,
        }
    }

    /// Takes a pod's namespace, for a device with one queue. No other process can open a second queue, so the device
    /// needs no separate namespace. Making and removing a namespace costs more than the device.
    pub fn of_pod(netns: &OwnedFd) -> Result<Self, Error> {
        let netns = netns.try_clone().map_err(netns::Error::Thread)?;
        Ok(Self { netns, is_own: false, made: AtomicU32::new(0) })
    }

    /// Whether devices of pods can be made here.
    pub const fn is_own(&self) -> bool {
        self.is_own
    }

    /// Returns a name that no interface in this namespace has had. Names are unique because several threads make devices
    /// here at once. In a shared namespace other processes cannot guess it before the device has its owner.
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

/// The description of a device to make.
#[derive(Debug, Clone, Copy)]
pub struct DeviceSpec<'a> {
    pub interface: &'a str,
    pub device: Device,
    /// The interface's addresses. Each is alone on the link (/32, /128).
    pub addresses: &'a [IpAddr],
    /// The interface's MTU in bytes.
    pub mtu: u32,
    /// The most segments of a super-packet from a TUN or TAP device; `None` sets no limit.
    pub segments: Option<u32>,
    /// The number of queues, one for each worker.
    pub queues: usize,
    /// Whether the workers that own the queues sleep.
    pub polling: Polling,
}

/// A device that was made, without its queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatedDevice {
    pub device: Device,
    /// The interface's index in its namespace.
    pub index: u32,
    /// The name of a veth's far end in the agent's namespace.
    far_end: Option<String>,
}

/// The queues of a device, in worker order.
pub type Queues = Vec<Box<dyn PacketIo>>;

/// The handles that keep a device open.
pub struct OpenDevice {
    pub queues: Queues,
    /// The queues of the device's host side, if another plugin has connected the pod.
    pub host: Option<Queues>,
    /// The settings of a TUN or TAP device with several queues, which other processes may change, too.
    pub settings: Option<Settings>,
}

impl From<Queues> for OpenDevice {
    fn from(queues: Queues) -> Self {
        Self { queues, host: None, settings: None }
    }
}

/// Makes the device in `netns`, which messages call `place`. Afterwards it has its addresses and MTU, is up, and its queues
/// are open. After an error nothing remains.
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
                // The first error is the one to report.
                let _ = remove_link(agent.as_fd(), &far_end);
            })
        }
    }
}

/// The kind of a device of `/dev/net/tun`; `None` for every other device.
pub(crate) const fn kind(device: Device) -> Option<Kind> {
    match device {
        Device::Tun => Some(Kind::Tun),
        Device::Tap => Some(Kind::Tap),
        Device::Veth => None,
    }
}

/// The kind of device whose queues are of this kind.
pub(crate) const fn device_of(kind: Kind) -> Device {
    match kind {
        Kind::Tun => Device::Tun,
        Kind::Tap => Device::Tap,
    }
}

/// Returns the hardware address of a device. Its last bytes are those of the device's first address; without an address
/// they follow from the interface's name. The process that makes the device and the agent that reads its queues both
/// calculate it, without communication.
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
        // A link-local next hop of IPv6 is on the link anyway.
        let onlink = via.is_some_and(|via| via.is_ipv4());
        let hop = Hop { via, device: self.index, onlink };
        Route { source, ..Route::by(destination, [hop]) }
    }

    /// The next hop of routes of this address's family, and its hardware address. `None` if routes need none.
    pub fn neighbour(&self, of: IpAddr) -> Option<(IpAddr, Mac)> {
        self.gateway(of).map(|gateway| (gateway, OWN_MAC))
    }

    fn gateway(&self, of: IpAddr) -> Option<IpAddr> {
        self.device.is_ethernet().then(|| manx_api::gateway(of))
    }

    /// Removes the parts that closing the queues does not remove. Repeating it is no error.
    pub fn remove(&self, agent: &AgentNamespace) -> Result<(), Error> {
        match &self.far_end {
            // A TUN or TAP device ends with its last queue.
            None => Ok(()),
            Some(far_end) => remove_link(agent.as_fd(), far_end),
        }
    }
}

/// Opens a TUN or TAP device by its queues.
pub fn open(queues: Vec<Queue>, wanted: &DeviceSpec<'_>) -> Result<OpenDevice, Error> {
    let error = |source| Error::Queues { interface: wanted.interface.to_owned(), source };
    // No other process can get a queue of a device with one queue, so no other process can change its settings.
    let several = queues.first().filter(|queue| queue.has_several());
    let settings = several.map(Queue::settings).transpose().map_err(error)?;
    let queues = queues.into_iter().map(|queue| queue.into_port(|| link(wanted))).collect();
    Ok(OpenDevice { queues, host: None, settings })
}

/// The device is made in the agent's namespace under a name of its own, then moved and renamed. In the agent's
/// namespace no other process could open a queue before the device has an owner.
///
/// It gets its hardware address before it is moved: a manager of the node's interfaces (systemd's `MACAddressPolicy`)
/// replaces an address that the kernel chose. An agent without a namespace of its own makes its devices in the node's
/// namespace, where such a manager may interfere.
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
            // A link-local address is useless on a TUN device, which has no link with neighbours.
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
    // The hardware address of this end is not `OWN_MAC`. So frames to `OWN_MAC` are not for this namespace's kernel
    // (`PACKET_OTHERHOST`): it drops them as soon as the packet socket has its copies, without a route lookup.
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

/// Opens another plugin's veth, whose two ends are in the shelter.
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

/// Removes an interface. It is no error if there is none.
pub(crate) fn remove_link(netns: BorrowedFd<'_>, interface: &str) -> Result<(), Error> {
    netlink::in_netns(netns, async |netlink| match netlink.link(interface).await? {
        Some(link) => netlink.delete_link(link.index).await,
        None => Ok(()),
    })?;
    Ok(())
}
