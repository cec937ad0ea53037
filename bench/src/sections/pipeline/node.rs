//! One node in memory: the real worker with [`Station`]s as ports, and tables from the real import, calculation and
//! compiler.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, unbounded};
use ipnet::IpNet;
use manx_calculation::calc::{Calculation, Inputs, LocalPod, ServiceMode};
use manx_calculation::import::Cluster;
use manx_calculation::interfaces::Interfaces;
use manx_calculation::overlay::Underlay;
use manx_calculation::topology::{Reserved, topology};
use manx_dataplane::counters::{PortCounters, WorkerCounters};
use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::flow::FlowEntry;
use manx_dataplane::pipeline::Sizes;
use manx_dataplane::port::PacketIo;
use manx_dataplane::report::Report;
use manx_dataplane::tables::{Link, ManxPorts, PortId, Tables, TrackingSettings};
use manx_dataplane::worker::{Clock, Command, Polling, Settings, SharedState, Worker};
use manx_policy_compiler::model::ObjectName;
use manx_policy_compiler::prefix_map::PrefixMap;

use super::cluster::{Rules, cluster};
use super::packets::addresses::{
    CLIENT, CLIENT_PORT, HOST, NAME, NODE, RAW, SERVER, SERVER_PORT, UPLINK,
};
use super::packets::framed::{Framed, link_ends};
use super::packets::station::{Pace, Station};
use crate::error::Failure;

const MTU: u32 = 1500;
const PORTS: [PortId; 5] = [HOST, RAW, UPLINK, CLIENT_PORT, SERVER_PORT];

/// If packets advance the clock ([`Node::count_time`]), each packet advances it by this.
const PER_PACKET: Duration = Duration::from_nanos(50);
/// The number of buffers of a worker: twice the size of a device's ring.
pub(crate) const BUFFERS: usize = 2 * Pace::DEVICE.ring;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// The rules of the node's policies.
    pub(crate) rules: Rules,
    /// The number of other nodes.
    pub(crate) nodes: u32,
    /// The size of the flow table.
    pub(crate) flows: usize,
    /// Whether its ports carry Ethernet frames instead of packets.
    pub(crate) ethernet: bool,
    /// Whether the source of packets that leave the node is translated.
    pub(crate) translates: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            rules: Rules::Pods(101),
            nodes: 1,
            flows: Sizes::default().flows,
            ethernet: false,
            translates: false,
        }
    }
}

/// The node in memory.
pub(crate) struct Node {
    pub(crate) cluster: Cluster,
    pub(crate) locals: BTreeMap<ObjectName, LocalPod>,
    calculation: Calculation,
    /// Whether Manx owns the uplink.
    owns_uplink: bool,
    pub(crate) tables: Tables,
    pub(crate) counters: Arc<WorkerCounters>,
    stations: BTreeMap<PortId, (Station, Arc<PortCounters>)>,
    pub(crate) commands: Sender<Command>,
    pub(crate) reports: Receiver<Report>,
    pub(crate) worker: Worker,
    clock: Clock,
    /// The current time, if packets advance the clock.
    counted: Option<Duration>,
    /// The number of packets in the worker's last turn.
    found: usize,
}

impl Node {
    /// Creates a node with tables and ports, and without flows.
    pub(crate) fn new(shape: Shape) -> Result<Self, Failure> {
        let sizes = Sizes { flows: shape.flows, buffers: BUFFERS, ..Sizes::default() };
        Self::one_of_several(shape, sizes, SharedState::alone()?)
    }

    /// Creates a node with a worker of these sizes. `share` is the state that several workers of a node share.
    pub(crate) fn one_of_several(
        shape: Shape,
        sizes: Sizes,
        share: SharedState,
    ) -> Result<Self, Failure> {
        let (commands, receiver) = unbounded();
        let (sender, reports) = unbounded();
        let counters = Arc::new(WorkerCounters::default());
        let sizes = Sizes { translates: shape.translates, ..sizes };
        let settings = Settings { sizes, polling: Polling::Busy, core: None };
        let worker = Worker::new(settings, share, receiver, sender, Arc::clone(&counters))?;
        let mut node = Self {
            cluster: cluster(shape.rules, shape.nodes)?,
            locals: locals(),
            calculation: Calculation::default(),
            owns_uplink: matches!(shape.rules, Rules::Untracked(..)),
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
            node.attach(port, shape.ethernet)?;
        }
        node.tables = node.calculate()?;
        if shape.translates {
            node.tables.manx_ports = Some(way_out());
        }
        node.publish()?;
        Ok(node)
    }

