//! Attachments: the pods of this node, their addresses and devices, and the work for them that is under way.

pub(super) mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use manx_policy_compiler::model::ObjectName;
use tokio::sync::mpsc;

use super::node_devices::{NodeDevices, OwnDevices};
use super::pod_request::{Answered, Caller, object_name, pod_name};
use super::pod_state::{Apart, AttachedPod, State};
use super::pod_walk::Pods;
use super::ports::PodPorts;
use super::view::View;
use crate::error::Error;
use crate::holding::{Holding, LastAgent};
use crate::pod_work::{Completed, PodWork};
use crate::server::Outcome;
use crate::settings::{Network, Settings};
use manx_api::{AttachmentId, PodName, Response};
use manx_calculation::calc::{HostSide, Local};
use manx_devices::device::{self, OpenDevice};
use manx_devices::pod_device::PodDevice;
use manx_devices::shelter;
use manx_ipam::file::FileStore;
use manx_ipam::host_local::{self, HostLocal, Reservation};
use manx_ipam::leases::Leases;
use manx_linux::netlink;

/// How long the devices of the last agent may take. A path may lead to a mount that does not answer.
const RESUMING: Duration = Duration::from_secs(5);

/// A pod's device, or why there is none.
pub(crate) type Made = Result<(PodDevice, OpenDevice), device::Error>;

/// What work for a pod has come to.
pub(crate) enum Done {
    /// It has addresses, or why not.
    Reserved(Result<Reservation, host_local::Error>),
    /// Its addresses and its device have another name, or why not.
    Renewed(Result<Reservation, host_local::Error>),
    /// It has a device, or why not.
    Made(Made),
    /// The same of one that this caller has made and handed over.
    HandedOver(Caller, Made),
    /// The caller that was to make its device has gone.
    NotHandedOver,
    /// Its device is gone.
    Removed,
    /// It has no addresses any more, or why it still has.
    Released(Result<(), host_local::Error>),
}

/// See the module.
pub(crate) struct Attachments {
    pub(super) pods: Pods,
    /// Replies that are sent when what they tell is in force.
    replies: Vec<Answered>,
    /// Who gives addresses. Another allocator would stand beside this one in an enum.
    addresses: HostLocal<FileStore>,
    work: PodWork<Done>,
    pub(super) holding: Arc<Holding>,
    pub(super) devices: NodeDevices,
    /// Whose network the pods are in.
    network: Network,
    /// The last number of an attachment.
    last: u32,
}

impl Attachments {
    /// No pods yet. Makes the node's own devices, whose queues are for the workers, and the receiver of all work that will
    /// be completed.
    pub(super) async fn open(
        settings: &Settings,
        blocks: &[ipnet::IpNet],
        uplink: &netlink::Link,
    ) -> Result<(Self, OwnDevices, mpsc::UnboundedReceiver<Completed<Done>>), Error> {
        let fresh = match settings.network {
            Network::Manx => Leases::new(blocks).map_err(host_local::Error::from)?,
            Network::OtherPlugin => {
                shelter::Lock::create(&shelter::path(&settings.socket))?;
                Leases::without_blocks()
            }
        };
        let key = host_local::key(&settings.name);
        let file = FileStore::new(settings.socket.with_extension("addresses"), key);
        let file = file.map_err(host_local::Error::from)?;
        let addresses = HostLocal::open(file, &settings.name, fresh).await?;
        let (devices, own) = NodeDevices::open(settings, uplink)?;
        let (work, completed) = PodWork::new(Arc::clone(&devices.namespace));
        let holding = Arc::new(Holding::new(&settings.socket));
        tokio::spawn(Arc::clone(&holding).watch());
        let attachments = Self {
            pods: Pods::default(),
            replies: Vec::new(),
            addresses,
            work,
            holding,
            devices,
            network: settings.network,
            last: 0,
        };
        Ok((attachments, own, completed))
    }

    /// What the last agent has left.
    pub(super) async fn resume(&self) -> LastAgent {
        let (holding, pattern) = (Arc::clone(&self.holding), self.devices.pattern);
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

    /// When the pods of the last agent are taken over or refused: those that only have addresses of it are apart. Behind
    /// another plugin these addresses are taken back: it gives addresses out as it likes.
    pub(super) async fn set_left_apart(&mut self) {
        if self.network == Network::OtherPlugin {
            // One that was refused keeps them until it is detached, which the other plugin's DEL comes after.
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

    /// The pods that tables name.
    pub(super) fn attached(&self) -> impl Iterator<Item = (&ObjectName, &AttachedPod)> {
        self.pods.attached()
    }

    /// The same, as the tables are made of them.
    pub(super) fn locals(&self) -> BTreeMap<&ObjectName, &Local> {
        self.attached().map(|(name, pod)| (name, &pod.local)).collect()
    }

    /// The pods of the last agent that were not taken over, and why.
    pub(super) fn refused(&self) -> impl Iterator<Item = (&ObjectName, &str)> {
        self.pods.states().filter_map(|(name, state, _)| Some((name, state.refused()?)))
    }

    /// The pods of this node that another plugin has connected and that this agent does not carry.
    pub(super) fn not_judged<'a>(&'a self, view: &'a View) -> impl Iterator<Item = PodName> + 'a {
        let all = (self.network == Network::OtherPlugin).then(|| view.pods_here());
        let is_carried = |name: &ObjectName| match self.pods.state(name) {
            None | Some(State::Apart(Apart::Lost | Apart::Left | Apart::Stuck(_))) => false,
            Some(_) => true,
        };
        all.into_iter().flatten().filter(move |name| !is_carried(name)).map(pod_name)
    }

    /// Whose network the pods are in.
    pub(super) fn network(&self) -> Network {
        self.network
    }

    /// A pod is attached: it gets an endpoint of its own.
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
        let local = Local { index, attachment, port, host, addresses, mtu };
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

    /// Who has which addresses.
    pub(super) fn leases(&self) -> Arc<Leases> {
        self.addresses.leases()
    }

    /// What a container runtime calls the pod's attachment. The lease says it; if there is none, the device that was
    /// refused.
    pub(super) fn id(&self, name: &ObjectName) -> Option<AttachmentId> {
        let pod = pod_name(name);
        let leases = self.leases();
        match leases.addresses(&pod) {
            Some(_) => leases.id(&pod).cloned(),
            None => self.pods.state(name)?.unleased().cloned(),
        }
    }

    /// Ends all changes of the leases: no file is written any more when this returns.
    pub(super) async fn close_leases(&self) {
        self.addresses.close().await;
    }
}
