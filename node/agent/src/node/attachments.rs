//! Attachments: the pods of this node, their addresses and devices, and the work in progress for them.

pub(super) mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use manx_policy_compiler::model::ObjectName;
use tokio::sync::mpsc;

use super::node_devices::{NodeDevices, OwnDevices};
use super::pod_request::{Caller, PendingReply, object_name, pod_name};
use super::pod_state::{Apart, AttachedPod, State};
use super::pod_walk::Pods;
use super::ports::PodPorts;
use super::view::View;
use crate::addresses::{self, Addresses};
use crate::error::Error;
use crate::pod_work::{Completed, PodWork};
use crate::pool_addresses::PoolAddresses;
use crate::restart_state::{LastAgent, RestartState};
use crate::server::Outcome;
use crate::settings::{Datastore, Ipam, Network, Settings};
use manx_api::{AttachmentId, PodName, Response};
use manx_calculation::calc::{HostSide, LocalPod};
use manx_devices::device::{self, OpenDevice};
use manx_devices::pod_device::PodDevice;
use manx_devices::shelter;
use manx_ipam::file::FileStore;
use manx_ipam::host_local::{self, HostLocal, Reservation};
use manx_ipam::leases::Leases;
use manx_linux::netlink;

/// The time for examining the devices of the last agent. A path may lead to a mount that does not answer.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(5);

/// A pod's device, or the error of making it.
pub(crate) type DeviceResult = Result<(PodDevice, OpenDevice), device::Error>;

/// The result of work for a pod.
pub(crate) enum WorkResult {
    /// The reserved addresses.
    Reserved(Result<Reservation, addresses::Error>),
    /// The addresses of an attached pod that has received another attachment id.
    Renewed(Result<Reservation, addresses::Error>),
    /// The device that the agent has made.
    Made(DeviceResult),
    /// The device that this caller has made and handed over.
    HandedOver(Caller, DeviceResult),
    /// The caller that should make the device has disconnected.
    NotHandedOver,
    /// The device is removed.
    Removed,
    /// The addresses are released.
    Released(Result<(), addresses::Error>),
}

/// See the module.
pub(crate) struct Attachments {
    pub(super) pods: Pods,
    /// Replies that wait until the changes that they report are in force.
    replies: Vec<PendingReply>,
    /// The allocator of addresses.
    addresses: Addresses,
    work: PodWork<WorkResult>,
    pub(super) restart_state: Arc<RestartState>,
    pub(super) devices: NodeDevices,
    network: Network,
    /// The number of the last attachment.
    last: u32,
}

/// The initial leases of a node without pods. If another plugin or the cluster's pools give out addresses, the leases only
/// contain named addresses. They never choose one from a block, because another node may have it.
fn fresh_leases(settings: &Settings, blocks: &[ipnet::IpNet]) -> Result<Leases, Error> {
    match (settings.network, settings.ipam) {
        (Network::Manx, Ipam::HostLocal) => {
            Ok(Leases::new(blocks).map_err(host_local::Error::from)?)
        }
        (Network::Manx, Ipam::Calico) => Ok(Leases::of_pools()),
        (Network::OtherPlugin, _) => Ok(Leases::without_blocks()),
    }
}

/// Calico's IPAM, if it gives out this node's addresses.
fn pool_addresses(settings: &Settings) -> Result<Option<PoolAddresses>, Error> {
    match (settings.network, settings.ipam, &settings.datastore) {
        (Network::Manx, Ipam::Calico, Datastore::Kubernetes { access, .. }) => {
            Ok(Some(PoolAddresses::new(&settings.name, (**access).clone())))
        }
        (Network::Manx, Ipam::Calico, Datastore::Directory(path)) => {
            Err(Error::NoPools(path.clone()))
        }
        (Network::Manx, Ipam::HostLocal, _) | (Network::OtherPlugin, ..) => Ok(None),
    }
}

impl Attachments {
    /// Makes the node's own devices, whose queues go to the workers, and the receiver of all results of work. The result
    /// has no pods yet.
    pub(super) async fn open(
        settings: &Settings,
        blocks: &[ipnet::IpNet],
        uplink: &netlink::Link,
    ) -> Result<(Self, OwnDevices, mpsc::UnboundedReceiver<Completed<WorkResult>>), Error> {
        if settings.network == Network::OtherPlugin {
            shelter::Lock::create(&shelter::path(&settings.socket))?;
        }
        let fresh = fresh_leases(settings, blocks)?;
        let key = host_local::key(&settings.name);
        let file = FileStore::new(settings.socket.with_extension("addresses"), key);
        let file = file.map_err(host_local::Error::from)?;
        let leases = HostLocal::open(file, &settings.name, fresh).await?;
        let addresses = Addresses::new(leases, pool_addresses(settings)?);
        let (devices, own) = NodeDevices::open(settings, uplink)?;
        let (work, completed) = PodWork::new(Arc::clone(&devices.namespace));
        let restart_state = Arc::new(RestartState::new(&settings.socket));
        tokio::spawn(Arc::clone(&restart_state).watch());
        let attachments = Self {
            pods: Pods::default(),
            replies: Vec::new(),
            addresses,
            work,
            restart_state,
            devices,
            network: settings.network,
            last: 0,
        };
        Ok((attachments, own, completed))
    }

