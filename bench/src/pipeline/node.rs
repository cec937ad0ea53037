//! One node: the real worker over [`Station`]s, by tables that the real import, calculation and compiler have made.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, unbounded};
use manx_calculation::calc::{Calculation, Inputs, Local, Underlay};
use manx_calculation::import::{Cluster, Node as NodeObject, Overlay, Pool, import};
use manx_calculation::interfaces::Interfaces;
use manx_calculation::topology::topology;
use manx_dataplane::counters::{PortCounters, WorkerCounters};
use manx_dataplane::fate::DropReason;
use manx_dataplane::flow::FlowEntry;
use manx_dataplane::pipeline::Sizes;
use manx_dataplane::port::PacketIo;
use manx_dataplane::port::link::Link as Wire;
use manx_dataplane::report::Report;
use manx_dataplane::tables::{Connections, Link, PortId, Tables};
use manx_dataplane::worker::{Clock, Command, Polling, Settings, SharedState, Worker};
use manx_objects::contents::Contents;
use manx_objects::object::EncapsulationMode;
use manx_objects::problem::Severity;
use manx_policy_compiler::model::{Endpoint, ObjectName};

use super::Failure;
use super::framed::Framed;
use super::peers::{self, BLOCK, FAR, NETWORKS, POOLS, PORT, far_pod, network, underlay};
use super::station::{Pace, Station};

/// The node's name.
pub(crate) const NAME: &str = "node-0";
/// Its address on the underlay.
pub(crate) const NODE: Ipv4Addr = Ipv4Addr::new(172, 18, 0, 1);
/// The pod whose packets are measured.
pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 10);
/// The pod beside it.
pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 11);
const MTU: u32 = 1500;

/// The port of the node, and of the world behind it.
pub(crate) const HOST: PortId = PortId(0);
/// The port of the tunnels.
pub(crate) const RAW: PortId = PortId(1);
/// The port of the world, where the uplink is Manx's own.
pub(crate) const UPLINK: PortId = PortId(2);
/// The client's port.
pub(crate) const CLIENT_PORT: PortId = PortId(3);
/// The server's port.
pub(crate) const SERVER_PORT: PortId = PortId(4);
const PORTS: [PortId; 5] = [HOST, RAW, UPLINK, CLIENT_PORT, SERVER_PORT];

/// What the client's policies, or the uplink's, ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rules {
    /// This many rules for the client in each direction; the last allows the pods, each of the others a network.
    Pods(u32),
    /// One rule for the client in each direction, which allows a set of this many members; the peers are among them.
    Set(u32),
    /// This many rules before connection tracking for the uplink, outwards; the last allows the pods, each of the others a
    /// network. All networks have one length, or many.
    Untracked(u32, bool),
}

/// About what a packet takes.
const OF_A_PACKET: Duration = Duration::from_nanos(50);
/// Buffers of a worker: a device's ring of them, and as many again.
pub(crate) const BUFFERS: usize = 2 * Pace::DEVICE.ring;

/// A node's shape.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Policy.
    pub(crate) rules: Rules,
    /// Other nodes.
    pub(crate) nodes: u32,
    /// Flows that a worker's table holds.
    pub(crate) flows: usize,
    /// Frames cross the wires and not packets.
    pub(crate) ethernet: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self { rules: Rules::Pods(101), nodes: 1, flows: Sizes::default().flows, ethernet: false }
    }
}

/// See the module.
pub(crate) struct Node {
    pub(crate) cluster: Cluster,
    pub(crate) locals: BTreeMap<ObjectName, Local>,
    calculation: Calculation,
    owned: bool,
    pub(crate) tables: Tables,
    pub(crate) counters: Arc<WorkerCounters>,
    stations: BTreeMap<PortId, (Station, Arc<PortCounters>)>,
    pub(crate) commands: Sender<Command>,
    /// What the worker gives back.
    pub(crate) reports: Receiver<Report>,
    worker: Worker,
    clock: Clock,
    /// The time, where packets make it.
    counted: Option<Duration>,
    /// What the last turn found.
    found: usize,
}

