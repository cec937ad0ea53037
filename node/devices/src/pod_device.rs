//! A pod's interface.

use std::fs;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use manx_dataplane::port::link::Mac;
use manx_dataplane::port::relay::Ends;
use manx_dataplane::port::tuntap::{self, Kind, Queue};
use manx_dataplane::sys;

use crate::device::{self, AgentNamespace, CreatedDevice, DeviceSpec, Error, OpenDevice};
use crate::shelter::Shelter;
use manx_api::{Attach, Device};
use manx_linux::netlink::{self, Route};
use manx_linux::netns;

/// The kind of device that pods should get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preference {
    /// TUN if it is available, otherwise veth.
    Auto,
    /// This kind and no other.
    Only(Device),
}

impl Preference {
    /// The preference's name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Only(device) => device.name(),
        }
    }
}

/// A pod's interface, without its queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodDevice {
    netns: PathBuf,
    /// The namespace's identity, not a descriptor of it: an open descriptor would keep the namespace and the device
    /// alive.
    identity: netns::Identity,
    interface: String,
    maker: Maker,
    mtu: u32,
    /// The hardware address, if it has one.
    mac: Option<Mac>,
}

/// The maker of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Maker {
    /// The agent, which also removes it.
    Agent(CreatedDevice),
    /// Another process, which handed over the queues of a device of this kind. The device ends with its queues.
    Caller(Kind),
    /// Another plugin. The CNI plugin removes the stand-in of its host end. The value is the node's addresses on the link.
    Plugin(Vec<IpAddr>),
}

/// Makes the interface in the pod's namespace, which is at `path` (as `CNI_NETNS`), and gives it its addresses and a
/// default route of each family. The pod knows a gateway's hardware address from the start, so it needs no reply to
/// ARP, not even while there is no agent. The pod's loopback interface is set up too.
///
/// # Errors
/// [`Error::Exists`] if the pod has an interface of this name. The caller recognises a repeated attachment by
/// [`PodDevice::matches`]. After an error nothing remains.
pub fn attach(
    agent: &AgentNamespace,
    path: &Path,
    wanted: &DeviceSpec<'_>,
) -> Result<(PodDevice, OpenDevice), Error> {
    if !agent.is_own() {
        return Err(Error::NotAllowed);
    }
    let netns = netns::open(path)?;
    let identity = netns::identity(&netns)
        .map_err(|source| netns::Error::Open { path: path.to_owned(), source })?;
    let (made, held) = device::make(agent, netns.as_fd(), &place(path), wanted)?;
    let routes = set_routes(netns.as_fd(), &made, wanted.addresses);
    let (interface, maker) = (wanted.interface.to_owned(), Maker::Agent(made));
    let (mtu, mac) = (wanted.mtu, device::mac(wanted));
    let pod = PodDevice { identity, netns: path.to_owned(), interface, maker, mtu, mac };
    match routes {
        Ok(()) => Ok((pod, held)),
        Err(error) => {
            // The first error is the one to report.
            let _ = pod.detach(agent);
            Err(error)
        }
    }
}

/// Makes a device as [`attach`] does, for another process to hold, and returns its queues.
///
/// # Errors
/// Those of [`attach`], and [`Error::NoQueues`] for a device that cannot be handed over.
pub fn make(netns: &OwnedFd, path: &Path, wanted: &DeviceSpec<'_>) -> Result<Vec<OwnedFd>, Error> {
    let agent = match wanted.queues {
        1 => AgentNamespace::of_pod(netns)?,
        _ => AgentNamespace::create()?,
    };
    device::check_free(netns.as_fd(), &place(path), wanted.interface)?;
    let (made, queues) = device::make_tuntap(&agent, netns.as_fd(), wanted)?;
    set_routes(netns.as_fd(), &made, wanted.addresses)?;
    Ok(queues.into_iter().map(OwnedFd::from).collect())
}

/// Removes a device of any kind, even while workers have its queues, so that the next device can have its name at once.
/// It is no error if there is none.
pub fn remove(netns: &OwnedFd, interface: &str) -> Result<(), Error> {
    device::remove_link(netns.as_fd(), interface)
}

fn place(path: &Path) -> String {
    format!("the pod's network namespace {}", path.display())
}

/// Takes over a device that [`make`] made in another process, in the namespace of this identity.
///
/// # Errors
/// [`Error::NotQueues`] if the descriptors are not the wanted number of queues, with virtio headers, of one device of
/// that name and kind.
pub fn adopt(
    queues: Vec<OwnedFd>,
    path: &Path,
    identity: netns::Identity,
    wanted: &DeviceSpec<'_>,
) -> Result<(PodDevice, OpenDevice), Error> {
    adopt_recognized(recognize(queues, wanted)?, path, identity, wanted)
}