    /// Loads the devices and flow records of the last agent.
    pub(super) async fn load_last_agent(&self) -> LastAgent {
        let (restart_state, pattern) = (Arc::clone(&self.restart_state), self.devices.pattern);
        let loading = tokio::task::spawn_blocking(move || restart_state.load(&pattern));
        match tokio::time::timeout(RESTORE_TIMEOUT, loading).await {
            Ok(Ok(last)) => last,
            Ok(Err(error)) => resume_unwind(error.into_panic()),
            Err(_) => {
                tracing::error!(
                    "the devices of the last agent cannot be examined within {} s: pods have to be attached anew",
                    RESTORE_TIMEOUT.as_secs()
                );
                LastAgent::default()
            }
        }
    }

    /// Sets the other pods of the last agent to [`State::Apart`](super::pod_state::State::Apart): they have addresses but
    /// no device. With another plugin these addresses are released, because that plugin may give them to other pods. Call
    /// this after the devices of the last agent are restored or refused.
    pub(super) async fn set_left_apart(&mut self) {
        if self.network == Network::OtherPlugin {
            // A refused pod keeps its addresses until it is detached. The other plugin's DEL comes later.
            let is_here = |pod: &PodName| self.pods.state(&object_name(pod)).is_some();
            if let Err(error) = self.addresses.retain(is_here).await {
                tracing::error!(%error, "addresses of pods that are gone stay taken");
            }
        }
        for (pod, ..) in self.leases().iter() {
            let name = object_name(pod);
            if self.pods.state(&name).is_none() {
                self.pods.set_apart(&name, Apart::Left);
            }
        }
    }

    /// The pods that the tables contain.
    pub(super) fn attached(&self) -> impl Iterator<Item = (&ObjectName, &AttachedPod)> {
        self.pods.attached()
    }

    /// The attached pods in the form from which tables are calculated.
    pub(super) fn locals(&self) -> BTreeMap<&ObjectName, &LocalPod> {
        self.attached().map(|(name, pod)| (name, &pod.local)).collect()
    }

    /// The pods of the last agent that were refused, with the reasons.
    pub(super) fn refused(&self) -> impl Iterator<Item = (&ObjectName, &str)> {
        self.pods.states().filter_map(|(name, state, _)| Some((name, state.refused()?)))
    }

    /// The pods of this node that another plugin has connected and whose links this agent does not have.
    pub(super) fn not_judged<'a>(&'a self, view: &'a View) -> impl Iterator<Item = PodName> + 'a {
        let all = (self.network == Network::OtherPlugin).then(|| view.pods_here());
        let is_carried = |name: &ObjectName| match self.pods.state(name) {
            None | Some(State::Apart(Apart::Lost | Apart::Left | Apart::Stuck(_))) => false,
            Some(_) => true,
        };
        all.into_iter().flatten().filter(move |name| !is_carried(name)).map(pod_name)
    }

    /// The program that owns the pod network.
    pub(super) fn network(&self) -> Network {
        self.network
    }

    /// Adds an attached pod, with its own endpoint index.
    pub(super) fn insert(
        &mut self,
        name: &ObjectName,
        device: PodDevice,
        PodPorts { own: port, host }: PodPorts,
        addresses: Vec<std::net::IpAddr>,
    ) {
        self.last += 1;
        let (index, attachment, mtu) = (self.free_index(), self.last, device.mtu());
        let host = host.map(|port| HostSide { port, gateways: device.gateways().to_vec() });
        let local = LocalPod { index, attachment, port, host, addresses, mtu };
        self.pods.attach(name, AttachedPod { device, local });
    }

    /// The lowest endpoint index that no attached pod has.
    fn free_index(&self) -> u32 {
        let taken: BTreeSet<u32> = self.attached().map(|(_, pod)| pod.local.index).collect();
        (0..)
            .zip(&taken)
            .find(|(index, taken)| index != *taken)
            .map_or(taken.len() as u32, |it| it.0)
    }

    /// Queues a reply until all changes so far are in force.
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

    /// The addresses of each pod.
    pub(super) fn leases(&self) -> Arc<Leases> {
        self.addresses.leases()
    }

    /// The container runtime's identification of a pod's attachment. It comes from the pod's lease, or without a lease from
    /// a refused device.
    pub(super) fn id(&self, name: &ObjectName) -> Option<AttachmentId> {
        let pod = pod_name(name);
        let leases = self.leases();
        match leases.addresses(&pod) {
            Some(_) => leases.id(&pod).cloned(),
            None => self.pods.state(name)?.unleased().cloned(),
        }
    }

    /// Calico's IPAM, if it gives out the addresses.
    pub(super) const fn pools(&self) -> Option<&PoolAddresses> {
        self.addresses.pools()
    }

    /// Ends all changes of the leases. No file is written any more when this returns.
    pub(super) async fn close_leases(&self) {
        self.addresses.close().await;
    }
}