    fn attach(&mut self, port: PortId, ethernet: bool) -> Result<(), Failure> {
        let (station, io): (_, Box<dyn PacketIo>) = if ethernet {
            let [near, far] = link_ends(port);
            let station = Station::new(Some(far))?;
            (station.clone(), Box::new(Framed::new(station, near)))
        } else {
            let station = Station::new(None)?;
            (station.clone(), Box::new(station))
        };
        let counters = Arc::new(PortCounters::default());
        self.send_command(Command::Attach(port, io, Arc::clone(&counters)))?;
        self.stations.insert(port, (station, counters));
        Ok(())
    }

    /// Makes tables from the current state of the cluster.
    pub(crate) fn calculate(&mut self) -> Result<Tables, Failure> {
        let topology = topology(&self.cluster, NAME, &Reserved::new())?;
        let underlay = Underlay::new(MTU, RAW);
        Ok(self.calculation.tables(&Inputs {
            cluster: &self.cluster,
            topology: &topology,
            locals: &self.locals.iter().collect(),
            underlay: &underlay,
            host: Link::native(HOST, MTU),
            forwarded: None,
            own_addresses: &BTreeSet::new(),
            uplink: self.owns_uplink.then_some(Link::native(UPLINK, MTU)),
            services: ServiceMode::Nobody,
            connections: TrackingSettings::default(),
            interfaces: Interfaces {
                node: NAME,
                uplink: Some("eth0"),
                addresses: &[IpAddr::V4(NODE)],
            },
        }))
    }

    /// Publishes a copy of the tables to the worker. Returns the copy, so that it can also be published to other
    /// workers.
    pub(crate) fn publish(&mut self) -> Result<Arc<Tables>, Failure> {
        let tables = Arc::new(self.tables.clone());
        self.publish_shared(&tables)?;
        Ok(tables)
    }

    /// Publishes tables that other workers use, too.
    pub(crate) fn publish_shared(&mut self, tables: &Arc<Tables>) -> Result<(), Failure> {
        self.send_command(Command::Publish(Arc::clone(tables)))
    }

    /// Sends the worker a command, which it runs at once.
    pub(crate) fn send_command(&mut self, command: Command) -> Result<(), Failure> {
        self.commands.send(command)?;
        let now = self.clock.begin_turn(false);
        if self.worker.run_commands(now) { Ok(()) } else { Err("the worker has ended".into()) }
    }

    /// Runs one turn in the same way as the worker's own loop.
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

    /// From now on, packets advance the clock instead of real time. So periodic work is done equally often in each run.
    pub(crate) fn count_time(&mut self) {
        self.counted = Some(self.clock.begin_turn(false));
    }

    #[inline]
    fn step(&mut self) -> usize {
        let mut now = self.clock.begin_turn(self.found > 0);
        if let Some(counted) = &mut self.counted {
            *counted += PER_PACKET * self.found as u32;
            now = *counted;
        }
        // The worker never gets a command to end.
        self.worker.step(now).unwrap_or_default()
    }

    /// Runs until no more packets arrive. Returns their number.
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

    /// The station of a port.
    pub(crate) fn station(&self, port: PortId) -> &Station {
        &self.stations[&port].0
    }

    /// Sets whether every packet that leaves is parsed.
    pub(crate) fn check(&self, checks: bool) {
        self.stations.values().for_each(|(station, _)| station.check(checks));
    }

    /// The number of packets that all ports have transmitted, and the number of broken packets among them, which no
    /// receiver would accept.
    pub(crate) fn transmitted(&self) -> (u64, u64) {
        let each = self.stations.values().map(|(station, _)| station.transmitted());
        each.fold((0, 0), |sum, port| (sum.0 + port.0, sum.1 + port.1))
    }

    /// All drop counters that are not 0, by reason.
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
        self.send_command(Command::Flows(usize::MAX, sender))?;
        Ok(receiver.recv()?)
    }
}

/// The masquerading of the node: packets from the client to other hosts get the node's address.
fn way_out() -> ManxPorts {
    let asks = [(IpNet::from(IpAddr::V4(CLIENT)), ManxPorts::ASKS)];
    ManxPorts {
        link: Link::native(HOST, MTU),
        egress: (1024, 65_534),
        addresses: [Some(NODE.into()), None],
        outgoing: [Some(NODE.into()), None],
        masquerade: Arc::new(PrefixMap::build(0, asks)),
    }
}

/// The node's own pods.
fn locals() -> BTreeMap<ObjectName, LocalPod> {
    let pod = |index, port, address| LocalPod {
        index,
        attachment: index,
        port,
        host: None,
        addresses: vec![IpAddr::V4(address)],
        mtu: MTU,
    };
    BTreeMap::from([
        (ObjectName::new("shop", "client"), pod(0, CLIENT_PORT, CLIENT)),
        (ObjectName::new("shop", "server"), pod(1, SERVER_PORT, SERVER)),
    ])
}
