//! The agent's state, and what each event does to it. One thread owns it; nothing in it is shared or locked.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use crossbeam::channel::Receiver;
use ipnet::IpNet;
use manx_dataplane::counters::PortCounters;
use manx_dataplane::encapsulation::Encapsulation;
use manx_dataplane::port::PacketIo;
use manx_dataplane::port::link::ETHERNET_LEN;
use manx_dataplane::report::{Denied, Report};
use manx_dataplane::tables::{Connections, HostPort, PortId, Tables, Via};
use manx_dataplane::worker::{Command, Handle};
use manx_policy_compiler::model::ObjectName;

use super::capture;
use super::denials::Denials;
use super::device::AgentNamespace;
use super::fault::Fault;
use super::host_device::HostDevice;
use super::pod_device::{self, Attachment, PodDevice};
use super::port_ids::PortIds;
use super::server::Answer;
use super::uplink::{self, NextHops};
use super::verify::Verifier;
use super::{Error, status};
use crate::api::{
    Attach, Attached, Call, Capture, Device, ErrorKind, Failure, PodName, Reply, Response,
};
use crate::calc::{self, Calculation, Inputs, Left, Local, Underlay};
use crate::import::{Cluster, Overlay, import_for};
use crate::inquiry::Inquiry;
use crate::ipam;
use crate::store::Store;
use crate::topology::{self, Topology};

/// A port and what it is called.
pub(super) struct Port {
    pub(super) name: String,
    pub(super) counters: Arc<PortCounters>,
}

/// A pod that is attached.
pub(super) struct Pod {
    pub(super) device: PodDevice,
    pub(super) port: PortId,
}

/// The agent.
pub(super) struct Agent {
    pub(super) name: String,
    pub(super) started: Instant,
    /// The objects.
    pub(super) store: Store,
    /// What they mean.
    pub(super) cluster: Cluster,
    pub(super) topology: Topology,
    pub(super) worker: Handle,
    pub(super) ports: BTreeMap<PortId, Port>,
    pub(super) pods: BTreeMap<ObjectName, Pod>,
    pub(super) locals: BTreeMap<ObjectName, Local>,
    pub(super) calculation: Calculation,
    pub(super) tables: Arc<Tables>,
    /// How often pods have changed in tables that were in use.
    pub(super) changed_in_place: u64,
    /// The routes of these tables.
    pub(super) routes: Vec<(IpNet, Via)>,
    pub(super) denials: Denials,
    pub(super) reports: Receiver<Report>,
    /// What the agent cannot go on after.
    pub(super) failed: Option<Error>,
    namespace: AgentNamespace,
    host_device: HostDevice,
    pod_device: Device,
    addresses: ipam::store::Store,
    underlay: Underlay,
    host: HostPort,
    connections: Connections,
    port_ids: PortIds,
    /// The last number of an attachment.
    attachments: u32,
    uplink: String,
    /// Why VXLAN's socket is not open, while a tunnel asks for it.
    pub(super) vxlan_fault: Fault,
    /// Whoever proves tables before they are published, if somebody does.
    pub(super) verifier: Option<Verifier>,
}

/// What an agent starts from.
pub(super) struct Parts {
    pub(super) name: String,
    /// As it was last read.
    pub(super) store: Store,
    pub(super) worker: Handle,
    pub(super) reports: Receiver<Report>,
    pub(super) namespace: AgentNamespace,
    pub(super) host_device: HostDevice,
    pub(super) pod_device: Device,
    pub(super) addresses: ipam::store::Store,
    pub(super) raw: Box<dyn PacketIo>,
    pub(super) packet_socket: Option<(Box<dyn PacketIo>, [u8; 6])>,
    pub(super) underlay_mtu: u32,
    pub(super) host: Box<dyn PacketIo>,
    pub(super) host_mtu: u32,
    pub(super) connections: Connections,
    pub(super) uplink: String,
    pub(super) verifier: Option<Verifier>,
}

