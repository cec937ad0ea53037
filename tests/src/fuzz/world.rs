//! One world: two nodes with real workers, a plan that changes, and packets in batches. Each batch is judged when no
//! packet moves any more.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ahash::RandomState;
use fastrand::Rng;
use manx_calculation::import::Cluster;
use manx_calculation::overlay::Overlay;
use manx_dataplane::flow::HashSeed;
use manx_dataplane::packet::Offload;
use manx_dataplane::pipeline::Sizes;
use manx_dataplane::tables::{Established, PortId, TrackingSettings as Following};

use super::batch::{Counts, NodeBatch, Output, Violation};
use super::coverage::{Coverage, Event, Kind};
use super::epoch::Epoch;
use super::generate::Generator;
use super::history::History;
use super::input::{Injected, Input};
use super::judge::Judge;
use super::oracle::Terms;
use super::plan::Plan;
use super::sabotage::Sabotage;
use super::services::Services;
use super::way_out::ported_addresses;
use crate::fabric::{FORWARDED, Fabric, HOST, MANX, RAW, UNDERLAY};

/// A port that no tables name.
pub const STRAY: PortId = PortId(6);

/// The settings of a world.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub workers: usize,
    pub sizes: Sizes,
    pub overlay: Overlay,
    pub terms: Terms,
}

impl Settings {
    fn new(rng: &mut Rng, services: bool) -> Self {
        let flows = [256, 1024, 4096][rng.usize(..3)];
        // The check of the buffers needs as many segments as buffers.
        let buffers = [64, 128][rng.usize(..2)];
        let translates = services && rng.bool();
        Self {
            workers: rng.usize(1..4),
            sizes: Sizes { flows, translates: services, buffers, fragments: 64 },
            overlay: if rng.u8(..3) == 0 { Overlay::Vxlan } else { Overlay::Ipip },
            terms: Terms {
                is_strict: rng.u8(..5) == 0,
                keeps: rng.u8(..3) == 0,
                translates,
                has_ports: translates && rng.bool(),
            },
        }
    }

    /// The coverage events that these settings count as.
    pub(super) fn events(&self) -> [Option<Event>; 6] {
        let workers = match self.workers {
            1 => Event::OneWorker,
            2 => Event::TwoWorkers,
            _ => Event::ThreeWorkers,
        };
        let overlay = match self.overlay {
            Overlay::Ipip => Event::Ipip,
            Overlay::Vxlan => Event::Vxlan,
        };
        let Terms { is_strict, keeps, translates, has_ports } = self.terms;
        [
            Some(workers),
            Some(overlay),
            is_strict.then_some(Event::Strict),
            keeps.then_some(Event::Keeps),
            translates.then_some(Event::Translates),
            has_ports.then_some(Event::HasPorts),
        ]
    }

    /// The MTU of the tunnel.
    fn tunnel_mtu(&self) -> u32 {
        match self.overlay {
            Overlay::Ipip => 1480,
            Overlay::Vxlan => 1450,
        }
    }
}

/// See the module.
pub struct World {
    pub settings: Settings,
    pub plan: Plan,
    pub(super) fabric: Fabric,
    /// The cluster that each node has imported.
    pub(super) clusters: [Cluster; 2],
    /// The pods with devices, and the numbers of their attachments.
    pub(super) devices: [BTreeMap<PortId, (usize, u32)>; 2],
    /// The epochs by which a batch may be judged, the current one last.
    pub(super) epochs: Vec<Rc<Epoch>>,
    pub(super) judge: Judge,
    pub(super) generator: Generator,
    /// Random numbers for choices that packets do not depend on, such as the worker that runs next.
    pub(super) chance: Rng,
    pub(super) node_batches: [NodeBatch; 2],
    pub(super) sabotage: Option<Sabotage>,
    /// The number of packets of each node that are counted as refused by a port, although they have
    /// come out.
    refused: [u64; 2],
    pub(super) now: Duration,
    pub batches: u64,
    pub history: History,
}

