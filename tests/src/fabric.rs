//! Two nodes on one underlay: real workers over ports in memory. The test runs the workers one after the other.
//!
//! The product's own calculation makes the tables from the text of manifests. Pods may have any addresses. Each address
//! is routed to the pod's node: IPv4 by the tunnel, IPv6 through the nodes' kernels, as in pools without a tunnel.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::sync::{Arc, Barrier, LazyLock};
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, unbounded};
use ipnet::IpNet;
use manx_calculation::calc::{Calculation, HostSide, InPlace, Inputs, LocalPod, ServiceMode};
use manx_calculation::import::{Cluster, Node as NodeObject, Plan, Pool, import};
use manx_calculation::interfaces::Interfaces;
use manx_calculation::overlay::{Overlay, Underlay};
use manx_calculation::services::KubeProxyServices;
use manx_calculation::topology::{Peer, Reserved, Route, topology};
use manx_dataplane::counters::{Counter, PortCounters, WorkerCounters};
use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::flow::{FlowEntry, FlowRecordFile, HashSeed};
use manx_dataplane::packet::Capabilities;
use manx_dataplane::packet::Offload;
use manx_dataplane::pipeline::{RestorePass, Restored, Sizes};
use manx_dataplane::port::memory::{self, FarSide, Frame};
use manx_dataplane::report::Report;
use manx_dataplane::services::ServiceTable;
use manx_dataplane::sys::shared_file::SharedFile;
use manx_dataplane::tables::{Link, ManxPorts, PortId, Role, Tables, TrackingSettings};
use manx_dataplane::wire::protocol;
use manx_dataplane::worker::{Command, Polling, Restoration, Settings, SharedState, Worker};
use manx_objects::contents::Contents;
use manx_objects::object::EncapsulationMode;
use manx_policy_compiler::model::{ObjectName, Reason};
use manx_policy_compiler::prefix_map::PrefixMap;

pub const NODES: [&str; 2] = ["node-1", "node-2"];
/// The nodes' addresses on the underlay.
pub const UNDERLAY: [Ipv4Addr; 2] = [Ipv4Addr::new(172, 18, 0, 2), Ipv4Addr::new(172, 18, 0, 3)];
/// The source addresses of the nodes' packets to remote pods and of their ICMP errors.
pub const ROUTER: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 244, 1, 1), Ipv4Addr::new(10, 244, 2, 1)];
pub const MTU: u32 = 1500;
pub const TUNNEL_MTU: u32 = MTU - 20;

pub const HOST: PortId = PortId(0);
pub const RAW: PortId = PortId(1);
/// The port for packets to and from service addresses, which the node translates.
pub const SERVICE: PortId = PortId(201);
/// The port for packets from and to the node's ports that belong to Manx.
pub const MANX: PortId = PortId(203);
/// The port for packets that a node forwards, if Manx connects the pods and does not own the uplink.
pub const FORWARDED: PortId = PortId(202);
/// The uplink's port of nodes that own their uplink.
pub const UPLINK: PortId = PortId(200);
const FIRST_POD: u16 = 2;
/// The difference between the number of a pod's host side and the number of its port.
const HOST_SIDES: u16 = 300;
/// The node's own address on the links to pods that another plugin connects.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 254);
const QUEUE: usize = 1024;
/// The sizes of a worker, unless a test needs others.
pub const SIZES: Sizes = Sizes { flows: 1 << 12, translates: true, buffers: 256, fragments: 64 };
/// The limit of ticks for a batch. No batch reaches it: builds for tests are slow and often interrupted, and the
/// results of tests must not depend on the machine.
const BATCH_TICKS: u64 = 100_000_000;
/// The ticks that each batch is charged, however long it takes. The charges determine the order of the ports, which
/// must not depend on the machine.
const CHARGE: u64 = 10_000;

/// A packet that came out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub node: usize,
    pub port: PortId,
    pub frame: Frame,
}

/// The far side of a node's port: a queue and counters for each worker.
pub struct Wire {
    queues: Vec<(FarSide, Arc<PortCounters>)>,
    /// The device's capabilities, and the size of its queues.
    device: (Capabilities, usize),
}

impl Wire {
    /// Sends a packet to the port. The packet's addresses and ports select the worker. The two directions of a flow are
    /// hashed differently, so they mostly go to different workers.
    fn inject(&self, bytes: &[u8], offload: Offload) -> bool {
        self.inject_at(spread(bytes), bytes, offload)
    }