impl Node {
    /// A node with tables, its worker's ports attached, and no flows.
    pub(crate) fn new(shape: Shape) -> Result<Self, Failure> {
        let sizes = Sizes { flows: shape.flows, buffers: BUFFERS, ..Sizes::default() };
        Self::shared(shape, sizes, SharedState::alone())
    }

    /// The same, as one of several workers sees it, each of which has these sizes.
    pub(crate) fn shared(shape: Shape, sizes: Sizes, share: SharedState) -> Result<Self, Failure> {
        let mut cluster = import(&Contents::from_texts([("cluster.yaml", &*manifests(shape))]));
        let mut problems = cluster.problems.iter();
        if let Some(problem) = problems.find(|problem| problem.severity == Severity::Error) {
            return Err(format!("the bench's own manifests are not valid: {problem:?}").into());
        }
        populate(&mut cluster, shape.nodes)?;
        let pod = |index, port, address| Local {
            index,
            attachment: index,
            port,
            addresses: vec![IpAddr::V4(address)],
            mtu: MTU,
        };
        let locals = BTreeMap::from([
            (ObjectName::new("shop", "client"), pod(0, CLIENT_PORT, CLIENT)),
            (ObjectName::new("shop", "server"), pod(1, SERVER_PORT, SERVER)),
        ]);
        let (commands, receiver) = unbounded();
        let (sender, reports) = unbounded();
        let counters = Arc::new(WorkerCounters::default());
        let settings = Settings { sizes, polling: Polling::Busy, core: None };
        let worker = Worker::new(settings, share, receiver, sender, Arc::clone(&counters))?;
        let mut node = Self {
            cluster,
            locals,
            calculation: Calculation::default(),
            owned: matches!(shape.rules, Rules::Untracked(..)),
            tables: Tables::closed(),
            counters,
            stations: BTreeMap::new(),
            commands,
            reports,
            worker,
            clock: Clock::start(),
            counted: None,
            found: 0,
        };
        for port in PORTS {
            let ends = shape.ethernet.then(|| wire(port));
            let counters = Arc::new(PortCounters::default());
            let (station, io): (_, Box<dyn PacketIo>) = match ends {
                None => {
                    let station = Station::new(None)?;
                    (station.clone(), Box::new(station))
                }
                Some([near, far]) => {
                    let station = Station::new(Some(far))?;
                    (station.clone(), Box::new(Framed::new(station, near)))
                }
            };
            node.send(Command::Attach(port, io, Arc::clone(&counters)))?;
            node.stations.insert(port, (station, counters));
        }
        node.tables = node.calculate()?;
        node.publish()?;
        Ok(node)
    }

    /// Makes tables of what the cluster is now.
    pub(crate) fn calculate(&mut self) -> Result<Tables, Failure> {
        let topology = topology(&self.cluster, NAME)?;
        let underlay = Underlay {
            mtu: MTU,
            raw: RAW,
            packet_socket: None,
            next_hops: BTreeMap::new(),
            vxlan: None,
        };
        Ok(self.calculation.tables(&Inputs {
            cluster: &self.cluster,
            topology: &topology,
            locals: &self.locals,
            underlay: &underlay,
            host: Link::native(HOST, MTU),
            uplink: self.owned.then_some(Link::native(UPLINK, MTU)),
            connections: Connections::default(),
            interfaces: Interfaces {
                node: NAME,
                uplink: Some("eth0"),
                addresses: &[IpAddr::V4(NODE)],
            },
        }))
    }

    /// Hands the worker the tables, in a copy that others may be handed too.
    pub(crate) fn publish(&mut self) -> Result<Arc<Tables>, Failure> {
        let tables = Arc::new(self.tables.clone());
        self.judge_by(&tables)?;
        Ok(tables)
    }

    /// Hands the worker tables that others judge by too.
    pub(crate) fn judge_by(&mut self, tables: &Arc<Tables>) -> Result<(), Failure> {
        self.send(Command::Publish(Arc::clone(tables)))
    }

    pub(crate) fn send(&mut self, command: Command) -> Result<(), Failure> {
        self.commands.send(command)?;
        let now = self.clock.begin_turn(false);
        if self.worker.run_commands(now) { Ok(()) } else { Err("the worker has ended".into()) }
    }