impl Agent {
    /// Attaches the node's own ports. Nothing passes until [`Agent::publish`].
    pub(super) fn new(parts: Parts) -> Result<Self, Error> {
        let mut agent = Self {
            name: parts.name,
            started: Instant::now(),
            store: parts.store,
            cluster: Cluster::default(),
            topology: Topology::default(),
            worker: parts.worker,
            ports: BTreeMap::new(),
            pods: BTreeMap::new(),
            locals: BTreeMap::new(),
            calculation: Calculation::default(),
            tables: Arc::new(Tables::closed()),
            changed_in_place: 0,
            routes: Vec::new(),
            denials: Denials::default(),
            reports: parts.reports,
            failed: None,
            namespace: parts.namespace,
            host_device: parts.host_device,
            pod_device: parts.pod_device,
            addresses: parts.addresses,
            underlay: Underlay {
                mtu: parts.underlay_mtu,
                raw: PortId(0),
                packet_socket: None,
                next_hops: NextHops::new(),
                vxlan: None,
            },
            host: HostPort { port: PortId(0), mtu: parts.host_mtu },
            connections: parts.connections,
            port_ids: PortIds::default(),
            attachments: 0,
            uplink: parts.uplink,
            vxlan_fault: Fault::default(),
            verifier: parts.verifier,
        };
        agent.host.port = agent.plug("host".to_owned(), parts.host)?;
        agent.underlay.raw = agent.plug("uplink-raw".to_owned(), parts.raw)?;
        if let Some((packet_socket, mac)) = parts.packet_socket {
            agent.underlay.packet_socket =
                Some((agent.plug("uplink-packet".to_owned(), packet_socket)?, mac));
        }
        Ok(agent)
    }

    /// Gives the worker a port.
    fn plug(&mut self, name: String, io: Box<dyn PacketIo>) -> Result<PortId, Error> {
        let id = self.port_ids.take().ok_or(Error::PortsExhausted)?;
        let counters = Arc::new(PortCounters::default());
        if !self.worker.commands().tell(Command::Attach(id, io, Arc::clone(&counters))) {
            return Err(Error::WorkerGone);
        }
        self.ports.insert(id, Port { name, counters });
        Ok(id)
    }

    /// Answers a call.
    pub(super) fn answer(&mut self, call: Call) -> Answer {
        match call {
            Call::Attach(attach) => Answer::Reply(self.attach(&attach).map(Reply::Attached)),
            Call::Detach(pod) => {
                self.detach(&pod);
                Answer::Reply(Ok(Reply::Detached))
            }
            Call::Status => Answer::Reply(Ok(Reply::Status(Box::new(status::status(self))))),
            Call::Explain(inquiry) => Answer::Reply(self.explain(&inquiry)),
            Call::Denials => {
                self.read_reports();
                Answer::Reply(Ok(Reply::Denials(self.denials.all())))
            }
            Call::Capture(what) => self.capture(&what),
        }
    }

    /// By the objects that the agent has loaded.
    fn explain(&self, inquiry: &Inquiry) -> Response {
        let answer = inquiry.answer(self.store.contents(), &BTreeMap::new());
        let invalid = |message| Failure { kind: ErrorKind::Invalid, message };
        answer.map(|it| Reply::Explained(Box::new(it))).map_err(invalid)
    }

    fn attach(&mut self, attach: &Attach) -> Result<Attached, Failure> {
        let name = ObjectName::new(&attach.pod.namespace, &attach.pod.name);
        if let (Some(pod), Some(local)) = (self.pods.get(&name), self.locals.get(&name)) {
            if pod.device.is(&attach.netns, &attach.interface) {
                return Ok(Attached {
                    addresses: local.addresses.clone(),
                    device: pod.device.device(),
                    mtu: local.mtu,
                });
            }
            self.detach(&attach.pod);
        }
        let addresses = self
            .addresses
            .assign(&attach.pod)
            .map_err(|error| Failure { kind: error.kind(), message: error.to_string() })?;
        let mtu = self.pod_mtu();
        let made = pod_device::attach(
            &self.namespace,
            &Attachment {
                netns: &attach.netns,
                interface: &attach.interface,
                addresses: &addresses,
                mtu,
                device: self.pod_device,
                queues: 1,
            },
        );
        let (device, mut queues) = match made {
            Ok(made) => made,
            Err(error) => {
                self.release(&attach.pod);
                return Err(Failure { kind: error.kind(), message: error.to_string() });
            }
        };
        let plugged = queues
            .pop()
            .ok_or(Error::NoQueue)
            .and_then(|io| self.plug(format!("pod:{}", attach.pod), io));
        let port = match plugged {
            Ok(port) => port,
            Err(error) => {
                if let Err(error) = device.detach(&self.namespace) {
                    tracing::warn!(pod = %attach.pod, %error, "the pod's interface could not be removed");
                }
                self.release(&attach.pod);
                return Err(internal(&error));
            }
        };
        self.attachments += 1;
        let local = Local {
            index: self.free_index(),
            attachment: self.attachments,
            port,
            addresses: addresses.clone(),
            mtu,
        };
        self.pods.insert(name.clone(), Pod { device, port });
        self.locals.insert(name, local);
        self.publish();
        tracing::info!(pod = %attach.pod, ?addresses, device = ?self.pod_device, "attached");
        Ok(Attached { addresses, device: self.pod_device, mtu })
    }

