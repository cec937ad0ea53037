//! A pod's interface.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use manx_dataplane::port::tun;

use super::device::{self, AgentNamespace, CreatedDevice, DeviceSpec, Error, OpenDevice};
use manx_api::Device;
use manx_linux::netlink::{self, Route};
use manx_linux::netns;

/// Which kind of device pods shall get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preference {
    /// TUN where it can be had, else veth.
    Auto,
    /// This kind and no other.
    Only(Device),
}

/// A pod's interface, without its queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodDevice {
    netns: PathBuf,
    /// Holds the namespace's identity, not the namespace: a descriptor kept would keep it and the device alive.
    identity: netns::Identity,
    interface: String,
    made: CreatedDevice,
    mtu: u32,
}

/// Makes the interface in the pod's namespace, which is at `path` (as `CNI_NETNS`), and gives it its addresses and a
/// default route of each family. The pod's loopback interface is set up too.
///
/// # Errors
/// [`Error::Exists`] when the pod has an interface of this name: repeating an attachment is the caller's to recognise,
/// by [`PodDevice::is`]. Nothing is left behind after an error.
pub fn attach(
    agent: &AgentNamespace,
    path: &Path,
    wanted: &DeviceSpec<'_>,
) -> Result<(PodDevice, OpenDevice), Error> {
    let netns = netns::open(path)?;
    let identity = netns::identity(&netns)
        .map_err(|source| netns::Error::Open { path: path.to_owned(), source })?;
    let place = format!("the pod's network namespace {}", path.display());
    let (made, held) = device::make(agent, netns.as_fd(), &place, wanted)?;
    let interface = wanted.interface.to_owned();
    let pod = PodDevice { identity, netns: path.to_owned(), interface, made, mtu: wanted.mtu };
    match set_routes(netns.as_fd(), &pod.made, wanted.addresses) {
        Ok(()) => Ok((pod, held)),
        Err(error) => {
            // The first error is the one to tell.
            let _ = pod.detach(agent);
            Err(error)
        }
    }
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
            netlink.replace_route(&made.route(Route::default_of(*address), None)).await?;
        }
        Ok(())
    })?;
    Ok(())
}

impl PodDevice {
    /// The kind of device.
    pub const fn device(&self) -> Device {
        self.made.device
    }

    /// The MTU in bytes.
    pub const fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Whether this is the interface that a repeated attachment asks for: at the same path, in the namespace that is
    /// there now (it may have been made anew), of the same name.
    pub fn is(&self, path: &Path, netns: Option<netns::Identity>, interface: &str) -> bool {
        self.netns == path && netns == Some(self.identity) && self.interface == interface
    }

    /// Removes the interface, even while workers hold its queues: the next one may have its name at once. Repeating it,
    /// or a pod whose namespace is gone, is no error.
    pub fn detach(&self, agent: &AgentNamespace) -> Result<(), Error> {
        if self.made.device == Device::Tun
            && let Ok(netns) = netns::open(&self.netns)
            && netns::identity(&netns).is_ok_and(|found| found == self.identity)
        {
            // By its index: a pod may have given it another name.
            netlink::in_netns(&netns, async |netlink| netlink.delete_link(self.made.index).await)?;
        }
        self.made.remove(agent)
    }
}

/// Which kind of device pods get, with a queue for each worker. Says in the log which and why: call it once.
///
/// # Errors
/// TUN is asked for and `/dev/net/tun` makes no device in the calling thread's network namespace, which is the node's.
pub fn choose(preference: Preference, workers: usize) -> Result<Device, Error> {
    match (preference, manx_linux::doctor::tun()) {
        (Preference::Only(Device::Veth), _) => Ok(Device::Veth),
        (Preference::Only(Device::Tun) | Preference::Auto, Ok(_)) => {
            if workers > 1 && tun::owner().is_ok_and(|owner| owner.is_none()) {
                tracing::warn!(
                    "this user namespace knows one user: a process in a pod that may open /dev/net/tun may take a queue of the pod's \
                     device; map a second user, or run one worker"
                );
            }
            Ok(Device::Tun)
        }
        (Preference::Only(Device::Tun), Err(lack)) => Err(lack.into()),
        (Preference::Auto, Err(lack)) => {
            tracing::info!(reason = %lack, "pods are attached by veth");
            Ok(Device::Veth)
        }
    }
}