/// Checks that descriptors are queues of the wanted TUN or TAP device.
fn recognize(queues: Vec<OwnedFd>, wanted: &DeviceSpec<'_>) -> Result<Vec<Queue>, Error> {
    let open = |queue| {
        Queue::from_fd(queue).map_err(|error| Error::NotQueues {
            interface: wanted.interface.to_owned(),
            found: error.to_string(),
            expected: "those of a TUN or TAP device".to_owned(),
        })
    };
    queues.into_iter().map(open).collect()
}

fn adopt_recognized(
    queues: Vec<Queue>,
    path: &Path,
    identity: netns::Identity,
    wanted: &DeviceSpec<'_>,
) -> Result<(PodDevice, OpenDevice), Error> {
    let kind = device::kind(wanted.device).ok_or(Error::NoQueues(wanted.device))?;
    let expected = (wanted.interface, kind, wanted.queues > 1);
    let describe = |(_, kind, has_several): (&str, Kind, bool)| {
        format!("a {kind} device of {}", if has_several { "several queues" } else { "one queue" })
    };
    let wrong = |found: String| Error::NotQueues {
        interface: wanted.interface.to_owned(),
        found,
        expected: format!("{} of {} with this name", wanted.queues, describe(expected)),
    };
    if queues.len() != wanted.queues {
        return Err(wrong(format!("there are {}", queues.len())));
    }
    for queue in &queues {
        let found = (queue.name(), queue.kind(), queue.has_several());
        if found != expected {
            return Err(wrong(format!("one is of {}, {}", found.0, describe(found))));
        }
    }
    let held = device::open(queues, wanted)?;
    let (netns, interface) = (path.to_owned(), wanted.interface.to_owned());
    let (maker, mtu, mac) = (Maker::Caller(kind), wanted.mtu, device::mac(wanted));
    Ok((PodDevice { netns, identity, interface, maker, mtu, mac }, held))
}

/// Restores a device of the last agent, with its queues from the holder. The kernel knows whether it is TUN or TAP,
/// whichever kind this agent makes.
///
/// # Errors
/// Those of [`adopt`], and [`Error::NotQueues`] if the device is not in the namespace that is at `path` now.
pub fn restore(
    queues: Vec<OwnedFd>,
    path: &Path,
    wanted: &DeviceSpec<'_>,
) -> Result<(PodDevice, OpenDevice), Error> {
    let opened = |source| netns::Error::Open { path: path.to_owned(), source };
    let there = netns::Identity::from(&fs::metadata(path).map_err(opened)?);
    let wrong = |found: String| Error::NotQueues {
        interface: wanted.interface.to_owned(),
        found,
        expected: format!("a device in the network namespace {}", path.display()),
    };
    for queue in &queues {
        let of_device = sys::tun::namespace(queue.as_fd()).and_then(netns::identity);
        match of_device {
            Ok(found) if found == there => {}
            Ok(_) => return Err(wrong("the device lies in another namespace".to_owned())),
            Err(error) => return Err(wrong(format!("the device is gone ({error})"))),
        }
    }
    let queues = recognize(queues, wanted)?;
    let device = device::device_of(queues.first().map_or(Kind::Tun, Queue::kind));
    adopt_recognized(queues, path, there, &DeviceSpec { device, ..*wanted })
}

/// Opens the link of a pod that another plugin has connected. Its two ends are in the shelter, which was handed over or
/// kept by the holder. `netns` is the pod's.
///
/// # Errors
/// [`Error::NotQueues`] if the shelter has no pair of this attachment.
pub fn relay(
    shelter: Vec<OwnedFd>,
    attach: &Attach,
    netns: netns::Identity,
    wanted: &DeviceSpec<'_>,
) -> Result<(PodDevice, OpenDevice), Error> {
    let wrong = |found: String| Error::NotQueues {
        interface: wanted.interface.to_owned(),
        found,
        expected: "the network namespace in which the ends of its link lie".to_owned(),
    };
    let made = attach.made.as_ref().ok_or_else(|| wrong("no other plugin made it".to_owned()))?;
    let [netns_of_ends] = <[OwnedFd; 1]>::try_from(shelter)
        .map_err(|found| wrong(format!("there are {}", found.len())))?;
    let shelter = Shelter::from(netns_of_ends);
    let pair = shelter.pair(made.index).map_err(|error| wrong(error.to_string()))?;
    let pair = pair
        .filter(|pair| pair.attachment == attach.id())
        .ok_or_else(|| wrong(format!("it has no link {} of this attachment", made.index)))?;
    let ends = Ends { pod: made.pod, node: made.node, addresses: attach.addresses.clone() };
    let indices = [pair.index, pair.inner_index()];
    let open = device::open_relay(shelter.netns(), &ends, indices, wanted)?;
    let (path, interface) = (attach.netns.clone(), attach.interface.clone());
    let device = PodDevice {
        netns: path,
        identity: netns,
        interface,
        maker: Maker::Plugin(made.gateways.clone()),
        mtu: made.mtu,
        mac: Some(made.pod),
    };
    Ok((device, open))
}