impl World {
    /// A world with devices, before its first tables. It may have `services`.
    pub fn new(seed: u64, number: u64, services: bool, sabotage: Option<Sabotage>) -> Self {
        let world_seed = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut rng = Rng::with_seed(world_seed);
        let mut settings = Settings::new(&mut rng, services);
        settings.terms.translates |= sabotage.is_some_and(Sabotage::is_of_translation);
        settings.terms.has_ports |= sabotage.is_some_and(Sabotage::is_of_ports);
        if sabotage == Some(Sabotage::Full) {
            settings.workers = 1;
        }
        let mut plan = Plan::new(&mut rng);
        if settings.terms.translates {
            let mut services = Services::new(&mut rng, settings.terms.has_ports);
            if let Some(way_out) =
                services.way_out.as_mut().filter(|_| sabotage == Some(Sabotage::Full))
            {
                way_out.narrow();
            }
            plan.services = Rc::new(services);
        }
        for at in 0..plan.planned_pods.len() {
            // Some pods are attached only later.
            if rng.u8(..8) > 0 {
                plan.attach(at);
            }
        }
        if sabotage == Some(Sabotage::Policy) {
            plan.hidden = Some(rng.usize(..plan.policies()));
        }
        // The seeds are separate from the packets' random numbers, so the packets do not depend on
        // them.
        let seeds = [0, 1].map(|node| HashSeed::fixed(world_seed ^ node));
        let mut fabric = Fabric::seeded(settings.workers, settings.sizes, seeds);
        let Terms { is_strict, keeps, translates, .. } = settings.terms;
        let established = if keeps { Established::Keep } else { Established::Judge };
        fabric.connections = Following { tcp_strict: is_strict, established };
        fabric.overlay = settings.overlay;
        if translates {
            fabric.translate(Default::default());
        }
        if let Some(way_out) = &plan.services.way_out {
            let lies = sabotage == Some(Sabotage::Masquerade);
            fabric.manx_ports = Some(way_out.tables(way_out.egress, lies));
            for node in &mut fabric.nodes {
                node.attach(MANX, manx_dataplane::packet::Capabilities::ALL);
            }
        }
        let judge = Judge {
            hasher: RandomState::with_seeds(1, 2, 3, 4),
            overlay: settings.overlay,
            tunnel_mtu: settings.tunnel_mtu(),
            terms: settings.terms,
            connections: Default::default(),
            translations: Default::default(),
            moves: Default::default(),
            is_single: [settings.workers == 1; 2],
        };
        let chance = rng.fork();
        let is_vxlan = matches!(settings.overlay, Overlay::Vxlan);
        let generator = Generator::new(rng, &plan, is_vxlan);
        let mut world = Self {
            settings,
            plan,
            fabric,
            clusters: Default::default(),
            devices: Default::default(),
            epochs: vec![Rc::new(Epoch::closed())],
            judge,
            generator,
            chance,
            node_batches: Default::default(),
            sabotage,
            refused: [0; 2],
            now: Duration::from_secs(1),
            batches: 0,
            history: History::default(),
        };
        for node in &mut world.fabric.nodes {
            node.attach(STRAY, manx_dataplane::packet::Capabilities::ALL);
        }
        world.attach_devices(&mut Coverage::default());
        world
    }

    /// Generates and sends packets, and judges them when none moves any more; returns their number.
    pub fn batch(&mut self, coverage: &mut Coverage) -> Result<u64, Box<Violation>> {
        self.batches += 1;
        let most = [1, 4, 16, 48, 48][self.generator.rng.usize(..5)];
        while self.generator.made.len() < most {
            self.generator.step();
        }
        let straddles = self.generator.rng.u8(..64) == 0;
        let made = std::mem::take(&mut self.generator.made);
        let packets = made.len() as u64;
        for injected in made {
            coverage.generated[injected.kind as usize] += 1;
            self.inject(injected);
        }
        coverage.packets += packets;
        if straddles && self.epochs[0].number > 0 {
            coverage.count(Event::Straddled);
            self.some_turns();
            self.change(coverage, true);
        }
        self.run_until_idle(coverage);
        self.judge_nodes(coverage)?;
        self.pass_time(coverage);
        Ok(packets)
    }

    /// Decides at random whether to make a change.
    pub fn is_time_for_change(&mut self) -> bool {
        // In a world that translates, every second change is a change of services.
        self.generator.rng.u8(..) <= u8::from(self.settings.terms.translates)
    }

