//! The agent's state, and what each event does to it. One thread owns it; nothing in it is shared or locked.

mod devices;
pub(super) mod pods;
mod publication;
mod reports;
mod status;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use crossbeam::channel::Receiver;
use ipnet::IpNet;
use manx_dataplane::counters::PortCounters;
use manx_dataplane::port::capture::CopyBudget;
use manx_dataplane::port::link::ETHERNET_LEN;
use manx_dataplane::report::Report;
use manx_dataplane::tables::{Connections, Link, NextHop, PortId, Tables};
use manx_dataplane::worker::{Polling, Workers};
use manx_policy_compiler::model::ObjectName;

use self::pods::{Commit, PodRequest};
use super::capture;
use super::denials::Denials;
use super::device::{AgentNamespace, OpenDevice, Queues};
use super::device_work::DeviceWork;
use super::error::Error;
use super::fault::Fault;
use super::host_device::HostDevice;
use super::pod_device::PodDevice;
use super::port_ids::PortIds;
use super::server::{Outcome, PendingRequest};
use super::uplink::NextHops;
use super::verify::Verifier;
use crate::ipam;
use manx_api::explain::ExplainRequest;
use manx_api::{Call, Capture, Device, ErrorKind, Failure, Reply};
use manx_calculation::calc::{Calculation, Local, Underlay};
use manx_calculation::import::Cluster;
use manx_calculation::topology::Topology;
use manx_datastore::Store;

/// A port and what it is called.
pub(super) struct Port {
    pub(super) name: String,
    /// Of each worker.
    pub(super) counters: Vec<Arc<PortCounters>>,
    device: Option<devices::Watched>,
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
    pub(super) workers: Workers,
    pub(super) ports: BTreeMap<PortId, Port>,
    pub(super) pods: BTreeMap<ObjectName, Pod>,
    pub(super) locals: BTreeMap<ObjectName, Local>,
    /// The pods on whose devices threads work, and the requests that wait for that, in order of arrival.
    busy: BTreeMap<ObjectName, VecDeque<PodRequest>>,
    device_work: DeviceWork<Commit>,
    pub(super) calculation: Calculation,
    pub(super) tables: Arc<Tables>,
    /// How often pods have changed in tables that were in use.
    pub(super) changed_in_place: u64,
    /// The routes of these tables.
    pub(super) routes: Vec<(IpNet, NextHop)>,
    /// How many workers have handed these tables back, by version; while one has not, it may use them.
    pub(super) retirements: BTreeMap<u64, usize>,
    pub(super) denials: Denials,
    pub(super) reports: Receiver<Report>,
    /// What the agent cannot go on after.
    pub(super) failed: Option<Error>,
    namespace: Arc<AgentNamespace>,
    host_device: HostDevice,
    pod_device: Device,
    polling: Polling,
    addresses: ipam::store::Store,
    underlay: Underlay,
    host: Link,
    connections: Connections,
    port_ids: PortIds,
    /// The last number of an attachment.
    attachments: u32,
    /// Where the copies of all captures wait.
    captures: Arc<CopyBudget>,
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
    pub(super) workers: Workers,
    pub(super) reports: Receiver<Report>,
    pub(super) namespace: Arc<AgentNamespace>,
    pub(super) device_work: DeviceWork<Commit>,
    pub(super) host_device: HostDevice,
    pub(super) pod_device: Device,
    pub(super) polling: Polling,
    pub(super) addresses: ipam::store::Store,
    pub(super) raw: Queues,
    pub(super) packet_socket: Option<(Queues, [u8; 6])>,
    pub(super) underlay_mtu: u32,
    pub(super) host: OpenDevice,
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
            workers: parts.workers,
            retirements: BTreeMap::new(),
            ports: BTreeMap::new(),
            pods: BTreeMap::new(),
            locals: BTreeMap::new(),
            busy: BTreeMap::new(),
            device_work: parts.device_work,
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
            polling: parts.polling,
            addresses: parts.addresses,
            underlay: Underlay {
                mtu: parts.underlay_mtu,
                raw: PortId(0),
                packet_socket: None,
                next_hops: NextHops::new(),
                vxlan: None,
            },
            host: Link::native(PortId(0), parts.host_mtu),
            connections: parts.connections,
            port_ids: PortIds::default(),
            attachments: 0,
            captures: capture::room(),
            uplink: parts.uplink,
            vxlan_fault: Fault::default(),
            verifier: parts.verifier,
        };
        agent.host.port = agent.attach_port("host".to_owned(), parts.host)?;
        agent.underlay.raw = agent.attach_port("uplink-raw".to_owned(), parts.raw)?;
        if let Some((packet_socket, mac)) = parts.packet_socket {
            agent.underlay.packet_socket =
                Some((agent.attach_port("uplink-packet".to_owned(), packet_socket)?, mac));
        }
        Ok(agent)
    }

    /// Gives the workers a port.
    fn attach_port(&mut self, name: String, held: impl Into<OpenDevice>) -> Result<PortId, Error> {
        let OpenDevice { queues, settings } = held.into();
        let id = self.port_ids.take().ok_or(Error::PortsExhausted)?;
        let counters = self.workers.attach(id, queues).ok_or(Error::WorkerGone)?;
        let device = settings.map(devices::Watched::new);
        self.ports.insert(id, Port { name, counters, device });
        Ok(id)
    }

    /// Takes a request. Its reply follows at once, or when the work that it asks for has ended.
    pub(super) fn handle(&mut self, PendingRequest { call, answer }: PendingRequest) {
        let outcome = match call {
            Call::Attach(attach) => return self.submit(PodRequest::Attach(attach, answer)),
            Call::Detach(pod) => return self.submit(PodRequest::Detach(pod, answer)),
            Call::Status => Outcome::Reply(Ok(Reply::Status(Box::new(status::status(self))))),
            Call::Explain(inquiry) => self.explain(inquiry),
            Call::Denials => {
                self.read_reports();
                Outcome::Reply(Ok(Reply::Denials(self.denials.all())))
            }
            Call::Capture(what) => self.capture(&what),
        };
        // A client that went away no longer waits.
        let _ = answer.send(outcome);
    }

    /// By the objects that the agent has loaded, on a thread of its own: there may be very many of them.
    fn explain(&self, request: ExplainRequest) -> Outcome {
        let (contents, uplink) = (self.store.shared(), self.uplink.clone());
        Outcome::Later(Box::new(move || {
            let answer =
                manx_analysis::explain::explain(&request, &contents, &BTreeMap::new(), &uplink);
            let invalid = |message| Failure { kind: ErrorKind::Invalid, message };
            answer.map(|it| Reply::Explained(Box::new(it))).map_err(invalid)
        }))
    }

    fn capture(&mut self, what: &Capture) -> Outcome {
        let wanted = [what.port.clone(), format!("pod:{}", what.port)];
        let found =
            self.ports.iter().find(|(_, port)| wanted.contains(&port.name)).map(|(id, _)| *id);
        let Some(id) = found else {
            let names: Vec<&str> = self.ports.values().map(|port| port.name.as_str()).collect();
            return Outcome::Reply(Err(Failure {
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
            self.workers.iter().map(|worker| worker.commands().clone()).collect(),
            capture::Source { port: id, name: what.port.clone(), framing },
            &self.captures,
        )
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Err(error) = self.host_device.detach(&self.namespace) {
            tracing::warn!(%error, "the node's own routes could not be removed");
        }
    }
}