    fn detach(&mut self, pod: &PodName) {
        if self.take_off(&ObjectName::new(&pod.namespace, &pod.name)) {
            tracing::info!(%pod, "detached");
        }
        self.release(pod);
    }

    /// Takes the pod's port and device away; it keeps its addresses. Returns whether it had them.
    fn take_off(&mut self, name: &ObjectName) -> bool {
        self.locals.remove(name);
        let Some(gone) = self.pods.remove(name) else { return false };
        // First nothing leads there, then the port goes; the address may be somebody else's only after that.
        self.publish();
        self.unplug(gone.port);
        if let Err(error) = gone.device.detach(&self.namespace) {
            tracing::warn!(pod = %name, %error, "the pod's interface could not be removed");
        }
        true
    }

    /// Takes a port that the last tables do not name from the worker.
    fn unplug(&mut self, port: PortId) {
        self.worker.commands().tell(Command::Detach(port));
        self.ports.remove(&port);
        self.port_ids.rest(port, self.tables.version);
    }

    fn release(&mut self, pod: &PodName) {
        if let Err(error) = self.addresses.release(pod) {
            tracing::error!(%pod, %error, "the pod's addresses could not be released and stay taken");
        }
    }

    /// The lowest endpoint index that no attached pod has.
    fn free_index(&self) -> u32 {
        let taken: BTreeSet<u32> = self.locals.values().map(|local| local.index).collect();
        (0..=taken.len() as u32).find(|index| !taken.contains(index)).unwrap_or_default()
    }

    /// Pods' packets must fit the tunnels that there are, and IPIP, which is Calico's default.
    fn pod_mtu(&self) -> u32 {
        let overlays = self.topology.peers().into_iter().map(|peer| peer.overlay);
        let headers = overlays.map(|overlay| calc::encapsulation(overlay).header_len());
        let most = headers.max().unwrap_or(0).max(Encapsulation::Ipip.header_len());
        self.underlay.mtu.saturating_sub(most as u32)
    }

    /// Opens VXLAN's socket when the first tunnel asks for it. Until that works those tunnels lead nowhere. Returns whether
    /// it has been opened now.
    fn open_vxlan(&mut self) -> bool {
        let wanted = self.topology.peers().iter().any(|peer| peer.overlay == Overlay::Vxlan);
        let Some(local) =
            self.topology.underlay.filter(|_| wanted && self.underlay.vxlan.is_none())
        else {
            if !wanted {
                self.vxlan_fault = Fault::default();
            }
            return false;
        };
        let opened = match uplink::vxlan(local) {
            Ok(socket) => self
                .plug("uplink-vxlan".to_owned(), socket)
                .map_err(|error| format!("no port for VXLAN: {error}")),
            Err(error) => Err(format!("nodes behind VXLAN cannot be reached: {error}")),
        };
        let Some(port) = self.vxlan_fault.settle(opened) else { return false };
        self.underlay.vxlan = Some(port);
        true
    }

    /// Tries again what did not work.
    pub(super) fn retry(&mut self) {
        if self.vxlan_fault.message().is_some() && self.open_vxlan() {
            self.publish();
        }
    }

    /// Looks whether the datastore says something else, and takes it in. Where tables are to be proved nothing changes in
    /// those in use, which have been. Returns whether the topology may be another.
    pub(super) fn look(&mut self) -> bool {
        let Some(changes) = self.store.refresh() else { return false };
        let (contents, image) = (self.store.contents(), &self.tables.image);
        let left = match self.verifier {
            None => self.calculation.follow(image, &mut self.cluster, contents, &changes),
            Some(_) => Left::Import,
        };
        match left {
            Left::Nothing(pods) => self.changed_in_place += pods,
            Left::Tables => self.publish(),
            Left::Import => self.learn(import_for(contents, &self.name)),
        }
        left == Left::Import
    }

    /// Takes in what the objects mean now. What cannot be used leaves the last topology in force.
    pub(super) fn learn(&mut self, cluster: Cluster) {
        for problem in
            cluster.problems.iter().filter(|problem| !self.cluster.problems.contains(problem))
        {
            tracing::warn!(problem = problem.summary(), "datastore");
        }
        self.cluster = cluster;
        match topology::topology(&self.cluster, &self.name) {
            Ok(topology) => {
                let known: BTreeSet<String> = self.topology.problems().collect();
                for problem in topology.problems().filter(|problem| !known.contains(problem)) {
                    tracing::error!(problem, "topology");
                }
                self.topology = topology;
                self.open_vxlan();
            }
            Err(error) => {
                tracing::error!(%error, "the node cannot be placed; the routes stay as they were");
            }
        }
        match self.host_device.reconcile(&self.topology.host()) {
            Ok(changes) => {
                for block in changes.unreachable {
                    tracing::error!(%block, "the node has no route to the node of this block");
                }
            }
            Err(error) => {
                tracing::error!(%error, "the node's own routes are not as they should be");
            }
        }
        self.publish();
    }