    /// Sends a packet to the port's queue of this worker (modulo the number of workers). Returns `false` if the queue
    /// is full.
    pub fn inject_at(&self, worker: usize, bytes: &[u8], offload: Offload) -> bool {
        let (far, _) = &self.queues[worker % self.queues.len()];
        far.inject(bytes, offload)
    }

    /// The next packet that the port has sent.
    pub fn collect(&self) -> Option<Frame> {
        self.queues.iter().find_map(|(far, _)| far.collect())
    }

    /// Gives the memory of a collected frame back to the port.
    pub fn recycle(&self, frame: Frame) {
        self.queues[0].0.recycle(frame);
    }

    /// Makes every later call of the port fail.
    pub fn unplug(&self) {
        self.queues.iter().for_each(|(far, _)| far.unplug());
    }

    /// Calls `show` with the counters of each worker.
    pub fn each(&self, show: impl FnMut(&PortCounters)) {
        self.queues.iter().map(|(_, counters)| &**counters).for_each(show);
    }

    /// The sum of a counter over all workers.
    pub fn count(&self, counter: impl Fn(&PortCounters) -> &Counter) -> u64 {
        self.queues.iter().map(|(_, counters)| counter(counters).read()).sum()
    }
}

/// A hash of a packet's addresses, and of its ports if it is no fragment. Kernels distribute packets by such a hash.
fn spread(bytes: &[u8]) -> usize {
    let at = |range: std::ops::Range<usize>| bytes.get(range).unwrap_or_default();
    let named = match bytes.first().map(|first| first >> 4) {
        Some(4) if at(9..10) == [protocol::IPIP] => {
            return spread(bytes.get(20..).unwrap_or_default());
        }
        Some(4) if at(6..8).iter().zip([0x3f, 0xff]).any(|(byte, mask)| byte & mask != 0) => {
            at(12..20)
        }
        Some(4) => at(12..24),
        _ => at(8..44),
    };
    named.iter().enumerate().map(|(at, byte)| (at + 1) * usize::from(*byte)).sum()
}

/// The number of workers of a node: `MANX_TEST_WORKERS`, or one.
pub fn workers() -> usize {
    static WORKERS: LazyLock<usize> = LazyLock::new(|| {
        let number = std::env::var("MANX_TEST_WORKERS").ok();
        number.map_or(1, |number| number.parse().unwrap())
    });
    *WORKERS
}

fn open_records(file: File) -> FlowRecordFile {
    FlowRecordFile::open(SharedFile::open(file.into()).unwrap()).unwrap()
}

/// The settings of the node's ports that belong to Manx, on a node that masquerades no pods. Only translations of
/// services use these ports.
fn no_way_out(egress: (u16, u16)) -> ManxPorts {
    let masquerade = Arc::new(PrefixMap::build(0, []));
    ManxPorts {
        link: Link::native(MANX, MTU),
        egress,
        addresses: [None; 2],
        outgoing: [None; 2],
        masquerade,
    }
}

type Workers = Vec<(Worker, Sender<Command>)>;

/// Workers without ports.
fn start_workers(
    workers: usize,
    sizes: Sizes,
    seed: HashSeed,
) -> (Workers, Vec<Arc<WorkerCounters>>, Receiver<Report>) {
    let (sender, reports) = unbounded();
    let settings = Settings { sizes, polling: Polling::Busy, core: None };
    let start = |share| {
        let (commands, receiver) = unbounded();
        let counters = Arc::new(WorkerCounters::default());
        let shown = Arc::clone(&counters);
        let mut worker = Worker::new(settings, share, receiver, sender.clone(), counters).unwrap();
        worker.set_batch_ticks(BATCH_TICKS);
        worker.fix_charge(CHARGE);
        ((worker, commands), shown)
    };
    let shares = SharedState::seeded(workers, sizes, seed).unwrap();
    let (workers, counters) = shares.into_iter().map(start).unzip();
    (workers, counters, reports)
}

pub struct Node {
    pub wires: BTreeMap<PortId, Wire>,
    pub counters: Vec<Arc<WorkerCounters>>,
    pub locals: BTreeMap<ObjectName, LocalPod>,
    pub calculation: Calculation,
    pub tables: Arc<Tables>,
    pub reports: Receiver<Report>,
    workers: Workers,
    /// The seed of the workers' hashes and random numbers.
    seed: HashSeed,
    /// Whether another plugin connects the pods that are attached later.
    is_policy_only: bool,
    /// The time that the workers see.
    pub now: Duration,
}