    /// One turn as the worker's own loop makes it.
    #[inline]
    pub(crate) fn turn(&mut self) -> usize {
        self.found = match self.step() {
            0 => {
                self.worker.poll(Duration::ZERO);
                self.step()
            }
            found => found,
        };
        self.found
    }

    /// From now on time goes by with packets, so that what is done by time is done as often whenever it is run.
    pub(crate) fn count_time(&mut self) {
        self.counted = Some(self.clock.begin_turn(false));
    }

    #[inline]
    fn step(&mut self) -> usize {
        let mut now = self.clock.begin_turn(self.found > 0);
        if let Some(counted) = &mut self.counted {
            *counted += OF_A_PACKET * self.found as u32;
            now = *counted;
        }
        // Nobody ends it.
        self.worker.step(now).unwrap_or_default()
    }

    /// Turns until nothing comes any more.
    #[inline(never)]
    pub(crate) fn run(&mut self) -> u64 {
        let mut packets = 0;
        loop {
            match self.turn() {
                0 => return packets,
                found => packets += found as u64,
            }
        }
    }

    /// Both ends of a port.
    pub(crate) fn station(&self, port: PortId) -> &Station {
        &self.stations[&port].0
    }

    /// From now on every packet that leaves is read, or none.
    pub(crate) fn check(&self, checks: bool) {
        self.stations.values().for_each(|(station, _)| station.check(checks));
    }

    /// Packets that have left by all ports, and those of them that no receiver would take.
    pub(crate) fn left(&self) -> (u64, u64) {
        let each = self.stations.values().map(|(station, _)| station.left_by());
        each.fold((0, 0), |sum, left| (sum.0 + left.0, sum.1 + left.1))
    }

    /// All drops that are not 0.
    pub(crate) fn drops(&self) -> BTreeMap<&'static str, u64> {
        let mut drops = BTreeMap::new();
        for (_, counters) in self.stations.values() {
            for reason in DropReason::ALL {
                let count = counters.dropped(reason).read();
                if count > 0 {
                    *drops.entry(reason.name()).or_default() += count;
                }
            }
        }
        drops
    }

    /// Copies of all flows.
    pub(crate) fn flows(&mut self) -> Result<Vec<FlowEntry>, Failure> {
        let (sender, receiver) = unbounded();
        self.send(Command::Flows(usize::MAX, sender))?;
        Ok(receiver.recv()?)
    }
}

/// The two ends of a port's wire: the worker's, and that of whoever is behind it.
pub(super) fn wire(PortId(number): PortId) -> [Wire; 2] {
    let [own, peer] = [0, 1].map(|end| [2, 0, 0, number as u8, 0, end]);
    [(own, peer), (peer, own)].map(|(own, peer)| Wire { own, peer, addresses: Vec::new() })
}

/// Nodes, pools, and the pods of other nodes.
fn populate(cluster: &mut Cluster, nodes: u32) -> Result<(), Failure> {
    for node in 0..=nodes {
        let block = |pool: Ipv4Addr| {
            let base = Ipv4Addr::from_bits(pool.to_bits() + node * BLOCK);
            format!("{base}/20").parse()
        };
        let object = NodeObject {
            internal_ips: vec![Ipv4Addr::from_bits(underlay(node)).into()],
            subnet: None,
            pod_cidrs: POOLS.into_iter().map(block).collect::<Result<_, _>>()?,
            vxlan_mac: [0; 6],
        };
        cluster.nodes.insert(format!("node-{node}"), object);
    }
    let modes = [EncapsulationMode::Never, EncapsulationMode::Always];
    for (pool, mode) in POOLS.into_iter().zip(modes) {
        cluster.pools.push(Pool {
            cidr: format!("{pool}/10").parse()?,
            overlay: Overlay::Ipip,
            mode,
        });
    }
    let mut pod = |name: String, role: &str, addresses: BTreeSet<IpAddr>| {
        let labels = BTreeMap::from([("role".to_owned(), role.to_owned())]);
        let endpoint = Endpoint { labels: labels.into(), addresses, ..Endpoint::default() };
        cluster.model.endpoints.insert(ObjectName::new("shop", name), Arc::new(endpoint));
    };
    pod("client".to_owned(), "client", BTreeSet::from([CLIENT.into()]));
    pod("server".to_owned(), "server", BTreeSet::from([SERVER.into()]));
    for at in 0..FAR {
        let addresses = [false, true].map(|tunnel| {
            IpAddr::V4(Ipv4Addr::from_bits(far_pod(tunnel, 1 + at % nodes, at / nodes)))
        });
        pod(format!("far-{at}"), "server", addresses.into());
    }
    Ok(())
}