    /// Decides at random whether to replace an agent.
    pub fn is_time_for_next_agent(&mut self) -> bool {
        self.generator.rng.u16(..1024) == 0
    }

    /// Ends the agent of a node, and starts the next one with any number of workers.
    pub fn replace_agent(&mut self, coverage: &mut Coverage) {
        let rng = &mut self.generator.rng;
        let (node, workers) = (rng.usize(..2), rng.usize(1..4));
        let has_records = self.sabotage != Some(Sabotage::Forget);
        let at = &mut self.fabric.nodes[node];
        let restored = at.replace_workers(workers, self.settings.sizes, has_records);
        self.judge.is_single[node] = workers == 1;
        coverage.count(Event::NextAgent);
        coverage.add(Event::Restored, restored.flows as u64);
        let before = &mut self.node_batches[node].before;
        let after = Counts::read(at).with_refused(self.refused[node]);
        let evicted = [before.evictions, after.evictions];
        *before = after;
        let epoch = &self.epochs[self.epochs.len() - 1];
        let now = self.now.as_secs_f64();
        self.judge.connections[node].outlive(epoch, node, now, evicted);
        self.judge.translations[node].get_mut().outlive(epoch, node, now, evicted);
    }

    /// Sends a packet, if the port exists and has room.
    fn inject(&mut self, injected: Injected) {
        let Injected { node, port, worker, ref bytes, offload, .. } = injected;
        let is_there = matches!(port, HOST | FORWARDED | RAW | STRAY)
            || port == MANX && self.settings.terms.has_ports
            || self.devices[node].contains_key(&port);
        if !is_there || !self.fabric.nodes[node].wires[&port].inject_at(worker, bytes, offload) {
            return;
        }
        let mut input = Input::new(injected, self.settings.overlay, self.judge.tunnel_mtu);
        if self.sabotage == Some(Sabotage::Source) && self.chance.u8(..) == 0 {
            input.misattribute();
        }
        self.node_batches[node].add(&self.judge.hasher, input);
    }

    /// Runs randomly chosen workers a few times.
    pub(super) fn some_turns(&mut self) {
        for _ in 0..self.chance.usize(..6) {
            let (node, worker) = (self.chance.usize(..2), self.chance.usize(..8));
            self.fabric.nodes[node].turn_one(worker);
        }
    }

    /// Runs the workers of a node, in any order, until none finds a packet.
    pub(super) fn run(&mut self, node: usize) {
        let node = &mut self.fabric.nodes[node];
        let workers = node.workers();
        let mut worker = self.chance.usize(..workers);
        // One worker may read its ports several times before the others do.
        for _ in 0..self.chance.usize(..4) {
            node.turn_one(worker);
        }
        let mut idle = 0;
        while idle <= 2 * workers {
            let found = node.turn_one(worker);
            idle = if found == 0 { idle + 1 } else { 0 };
            worker += 1;
        }
    }

    /// Runs both nodes, and carries packets between them, until no packet moves any more.
    pub(super) fn run_until_idle(&mut self, coverage: &mut Coverage) {
        loop {
            let mut moved = false;
            for node in 0..2 {
                self.run(node);
                moved |= self.collect(node, coverage);
            }
            if !moved {
                return;
            }
        }
    }

    /// Collects the packets that a node's ports have sent; returns whether one was carried to the other node.
    pub(super) fn collect(&mut self, node: usize, coverage: &mut Coverage) -> bool {
        let mut carried = Vec::new();
        for (port, wire) in &self.fabric.nodes[node].wires {
            while let Some(mut frame) = wire.collect() {
                if let Some(port) = self.carries(*port, node, &frame.bytes) {
                    // A wire carries only bytes.
                    let offload = if port == RAW { Offload::default() } else { frame.offload };
                    let mut bytes = self.generator.buffer();
                    bytes.clear();
                    bytes.extend_from_slice(&frame.bytes);
                    carried.push((port, bytes, offload));
                }
                let times = match self.sabotage {
                    Some(Sabotage::Reply) => {
                        self.plan.services.undo(&mut frame);
                        1
                    }
                    Some(Sabotage::Port) if *port == MANX => {
                        self.plan.services.share_port(&mut frame);
                        1
                    }
                    Some(Sabotage::Full) if *port == MANX && self.plan.services.opens(&frame) => {
                        let is_refused = self.chance.u8(..16) == 0;
                        self.refused[node] += u64::from(is_refused);
                        usize::from(!is_refused)
                    }
                    Some(sabotage) => sabotage.tamper(&mut self.chance, &mut frame),
                    None => 1,
                };
                for _ in 1..times {
                    self.node_batches[node]
                        .outputs
                        .push(Output { port: *port, frame: frame.clone() });
                }
                if times > 0 {
                    self.node_batches[node].outputs.push(Output { port: *port, frame });
                }
            }
        }
        let moved = !carried.is_empty();
        for (port, bytes, offload) in carried {
            coverage.generated[Kind::Carried as usize] += 1;
            let worker = usize::from(*bytes.last().unwrap_or(&0));
            self.inject(Injected {
                node: 1 - node,
                port,
                worker,
                bytes,
                offload,
                kind: Kind::Carried,
                is_clean: false,
            });
        }
        moved
    }