impl Node {
    fn new(workers: usize, sizes: Sizes, seed: HashSeed) -> Self {
        let (workers, counters, reports) = start_workers(workers, sizes, seed);
        let mut node = Self {
            wires: BTreeMap::new(),
            counters,
            locals: BTreeMap::new(),
            calculation: Calculation::default(),
            tables: Arc::new(Tables::closed()),
            reports,
            workers,
            seed,
            is_policy_only: false,
            now: Duration::from_secs(1),
        };
        node.attach(HOST, Capabilities::ALL);
        node.attach(FORWARDED, Capabilities::ALL);
        node.attach(RAW, Capabilities::default());
        node
    }

    /// The records of the workers' flows.
    pub fn records(&self) -> Vec<File> {
        let file = |(worker, _): &(Worker, _)| {
            worker.flow_records().as_fd().try_clone_to_owned().unwrap().into()
        };
        self.workers.iter().map(file).collect()
    }

    /// Replaces the workers by those of the next agent, with this number and these sizes. They get the ports and the
    /// tables, and restore the flows from the last workers' records, unless these are lost (`has_records` is false).
    pub fn replace_workers(&mut self, workers: usize, sizes: Sizes, has_records: bool) -> Restored {
        let all = if has_records { self.records() } else { Vec::new() };
        let files = all.into_iter().map(open_records).collect();
        (self.workers, self.counters, self.reports) = start_workers(workers, sizes, self.seed);
        let (tables, (reply, restored)) = (Arc::clone(&self.tables), unbounded());
        // Here the workers run one after the other, so none waits for another.
        let barrier = Barrier::new(1);
        let all = Arc::new(Restoration { tables: Arc::clone(&tables), files, barrier, reply });
        for pass in RestorePass::ALL {
            self.send_command(|| Command::Restore(pass, Arc::clone(&all)));
        }
        self.send_command(|| Command::Publish(Arc::clone(&tables)));
        let ports: Vec<_> = self.wires.iter().map(|(port, wire)| (*port, wire.device)).collect();
        for (port, (capabilities, queue)) in ports {
            self.attach_with(port, capabilities, queue);
        }
        restored.try_iter().sum::<io::Result<_>>().unwrap()
    }

    /// Attaches a port. The tables need not name it.
    pub fn attach(&mut self, port: PortId, capabilities: Capabilities) {
        self.attach_with(port, capabilities, QUEUE);
    }

    /// Attaches a port with queues of this size in packets. A port that was attached before keeps its counters.
    pub fn attach_with(&mut self, port: PortId, capabilities: Capabilities, queue: usize) {
        let before = self.wires.remove(&port).map(|wire| wire.queues).unwrap_or_default();
        let mut before = before.into_iter().map(|(_, counters)| counters);
        let mut queues = Vec::new();
        self.send_command(|| {
            let (io, far) = memory::pair(capabilities, queue);
            let counters = before.next().unwrap_or_default();
            queues.push((far, Arc::clone(&counters)));
            Command::Attach(port, Box::new(io), counters)
        });
        self.wires.insert(port, Wire { queues, device: (capabilities, queue) });
    }

    pub fn attach_pod(&mut self, name: &ObjectName, addresses: Vec<IpAddr>, offload: Capabilities) {
        let index = self.locals.len() as u32;
        let port = PortId(FIRST_POD + index as u16);
        self.attach(port, offload);
        let host = self.is_policy_only.then_some(PortId(port.0 + HOST_SIDES));
        if let Some(host) = host {
            self.attach(host, offload);
        }
        let host = host.map(|port| HostSide { port, gateways: vec![GATEWAY.into()] });
        let local = LocalPod { index, attachment: index, port, host, addresses, mtu: MTU };
        self.locals.insert(name.clone(), local);
    }