    /// Takes in the next hops of the peers.
    pub(super) fn reach(&mut self, next_hops: NextHops) {
        self.underlay.next_hops = next_hops;
        self.publish();
    }

    /// The nodes to which there is an IPIP tunnel.
    pub(super) fn peers(&self) -> BTreeSet<Ipv4Addr> {
        let peers = self.topology.peers().into_iter();
        peers.filter(|peer| peer.overlay == Overlay::Ipip).map(|peer| peer.address).collect()
    }

    /// Calculates and publishes, once the datastore has been read whole; until then nothing passes. Tables that are refuted
    /// are not published: those before stay.
    fn publish(&mut self) {
        if !self.cluster.in_sync {
            return;
        }
        let tables = self.calculation.tables(&Inputs {
            cluster: &self.cluster,
            topology: &self.topology,
            locals: &self.locals,
            underlay: &self.underlay,
            host: self.host,
            uplink: None,
            connections: self.connections,
            interfaces: self.topology.interfaces(&self.name, &self.uplink),
        });
        let proved = self.verifier.as_mut().is_none_or(|verifier| {
            verifier.admits(self.store.contents(), self.locals.keys().cloned(), &tables.image)
        });
        if !proved {
            return;
        }
        self.routes = self.calculation.current_routes().collect();
        self.tables = Arc::new(tables);
        self.worker.commands().tell(Command::Publish(Arc::clone(&self.tables)));
    }

    /// Takes in what the worker has reported.
    pub(super) fn read_reports(&mut self) {
        while let Ok(report) = self.reports.try_recv() {
            match report {
                Report::Denied(denied) => self.note(&denied),
                Report::PortLost(port, error) => self.lost(port, error),
                Report::PollFailed(error) => tracing::error!(%error, "epoll failed"),
                Report::Retired(tables) => {
                    self.port_ids.retired(tables.version);
                    let counters = self.worker.counters();
                    self.calculation.fold(tables.version, |slot| counters.rules.read(slot));
                }
            }
        }
    }

    fn note(&mut self, denied: &Denied) {
        let rule =
            self.calculation.reason(denied.slot).map_or_else(String::new, ToString::to_string);
        self.denials.note(denied, rule);
    }

    /// A pod's namespace that goes takes the device along: that is how most pods end. The pod keeps its addresses until it
    /// is detached, and may be attached anew. Losing a port of the node itself ends the agent.
    fn lost(&mut self, port: PortId, error: std::io::Error) {
        let Some(known) = self.ports.get(&port) else { return };
        let pod = self.pods.iter().find(|(_, pod)| pod.port == port).map(|(name, _)| name.clone());
        let Some(pod) = pod else {
            self.failed = Some(Error::NodePortLost { port: known.name.clone(), source: error });
            return;
        };
        tracing::warn!(port = known.name, %error, "the pod's device failed; nothing passes until it is attached anew");
        self.take_off(&pod);
    }

    fn capture(&mut self, what: &Capture) -> Answer {
        let wanted = [what.port.clone(), format!("pod:{}", what.port)];
        let found =
            self.ports.iter().find(|(_, port)| wanted.contains(&port.name)).map(|(id, _)| *id);
        let Some(id) = found else {
            let names: Vec<&str> = self.ports.values().map(|port| port.name.as_str()).collect();
            return Answer::Reply(Err(Failure {
                kind: ErrorKind::Invalid,
                message: format!(
                    "no port {:?} on node {}: expected one of {}",
                    what.port,
                    self.name,
                    names.join(", ")
                ),
            }));
        };
        let framed =
            self.underlay.packet_socket.is_some_and(|(packet_socket, _)| packet_socket == id);
        let framing = if framed { ETHERNET_LEN } else { 0 };
        capture::start(
            self.worker.commands(),
            capture::Source { port: id, name: what.port.clone(), framing },
        )
    }
}

fn internal(error: &Error) -> Failure {
    Failure { kind: ErrorKind::Internal, message: error.to_string() }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Err(error) = self.host_device.detach(&self.namespace) {
            tracing::warn!(%error, "the node's own routes could not be removed");
        }
    }
}