/// Restores a link of the last agent, as [`relay`] opens it, with the shelter from the holder.
///
/// # Errors
/// Those of [`relay`], and an error if there is no namespace at the pod's path now.
pub fn restore_relay(
    shelter: Vec<OwnedFd>,
    attach: &Attach,
    wanted: &DeviceSpec<'_>,
) -> Result<(PodDevice, OpenDevice), Error> {
    let path = &attach.netns;
    let opened = |source| netns::Error::Open { path: path.clone(), source };
    let there = netns::Identity::from(&fs::metadata(path).map_err(opened)?);
    relay(shelter, attach, there, wanted)
}

fn set_routes(
    netns: BorrowedFd<'_>,
    made: &CreatedDevice,
    addresses: &[IpAddr],
) -> Result<(), Error> {
    netlink::in_netns(netns, async |netlink| {
        let lo = netlink.existing("lo").await?;
        netlink.set_up(lo.index).await?;
        for address in addresses {
            if let Some((gateway, mac)) = made.neighbour(*address) {
                netlink.set_neighbour(made.index, gateway, mac).await?;
            }
            netlink.replace_route(&made.route(Route::default_of(*address), None)).await?;
        }
        Ok(())
    })?;
    Ok(())
}

impl PodDevice {
    pub const fn device(&self) -> Device {
        match &self.maker {
            Maker::Agent(made) => made.device,
            Maker::Caller(kind) => device::device_of(*kind),
            Maker::Plugin(_) => Device::Veth,
        }
    }

    /// The node's own addresses on the link, if another plugin made it.
    pub fn gateways(&self) -> &[IpAddr] {
        match &self.maker {
            Maker::Plugin(gateways) => gateways,
            Maker::Agent(_) | Maker::Caller(_) => &[],
        }
    }

    /// The MTU in bytes.
    pub const fn mtu(&self) -> u32 {
        self.mtu
    }

    /// The hardware address, if it has one.
    pub const fn mac(&self) -> Option<Mac> {
        self.mac
    }

    /// Whether a repeated attachment means this interface: path and name are the same, and the namespace that is now at the
    /// path is this interface's. (The pod's namespace may have been made again.)
    pub fn matches(&self, path: &Path, netns: Option<netns::Identity>, interface: &str) -> bool {
        self.netns == path && netns == Some(self.identity) && self.interface == interface
    }

    /// Removes the interface, even while workers have its queues, so that the next one can have its name at once. It is
    /// no error if the interface or the pod's namespace is gone already. A device that another process made ends with
    /// its queues (including the holder's), or that process removes it.
    pub fn detach(&self, agent: &AgentNamespace) -> Result<(), Error> {
        let Maker::Agent(made) = &self.maker else { return Ok(()) };
        if made.device.ends_with_queues()
            && let Ok(netns) = netns::open(&self.netns)
            && netns::identity(&netns).is_ok_and(|found| found == self.identity)
        {
            // The index is used because a pod may have renamed the interface.
            netlink::in_netns(&netns, async |netlink| netlink.delete_link(made.index).await)?;
        }
        made.remove(agent)
    }
}

/// Chooses the kind of device that pods get, with a queue for each worker. The choice and its reason are logged, so call it
/// once.
///
/// # Errors
/// TUN or TAP is requested, and `/dev/net/tun` makes no device in the calling thread's network namespace, which is the
/// node's.
pub fn choose(preference: Preference, workers: usize) -> Result<Device, Error> {
    let wanted = match preference {
        Preference::Auto => Device::Tun,
        Preference::Only(device) => device,
    };
    if device::kind(wanted).is_none() {
        return Ok(wanted);
    }
    match manx_linux::doctor::tun() {
        Ok(_) => {
            if workers > 1 && tuntap::owner().is_ok_and(|owner| owner.is_none()) {
                tracing::warn!(
                    "this user namespace knows one user: a process in a pod that may open /dev/net/tun may take a queue of the pod's \
                     device; map a second user, or run one worker"
                );
            }
            Ok(wanted)
        }
        Err(lack) if preference == Preference::Auto => {
            tracing::info!(reason = %lack, "pods are attached by veth");
            Ok(Device::Veth)
        }
        Err(lack) => Err(lack.into()),
    }
}