    /// Sends every worker a command, which it runs at once.
    pub fn send_command(&mut self, mut command: impl FnMut() -> Command) {
        for (worker, commands) in &mut self.workers {
            commands.send(command()).unwrap();
            assert!(worker.run_commands(self.now));
        }
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Sends a command to one worker (modulo the number of workers), which runs it at once.
    pub fn send_command_to(&mut self, worker: usize, command: Command) {
        let at = worker % self.workers.len();
        let (worker, commands) = &mut self.workers[at];
        commands.send(command).unwrap();
        assert!(worker.run_commands(self.now));
    }

    /// Publishes tables to the workers, with a new version.
    pub fn publish(&mut self, mut tables: Tables) {
        tables.version = tables.version.max(self.tables.version + 1);
        self.tables = Arc::new(tables);
        let tables = Arc::clone(&self.tables);
        self.send_command(|| Command::Publish(Arc::clone(&tables)));
    }

    /// Sends a packet to a port.
    pub fn inject(&self, port: PortId, bytes: &[u8]) {
        self.inject_with(port, bytes, Offload::default());
    }

    pub fn inject_with(&self, port: PortId, bytes: &[u8], offload: Offload) {
        assert!(self.wires[&port].inject(bytes, offload), "the port's queue is full");
    }

    /// Lets each worker read its ports once. Returns the number of packets that were read.
    pub fn turn(&mut self) -> usize {
        self.workers.iter_mut().map(|(worker, _)| worker.turn(self.now)).sum()
    }

    /// Lets one worker (modulo the number of workers) read its ports once and age a part of its flows. Returns the
    /// number of packets that were read.
    pub fn turn_one(&mut self, worker: usize) -> usize {
        let at = worker % self.workers.len();
        self.workers[at].0.step(self.now).unwrap()
    }

    /// Calls [`Self::turn`] until there are no more packets.
    pub fn run(&mut self) {
        while self.turn() > 0 {}
    }

    /// All packets that a port has sent.
    pub fn collect(&self, port: PortId) -> Vec<Frame> {
        std::iter::from_fn(|| self.wires[&port].collect()).collect()
    }

    pub fn dropped(&self, port: PortId, reason: DropReason) -> u64 {
        self.wires[&port].count(|counters| counters.dropped(reason))
    }

    /// The drop counters that are not 0.
    pub fn drops(&self) -> BTreeMap<(PortId, &'static str), u64> {
        let mut drops = BTreeMap::new();
        for (port, wire) in &self.wires {
            for reason in DropReason::ALL {
                let count = wire.count(|counters| counters.dropped(reason));
                if count > 0 {
                    drops.insert((*port, reason.name()), count);
                }
            }
        }
        drops
    }

    /// The numbers of packets received and sent, of all ports.
    pub fn traffic(&self) -> (u64, u64) {
        let sum = |counter: fn(&PortCounters) -> &Counter| {
            self.wires.values().map(|wire| wire.count(counter)).sum()
        };
        (sum(|c| &c.received_packets), sum(|c| &c.sent_packets))
    }

    /// The rule counters that are not 0, by reason.
    pub fn decisions(&self) -> BTreeMap<Reason, u64> {
        let mut decisions = BTreeMap::new();
        let read = |slot| self.counters.iter().map(|counters| counters.rules.read(slot)).sum();
        for (reason, count) in self.calculation.counts(read) {
            if count > 0 {
                *decisions.entry(reason.clone()).or_default() += count;
            }
        }
        decisions
    }

    pub fn flows(&mut self) -> Vec<FlowEntry> {
        let (sender, receiver) = unbounded();
        self.send_command(|| Command::Flows(usize::MAX, sender.clone()));
        receiver.try_iter().flatten().collect()
    }
}

/// Both nodes, and the content of the manifests.
pub struct Fabric {
    pub contents: Contents,
    pub cluster: Cluster,
    pub nodes: [Node; 2],
    /// The connection tracking of both nodes, from the next publication on.
    pub connections: TrackingSettings,
    /// Whether both nodes own their uplinks. Then the world is behind [`UPLINK`], and only the node is behind [`HOST`].
    owns_uplink: bool,
    /// Further addresses of both nodes themselves, from the next publication on.
    pub own_addresses: BTreeSet<IpNet>,
    /// Whether the nodes translate service addresses, behind [`SERVICE`].
    translates_services: bool,
    /// The services that Manx translates itself on both nodes, from the next publication on.
    pub services: Option<Arc<ServiceTable>>,
    /// The nodes' ports that belong to Manx, from the next publication on: behind [`MANX`].
    pub manx_ports: Option<ManxPorts>,
    /// The addresses that the world sees for pods, from the next publication on. `None`: the node's
    /// own.
    pub outgoing: Option<[Option<IpAddr>; 2]>,
    /// The encapsulation between the nodes, from the next manifests on.
    pub overlay: Overlay,
    /// Whether the fabric makes nodes, their blocks and pools itself, instead of taking them from
    /// the manifests.
    has_own_network: bool,
    offload: fn(&ObjectName) -> Capabilities,
}

impl Fabric {
    /// A fabric of both nodes with ports, before any tables.
    pub fn closed() -> Self {
        Self::closed_with(workers(), SIZES)
    }