    /// The port by which a packet reaches the other node: the tunnel, or for IPv6 the nodes' kernels.
    fn carries(&self, port: PortId, node: usize, bytes: &[u8]) -> Option<PortId> {
        match port {
            RAW => (bytes.get(16..20)? == UNDERLAY[1 - node].octets()).then_some(RAW),
            MANX => {
                let destination = super::read::read(bytes)?.tuple.destination;
                ported_addresses(1 - node).contains(&destination).then_some(MANX)
            }
            HOST if bytes.first()? >> 4 == 6 => {
                let destination = super::read::read(bytes)?.tuple.destination;
                let far = |planned: &super::plan::PlannedPod| {
                    planned.node != node
                        && planned.attachment.is_some()
                        && planned.addresses.contains(&destination)
                };
                self.plan.planned_pods.iter().any(far).then_some(HOST)
            }
            _ => None,
        }
    }

    /// Judges the batch at each node.
    fn judge_nodes(&mut self, coverage: &mut Coverage) -> Result<(), Box<Violation>> {
        let now = self.now.as_secs_f64();
        if self.epochs[0].number == 0 {
            coverage.count(Event::BeforeTables);
        }
        let moved = self.judge.moved(&self.node_batches, &self.epochs);
        coverage.add(Event::ByAnotherNode, moved.len() as u64);
        self.judge.doubt(&moved);
        for node in 0..2 {
            while self.fabric.nodes[node].reports.try_recv().is_ok() {}
            let node_batch = &mut self.node_batches[node];
            let counts = Counts::read(&self.fabric.nodes[node]);
            node_batch.after = counts.with_refused(self.refused[node]);
            let judged = self.judge.judge(node, node_batch, now, &self.epochs, coverage);
            for input in &node_batch.inputs {
                self.history.add(self.batches, now, node, input);
            }
            judged?;
            let seconds = self.judge.translations[node].get_mut().take_fresh();
            self.generator.behind[node].extend(seconds);
            node_batch.before = node_batch.after;
            for Output { port, frame } in node_batch.outputs.drain(..) {
                let what = (coverage.digest, node, port.0, &frame.bytes);
                coverage.digest = self.judge.hasher.hash_one(what);
                self.fabric.nodes[node].wires[&port].recycle(frame);
            }
            node_batch.clear(&mut self.generator.spare);
        }
        self.judge.doubt(&moved);
        let last = self.epochs.len() - 1;
        self.epochs.drain(..last);
        Ok(())
    }

    fn pass_time(&mut self, coverage: &mut Coverage) {
        let rng = &mut self.generator.rng;
        let jump = |coverage: &mut Coverage, seconds: u64| {
            coverage.count(Event::Jumped);
            Duration::from_millis(seconds * 1000 + 10)
        };
        let passed = match rng.u16(..4096) {
            0..20 => jump(coverage, rng.u64(1..8)),
            20..30 => jump(coverage, rng.u64(8..50)),
            30..36 => jump(coverage, rng.u64(50..130)),
            36 => jump(coverage, rng.u64(500..5000)),
            _ => Duration::from_micros(rng.u64(..3000)),
        };
        self.now += passed;
        if self.sabotage == Some(Sabotage::Clock) {
            return;
        }
        for node in &mut self.fabric.nodes {
            node.now = self.now;
        }
    }
}