fn manifests(shape: Shape) -> String {
    let mut text = String::from("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n");
    let ports = format!(
        "[{{protocol: UDP, port: {PORT}, endPort: {}}}, {{protocol: TCP, port: {PORT}}}]",
        PORT + peers::PORTS - 1
    );
    let allow = |to: &str| {
        format!("{{{to}: [{{podSelector: {{matchLabels: {{role: server}}}}}}], ports: {ports}}}")
    };
    let policy = |text: &mut String, name: &str, role: &str, ingress: &str, egress: &str| {
        let _ = writeln!(
            text,
            "---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: {name}, namespace: shop}}, spec: {{podSelector: {{matchLabels: {{role: {role}}}}}, policyTypes: [Ingress, Egress], ingress: [{ingress}], egress: [{egress}]}}}}"
        );
    };
    policy(
        &mut text,
        "server",
        "server",
        &format!("{{ports: {ports}}}"),
        &format!("{{ports: {ports}}}"),
    );
    match shape.rules {
        Rules::Pods(count) => {
            let rules = |to: &str| {
                let others = (1..count).map(|rule| {
                    let peers::Network { address, length, port } = network(rule, false);
                    format!("{{{to}: [{{ipBlock: {{cidr: {address}/{length}}}}}], ports: [{{protocol: UDP, port: {port}}}]}}")
                });
                others.chain([allow(to)]).collect::<Vec<_>>().join(", ")
            };
            policy(&mut text, "client", "client", &rules("from"), &rules("to"));
        }
        Rules::Set(count) => {
            let peers = (0..FAR).map(|at| far_pod(false, 1 + at % shape.nodes, at / shape.nodes));
            let others = (0..count).map(|at| 0xc000_0000 + at * 7);
            let nets = peers.chain(others).take(count as usize);
            let nets: Vec<String> =
                nets.map(|net| format!("{}/32", Ipv4Addr::from_bits(net))).collect();
            let _ = writeln!(
                text,
                "---\n{{apiVersion: projectcalico.org/v3, kind: GlobalNetworkSet, metadata: {{name: peers, labels: {{set: peers}}}}, spec: {{nets: [{}]}}}}",
                nets.join(", ")
            );
            let rule = |end: &str| {
                format!("{{action: Allow, protocol: UDP, {end}: {{selector: set == 'peers'}}}}")
            };
            let _ = writeln!(
                text,
                "---\n{{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {{name: client}}, spec: {{selector: role == 'client', types: [Ingress, Egress], ingress: [{}], egress: [{}]}}}}",
                rule("source"),
                rule("destination")
            );
        }
        Rules::Untracked(count, many_lengths) => {
            let networks = format!("{{to: [{{ipBlock: {{cidr: {NETWORKS}}}}}]}}");
            let out = format!("{}, {networks}", allow("to"));
            policy(&mut text, "client", "client", &allow("from"), &out);
            let rules: Vec<String> = (1..count)
                .map(|rule| {
                    let peers::Network { address, length, port } = network(rule, many_lengths);
                    format!("{{action: Allow, protocol: UDP, destination: {{nets: [{address}/{length}], ports: [{port}]}}}}")
                })
                .chain([format!("{{action: Allow, protocol: UDP, destination: {{nets: [{}/10], ports: ['{PORT}:{}']}}}}", POOLS[0], PORT + peers::PORTS - 1)])
                .collect();
            let _ = writeln!(
                text,
                "---\n{{apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {{name: uplink, labels: {{role: node}}}}, spec: {{node: {NAME}, interfaceName: eth0}}}}\n---\n{{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {{name: untracked}}, spec: {{selector: role == 'node', doNotTrack: true, applyOnForward: true, types: [Egress], egress: [{}]}}}}",
                rules.join(", ")
            );
        }
    }
    text
}