    /// Like [`Self::closed`], with this number of workers on each node, and these sizes.
    pub fn closed_with(workers: usize, sizes: Sizes) -> Self {
        Self::seeded(workers, sizes, [HashSeed::random(); 2])
    }

    /// Like [`Self::closed_with`], with these seeds of each node's hashes and random numbers.
    pub fn seeded(workers: usize, sizes: Sizes, seeds: [HashSeed; 2]) -> Self {
        Self {
            contents: Contents::from_texts([]),
            cluster: Cluster::default(),
            nodes: seeds.map(|seed| Node::new(workers, sizes, seed)),
            connections: TrackingSettings::default(),
            owns_uplink: false,
            own_addresses: BTreeSet::new(),
            translates_services: false,
            services: None,
            manx_ports: None,
            outgoing: None,
            overlay: Overlay::Ipip,
            offload: |_| Capabilities::ALL,
            has_own_network: true,
        }
    }

    /// A fabric in which every pod of these manifests is attached to its node, and tables are published.
    pub fn new(yaml: &str) -> Self {
        Self::with_offload(yaml, |_| Capabilities::ALL)
    }

    /// Like [`Self::new`], with nodes, blocks and pools as the manifests have them. Routes come from these and from pods'
    /// objects alone, so the objects have to place each pod on the node where it is attached.
    pub fn routed_by_objects(yaml: &str) -> Self {
        let mut fabric = Self { has_own_network: false, ..Self::closed() };
        fabric.apply(yaml);
        fabric
    }

    /// Like [`Self::new`], with these capabilities of the pods' ports.
    pub fn with_offload(yaml: &str, offload: fn(&ObjectName) -> Capabilities) -> Self {
        let mut fabric = Self { offload, ..Self::closed() };
        fabric.apply(yaml);
        fabric
    }

    /// Like [`Self::new`], with nodes that own their uplinks.
    pub fn with_uplinks(yaml: &str) -> Self {
        let mut fabric = Self { owns_uplink: true, ..Self::closed() };
        for node in &mut fabric.nodes {
            node.attach(UPLINK, Capabilities::ALL);
        }
        fabric.apply(yaml);
        fabric
    }

    /// Like [`Self::new`], with nodes that translate service addresses.
    pub fn with_services(yaml: &str) -> Self {
        let mut fabric = Self { translates_services: true, ..Self::closed() };
        for node in &mut fabric.nodes {
            node.attach(SERVICE, Capabilities::ALL);
        }
        fabric.apply(yaml);
        fabric
    }

    /// Like [`Self::new`], with nodes on which Manx translates these services itself. The manifests name their addresses.
    pub fn translating(yaml: &str, services: ServiceTable) -> Self {
        Self::closed().into_translating(yaml, services)
    }

    /// Like [`Self::translating`], but starts from a fabric without tables.
    pub fn into_translating(self, yaml: &str, services: ServiceTable) -> Self {
        let mut fabric = self;
        fabric.translate(services);
        fabric.apply(yaml);
        fabric
    }

    /// Makes Manx translate these services itself on both nodes, from the next publication on.
    pub fn translate(&mut self, services: ServiceTable) {
        (self.translates_services, self.services) = (true, Some(Arc::new(services)));
    }

    /// Like [`Self::translating`], with ports of the nodes that belong to Manx. Packets to the
    /// world get the node's address and one of these ports if their source lies in `asks` and their
    /// destination does not lie in `stays`.
    pub fn with_manx_ports(
        yaml: &str,
        services: ServiceTable,
        egress: (u16, u16),
        (asks, stays): (&[&str], &[&str]),
    ) -> Self {
        let mut values: BTreeMap<IpNet, u32> = BTreeMap::new();
        for (nets, value) in [(asks, ManxPorts::ASKS), (stays, ManxPorts::STAYS)] {
            for net in nets {
                *values.entry(net.parse().unwrap()).or_default() |= value;
            }
        }
        let masquerade = Arc::new(PrefixMap::build(0, values));
        let manx_ports = Some(ManxPorts { masquerade, ..no_way_out(egress) });
        let mut fabric = Self { manx_ports, ..Self::closed() };
        for node in &mut fabric.nodes {
            node.attach(MANX, Capabilities::ALL);
        }
        fabric.into_translating(yaml, services)
    }

    /// Publishes the current tables again, with other services and an unchanged version.
    pub fn set_services(&mut self, services: ServiceTable) {
        self.services = Some(Arc::new(services));
        for node in &mut self.nodes {
            let tables = Tables { services: self.services.clone(), ..Tables::clone(&node.tables) };
            node.tables = Arc::new(tables);
            let tables = Arc::clone(&node.tables);
            node.send_command(|| Command::Publish(Arc::clone(&tables)));
        }
    }

    /// Like [`Self::new`], with pods that another plugin connects.
    pub fn policy_only(yaml: &str) -> Self {
        let mut fabric = Self::closed();
        for node in &mut fabric.nodes {
            node.is_policy_only = true;
        }
        fabric.apply(yaml);
        fabric
    }

    /// Like [`Self::policy_only`], with nodes on which Manx translates these services itself and
    /// owns some of the nodes' ports.
    pub fn policy_only_translating(yaml: &str, services: ServiceTable, egress: (u16, u16)) -> Self {
        let mut fabric = Self { manx_ports: Some(no_way_out(egress)), ..Self::closed() };
        for node in &mut fabric.nodes {
            node.is_policy_only = true;
            node.attach(MANX, Capabilities::ALL);
        }
        fabric.into_translating(yaml, services)
    }

    /// Like [`Self::policy_only`], with nodes that translate service addresses.
    pub fn policy_only_with_services(yaml: &str) -> Self {
        let mut fabric = Self { translates_services: true, ..Self::closed() };
        for node in &mut fabric.nodes {
            node.is_policy_only = true;
            node.attach(SERVICE, Capabilities::ALL);
        }
        fabric.apply(yaml);
        fabric
    }

    /// Replaces the manifests, attaches new pods, and publishes tables. A pod that is gone stays attached until it is
    /// detached, but loses addresses that another pod has got.
    pub fn apply(&mut self, yaml: &str) {
        self.load(yaml);
        self.publish();
    }

    /// Replaces the manifests and attaches new pods, without publication.
    pub fn load(&mut self, yaml: &str) {
        self.read(yaml);
        self.attach();
    }

    /// Replaces the manifests only.
    pub fn read(&mut self, yaml: &str) {
        self.contents = Contents::from_texts([("cluster.yaml", yaml)]);
        self.cluster = import(&self.contents);
        if !self.has_own_network {
            return;
        }
        self.cluster.nodes =
            NODES.iter().enumerate().map(|(index, name)| node(index, name)).collect();
        self.cluster.pools = vec![Pool {
            cidr: "10.244.0.0/16".parse().unwrap(),
            overlay: self.overlay,
            mode: EncapsulationMode::Always,
            nat_outgoing: false,
            holds_nodes: false,
        }];
    }

    /// Attaches every pod of the manifests that is new.
    fn attach(&mut self) {
        let mut taken: Vec<IpAddr> = Vec::new();
        let endpoints = self.cluster.model.endpoints.clone();
        for (name, endpoint) in &endpoints {
            let Some(node) = self.node_of(name) else { continue };
            // An address belongs to one pod at a time, even if the manifests give it to several.
            let addresses: Vec<IpAddr> =
                endpoint.addresses.iter().copied().filter(|ip| !taken.contains(ip)).collect();
            taken.extend(&addresses);
            match self.nodes[node].locals.get_mut(name) {
                Some(local) => local.addresses = addresses,
                None => self.nodes[node].attach_pod(name, addresses, (self.offload)(name)),
            }
        }
        for node in &mut self.nodes {
            let gone = node.locals.iter_mut().filter(|(name, _)| !endpoints.contains_key(*name));
            gone.for_each(|(_, local)| local.addresses.retain(|ip| !taken.contains(ip)));
        }
    }

    pub fn publish(&mut self) {
        for node in 0..2 {
            let tables = self.tables(node);
            self.nodes[node].publish(tables);
        }
    }

    /// The next tables of a node.
    pub fn tables(&mut self, node: usize) -> Tables {
        let tables =
            self.calculate(node, None, |calculation, _, inputs| calculation.tables(inputs));
        let mut tables = match &self.services {
            None => tables,
            Some(services) => {
                Tables { kube_proxy_port: None, services: Some(Arc::clone(services)), ..tables }
            }
        };
        if let Some(ports) = &self.manx_ports {
            let roles = tables.roles.len().max(MANX.0 as usize + 1);
            tables.roles.resize(roles, Role::Closed);
            tables.roles[MANX.0 as usize] = Role::ManxPorts;
            let addresses = [Some(UNDERLAY[node].into()), Some(underlay_v6(node).into())];
            let outgoing = self.outgoing.map_or(addresses, |it| it.map(|it| it.map(Into::into)));
            tables.manx_ports = Some(ManxPorts { addresses, outgoing, ..ports.clone() });
        }
        tables
    }

    /// Stores a route to `prefix` in the tables that a node uses. Returns whether these tables could be changed in
    /// place.
    pub fn change_route(&mut self, node: usize, prefix: IpNet, route: Route) -> bool {
        let made = self.calculate(node, Some((prefix, route)), |calculation, tables, inputs| {
            calculation.change_routes(tables, inputs, None)
        });
        made != InPlace::Refused
    }

    /// Calls a function of a node's calculation with its inputs and, if given, one more route.
    fn calculate<T>(
        &mut self,
        node: usize,
        route: Option<(IpNet, Route)>,
        then: impl FnOnce(&mut Calculation, &Tables, &Inputs<'_>) -> T,
    ) -> T {
        let mut topology = topology(&self.cluster, NODES[node], &Reserved::new()).unwrap();
        // The pods here may have addresses outside all blocks. Routes lead to the nodes where they are attached, not to
        // those in their objects.
        let placed = if self.has_own_network { &self.nodes[..] } else { &[] };
        for borrowed in self.cluster.borrowed.keys().filter(|_| self.has_own_network) {
            topology.prefixes.remove(&(*borrowed).into());
        }
        for (at, other) in placed.iter().enumerate() {
            for ip in other.locals.values().flat_map(|local| &local.addresses) {
                let route = match ip {
                    _ if at == node => Route::Local,
                    _ if other.is_policy_only => Route::World,
                    IpAddr::V4(_) => {
                        Route::Tunnel(Peer { address: UNDERLAY[at], overlay: self.overlay })
                    }
                    IpAddr::V6(_) => Route::Direct(underlay_v6(at)),
                };
                topology.prefixes.insert((*ip).into(), route);
            }
        }
        topology.prefixes.extend(route);
        let is_pod = |address: &IpAddr| {
            let mut endpoints = self.cluster.model.endpoints.values();
            endpoints.any(|it| it.addresses.contains(address))
        };
        let services = KubeProxyServices::new(
            &self.contents,
            &topology,
            |_| false,
            &KubeProxyServices::default(),
            is_pod,
        );
        let sockets = BTreeMap::from([(Overlay::Vxlan, RAW)]);
        let underlay = Underlay { sockets, ..Underlay::new(MTU, RAW) };
        let host = Link::native(HOST, MTU);
        let Node { calculation, locals, tables, is_policy_only, .. } = &mut self.nodes[node];
        let has_forwarded = !self.owns_uplink && (!*is_policy_only || self.services.is_some());
        let inputs = Inputs {
            cluster: &self.cluster,
            topology: &topology,
            locals: &locals.iter().collect(),
            underlay: &underlay,
            host,
            forwarded: has_forwarded.then_some(FORWARDED),
            uplink: self.owns_uplink.then_some(Link::native(UPLINK, MTU)),
            own_addresses: &self.own_addresses,
            services: if self.translates_services {
                ServiceMode::KubeProxy(&services, Link::native(SERVICE, MTU))
            } else {
                ServiceMode::Nobody
            },
            connections: self.connections,
            interfaces: Interfaces {
                node: NODES[node],
                uplink: Some("eth0"),
                addresses: &[UNDERLAY[node].into()],
            },
        };
        then(calculation, tables, &inputs)
    }

    pub fn node_of(&self, pod: &ObjectName) -> Option<usize> {
        let node = self.cluster.pods_by_node.get(pod)?;
        NODES.iter().position(|name| *name == &**node)
    }

    /// The node and the port of an attached pod, by `namespace/name`.
    pub fn port(&self, pod: &str) -> (usize, PortId) {
        let (namespace, name) = pod.split_once('/').unwrap();
        let name = ObjectName::new(namespace, name);
        let found = self.nodes.iter().position(|node| node.locals.contains_key(&name)).unwrap();
        (found, self.nodes[found].locals[&name].port)
    }

    /// The port of an attached pod towards its node, if another plugin connects it.
    pub fn host_side(&self, pod: &str) -> PortId {
        let (node, port) = self.port(pod);
        let mut locals = self.nodes[node].locals.values();
        locals.find(|local| local.port == port).and_then(|local| local.host.as_ref()).unwrap().port
    }

    /// Sends a packet to a pod's port, and returns the packets that come out.
    pub fn send(&mut self, pod: &str, bytes: &[u8]) -> Vec<Delivery> {
        let (node, port) = self.port(pod);
        self.send_at(node, port, bytes)
    }

    /// Sends a packet to a port, and returns the packets that come out.
    pub fn send_at(&mut self, node: usize, port: PortId, bytes: &[u8]) -> Vec<Delivery> {
        self.nodes[node].inject(port, bytes);
        self.run_until_idle()
    }

    /// Runs both nodes, and carries packets between them (by the tunnel, and IPv6 through the kernels), until no packet
    /// moves any more. Returns the packets that came out elsewhere.
    pub fn run_until_idle(&mut self) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        loop {
            let mut moved = false;
            for node in 0..2 {
                self.nodes[node].run();
                let ports: Vec<PortId> = self.nodes[node].wires.keys().copied().collect();
                for port in ports {
                    for frame in self.nodes[node].collect(port) {
                        match self.next_node(node, port, &frame) {
                            Some((other, port)) => {
                                self.nodes[other].inject_with(port, &frame.bytes, frame.offload);
                                moved = true;
                            }
                            None => deliveries.push(Delivery { node, port, frame }),
                        }
                    }
                }
            }
            if !moved {
                return deliveries;
            }
        }
    }

    /// The other node, and the port by which the packet comes in there; `None` if the packet does not go to the other
    /// node.
    fn next_node(&self, node: usize, port: PortId, frame: &Frame) -> Option<(usize, PortId)> {
        let other = 1 - node;
        let (_, destination) = crate::packet::addresses(&frame.bytes);
        match port {
            RAW if destination == IpAddr::V4(UNDERLAY[other]) => Some((other, RAW)),
            HOST | UPLINK if destination.is_ipv6() && (port == UPLINK) == self.owns_uplink => {
                let mut remote = self.nodes[other].locals.values();
                remote.any(|local| local.addresses.contains(&destination)).then_some((other, port))
            }
            _ => None,
        }
    }
}

fn node(index: usize, name: &str) -> (String, NodeObject) {
    let block = |text: String| text.parse().unwrap();
    let object = NodeObject {
        internal_ips: vec![UNDERLAY[index].into(), underlay_v6(index)],
        subnet: None,
        plan: Plan::host_local([
            block(format!("10.244.{}.0/24", index + 1)),
            block(format!("fd44:{}::/64", index + 1)),
        ]),
        vxlan_mac: vxlan_mac(index),
        ..NodeObject::default()
    };
    (name.to_owned(), object)
}

/// The hardware address of a node in VXLAN frames.
pub const fn vxlan_mac(index: usize) -> [u8; 6] {
    [0x66, 0, 0, 0, 0, index as u8]
}

/// A node's IPv6 address.
pub fn underlay_v6(index: usize) -> IpAddr {
    format!("fd18::{}", index + 2).parse().unwrap()
}

/// The manifest of a Pod. `labels` is a flow mapping of YAML.
pub fn pod(name: &str, node: usize, labels: &str, addresses: &[&str]) -> String {
    let (namespace, name) = name.split_once('/').unwrap();
    let ips: Vec<String> = addresses.iter().map(|ip| format!("{{ip: \"{ip}\"}}")).collect();
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}, labels: {labels}}}\n\
         spec: {{nodeName: {}, containers: [{{name: c}}]}}\n\
         status: {{phase: Running, podIP: \"{}\", podIPs: [{}]}}\n---\n",
        NODES[node],
        addresses[0],
        ips.join(", "),
    )
}

/// The manifest of a NetworkPolicy. `spec` is a flow mapping of YAML.
pub fn policy(name: &str, spec: &str) -> String {
    let (namespace, name) = name.split_once('/').unwrap();
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
         metadata: {{name: {name}, namespace: {namespace}}}\nspec: {spec}\n---\n"
    )
}
