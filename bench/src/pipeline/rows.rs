//! The rows of the table: what is set up, what passes, and how many cycles a packet may cost.

use std::ops::Range;
use std::sync::Arc;

use crate::statistics::Summary;
use manx_dataplane::packet::{Packet, Pool};
use manx_dataplane::pipeline::Sizes;
use manx_dataplane::port::PacketIo;
use manx_dataplane::stage::Stage;
use manx_dataplane::sys::clock::ticks;
use manx_dataplane::tables::PortId;
use manx_dataplane::worker::Share;

use super::Failure;
use super::node::{CLIENT_PORT, HOST, Node, Peers, RAW, Rules, SERVER_PORT, Shape};
use super::station::Station;
use super::stream::{Stream, Way};

/// As many packets as a worker takes at once.
pub(crate) const WHOLE: usize = usize::MAX;

/// What passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// Flows that both sides have spoken in: from the client to pods of other nodes without a tunnel.
    Plain(u32),
    /// The same to the pod beside it: two endpoints' policies.
    Near(u32),
    /// The same to pods behind a tunnel.
    Encapsulated(u32),
    /// The answers of pods behind tunnels.
    Decapsulated(u32),
    /// Every packet begins a flow that was never seen.
    New,
    /// Every packet is allowed before connection tracking.
    Untracked(u32),
}

/// A row.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) rules: Rules,
    pub(crate) nodes: u32,
    pub(crate) traffic: Traffic,
    pub(crate) vector: usize,
    /// Cycles per packet at most.
    pub(crate) goal: u32,
}

const fn row(
    name: &'static str,
    what: &'static str,
    rules: Rules,
    traffic: Traffic,
    goal: u32,
) -> Row {
    Row { name, what, rules, nodes: 1, traffic, vector: WHOLE, goal }
}

const fn established(name: &'static str, what: &'static str, traffic: Traffic, goal: u32) -> Row {
    row(name, what, Rules::Pods(101), traffic, goal)
}

/// The table's rows, in its order.
pub(crate) const ROWS: &[Row] = &[
    established("flows-1k", "established, 1,000 flows", Traffic::Plain(1000), 80),
    established("flows-100k", "established, 100,000 flows", Traffic::Plain(100_000), 110),
    established("flows-1m", "established, 1,000,000 flows", Traffic::Plain(1_000_000), 170),
    established("both-1k", "policy of both ends, 1,000 flows", Traffic::Near(1000), 110),
    established("both-100k", "policy of both ends, 100,000 flows", Traffic::Near(100_000), 180),
    Row {
        vector: 1,
        ..established("vector-1", "1,000 flows, one packet at a time", Traffic::Plain(1000), 300)
    },
    Row {
        vector: 8,
        ..established("vector-8", "1,000 flows, 8 packets at a time", Traffic::Plain(1000), 120)
    },
    Row {
        vector: 64,
        ..established("vector-64", "1,000 flows, 64 packets at a time", Traffic::Plain(1000), 80)
    },
    row("new-1", "each packet a new flow, 1 rule", Rules::Pods(1), Traffic::New, 350),
    row("new-1k", "each packet a new flow, 1,000 rules", Rules::Pods(1000), Traffic::New, 350),
    row("new-10k", "each packet a new flow, 10,000 rules", Rules::Pods(10_000), Traffic::New, 350),
    row("set-1k", "each packet a new flow, set of 1,000", Rules::Set(1000), Traffic::New, 350),
    row("set-10k", "each packet a new flow, set of 10,000", Rules::Set(10_000), Traffic::New, 350),
    row(
        "stateless-100",
        "untracked, 100 rules, one mask",
        Rules::Untracked(100, false),
        Traffic::Untracked(1000),
        100,
    ),
    row(
        "stateless-1k",
        "untracked, 1,000 rules, one mask",
        Rules::Untracked(1000, false),
        Traffic::Untracked(1000),
        100,
    ),
    row(
        "stateless-10k",
        "untracked, 10,000 rules, one mask",
        Rules::Untracked(10_000, false),
        Traffic::Untracked(1000),
        100,
    ),
    row(
        "masks-10k",
        "untracked, 10,000 rules, many masks",
        Rules::Untracked(10_000, true),
        Traffic::Untracked(1000),
        110,
    ),
    established("encap-1k", "IPIP put on, 1,000 flows", Traffic::Encapsulated(1000), 95),
    established("encap-100k", "IPIP put on, 100,000 flows", Traffic::Encapsulated(100_000), 150),
    established(
        "decap-1",
        "IPIP taken off, 1 tunnel, 1,000 flows",
        Traffic::Decapsulated(1000),
        90,
    ),
    Row {
        nodes: 100,
        ..established(
            "decap-100",
            "IPIP taken off, 100 tunnels, 1,000 flows",
            Traffic::Decapsulated(1000),
            90,
        )
    },
];

/// A row, set up and warm.
pub(crate) struct Setup {
    pub(crate) node: Node,
    entrance: PortId,
    vector: usize,
}

impl Row {
    pub(crate) fn flows(&self) -> u32 {
        match self.traffic {
            Traffic::Plain(flows)
            | Traffic::Near(flows)
            | Traffic::Encapsulated(flows)
            | Traffic::Decapsulated(flows)
            | Traffic::Untracked(flows) => flows,
            Traffic::New => u32::MAX,
        }
    }

    /// Flows that a worker's table holds.
    pub(crate) fn table(&self) -> usize {
        match self.traffic {
            Traffic::New => Shape::default().flows,
            _ => Shape::default().flows.max((self.flows() as usize).next_power_of_two()),
        }
    }

    /// The node with its flows, after one round of its packets, each of which a receiver has taken.
    pub(crate) fn set_up(&self) -> Result<Setup, Failure> {
        let sizes = Sizes { flows: self.table(), ..Sizes::default() };
        self.set_up_part(sizes, Share::nothing(), 0..self.flows())
    }

    /// One of several workers with its part of the flows.
    pub(crate) fn set_up_part(
        &self,
        sizes: Sizes,
        share: Share,
        part: Range<u32>,
    ) -> Result<Setup, Failure> {
        let flows = part.len() as u32;
        let table = self.table();
        let shape = Shape { rules: self.rules, nodes: self.nodes, flows: table };
        let node = Node::shared(shape, sizes, share)?;
        let mut setup = Setup { node, entrance: CLIENT_PORT, vector: self.vector };
        let peers = match self.traffic {
            Traffic::Near(_) => Peers::near(),
            Traffic::Encapsulated(_) | Traffic::Decapsulated(_) => Peers::far(self.nodes, true),
            Traffic::Plain(_) | Traffic::New | Traffic::Untracked(_) => {
                Peers::far(self.nodes, false)
            }
        };
        setup.node.check(true);
        let forth = Stream::udp(&peers, Way::Forth, part.start, flows);
        let back = |way| Stream::udp(&peers, way, part.start, flows);
        let steady = match self.traffic {
            Traffic::New => {
                let warm = table as u64 * 3 / 2;
                setup.pass(CLIENT_PORT, Some(forth.in_order()), warm)?;
                None
            }
            Traffic::Untracked(_) => Some((CLIENT_PORT, forth)),
            Traffic::Plain(_) => {
                setup.answered(&forth, HOST, back(Way::Back))?;
                Some((CLIENT_PORT, forth))
            }
            Traffic::Near(_) => {
                setup.answered(&forth, SERVER_PORT, back(Way::Back))?;
                Some((CLIENT_PORT, forth))
            }
            Traffic::Encapsulated(_) => {
                setup.answered(&forth, RAW, back(Way::Tunnelled))?;
                Some((CLIENT_PORT, forth))
            }
            Traffic::Decapsulated(_) => {
                setup.answered(&forth, RAW, back(Way::Tunnelled))?;
                Some((RAW, back(Way::Tunnelled)))
            }
        };
        if let Some((entrance, stream)) = steady {
            setup.entrance = entrance;
            setup.pass(entrance, Some(stream), u64::from(flows))?;
            let expected = if matches!(self.traffic, Traffic::Untracked(_)) { 0 } else { flows };
            let held = setup.node.flows()?.len();
            // Of several workers each may have some of the others' flows.
            if held.abs_diff(expected as usize) as u64 > setup.node.counters.handed_over.read() {
                return Err(
                    format!("{}: {held} flows are known, expected {expected}", self.name).into()
                );
            }
        }
        setup.node.check(false);
        Ok(setup)
    }
}

impl Setup {
    /// Opens every flow and lets it be answered.
    fn answered(&mut self, forth: &Stream, far: PortId, back: Stream) -> Result<(), Failure> {
        let flows = forth.flows().into();
        self.pass(CLIENT_PORT, Some(forth.clone().in_order()), flows)?;
        self.pass(far, Some(back), flows)
    }

    /// Takes packets through, all of which must come out. `None`: more of the last stream of this entrance.
    fn pass(
        &mut self,
        entrance: PortId,
        stream: Option<Stream>,
        count: u64,
    ) -> Result<(), Failure> {
        let stream = stream.or_else(|| self.node.station(entrance).unload());
        let Some(stream) = stream else { return Err("nothing to send".into()) };
        let handed_over = || self.node.counters.handed_over.read();
        let before = self.node.left().0 + handed_over();
        self.node.station(entrance).load(stream, count, self.vector);
        self.node.run();
        let (after, broken) = self.node.left();
        let after = after + self.node.counters.handed_over.read();
        // Another worker may have handed some over.
        if after - before < count || broken > 0 {
            return Err(format!(
                "{} of {count} packets came out, {broken} of them broken; dropped: {:?}",
                after - before,
                self.node.drops()
            )
            .into());
        }
        Ok(())
    }

    /// Cycles that `count` packets cost, generator and sink included.
    pub(crate) fn cycles(&mut self, count: u64) -> Result<u64, Failure> {
        let start = ticks();
        self.pass(self.entrance, None, count)?;
        Ok(ticks().wrapping_sub(start))
    }

    /// What generator and sink alone cost: the same packets, sent as they came. `sunk` is called with each batch's, when the
    /// sink is to take them, and when it has.
    pub(crate) fn empty(
        &mut self,
        pool: &mut Pool,
        count: u64,
        mut sunk: impl FnMut(bool),
    ) -> Result<u64, Failure> {
        let mut station: Station = self.node.station(self.entrance).clone();
        let Some(stream) = station.unload() else { return Err("nothing to send".into()) };
        // The stream goes on where it was, as if nothing had been sent.
        station.load(stream.clone(), count, self.vector);
        let mut batch: Vec<Packet> = Vec::new();
        let start = ticks();
        loop {
            let received = station.receive(pool, &mut batch, BATCH)?;
            sunk(false);
            let _ = station.transmit(pool, &mut batch)?;
            sunk(true);
            if received.drained {
                break;
            }
        }
        let spent = ticks().wrapping_sub(start);
        station.load(stream, 0, self.vector);
        Ok(spent)
    }

    /// Cycles of `count` packets by stage, and what is left of the worker's turns; generator and sink are taken off. The last stage
    /// and the turns are without what it costs to read the counter, for the sink and the generator are measured by it too; each of
    /// the others holds one reading a batch.
    pub(crate) fn stages(&mut self, pool: &mut Pool, count: u64) -> Result<Stages, Failure> {
        let (mut sink, mut last) = (0, 0);
        let empty = self.empty(pool, count, |is_over| {
            let now = ticks();
            sink += if is_over { now.wrapping_sub(last) } else { 0 };
            last = now;
        })?;
        let counters = Arc::clone(&self.node.counters);
        let read = || Stage::ALL.map(|stage| counters.stages.read(stage));
        let before = read();
        counters.stages.ask(true);
        let whole = self.cycles(count);
        counters.stages.ask(false);
        let (whole, after) = (whole? as f64, read());
        let mut spent = [0.0; Stage::ALL.len()];
        for (spent, (after, before)) in spent.iter_mut().zip(after.into_iter().zip(before)) {
            *spent = after.wrapping_sub(before) as f64;
        }
        let turns = whole - spent.iter().sum::<f64>() - empty.wrapping_sub(sink) as f64;
        spent[Stage::Send as usize] -= sink as f64;
        let of_one = |ticks: f64| ticks / count as f64;
        Ok(Stages { each: spent.map(of_one), turns: of_one(turns) })
    }
}

/// What a packet costs by stage.
pub(crate) struct Stages {
    /// In [`Stage::ALL`]'s order.
    pub(crate) each: [f64; Stage::ALL.len()],
    /// What is none of theirs: the worker's turns.
    pub(crate) turns: f64,
}

/// What the worker asks of a port at once.
const BATCH: usize = 32;

/// A row's figures: cycles per packet, and what generator and sink cost beside them.
pub(crate) struct Figures {
    pub(crate) packet: Summary,
    pub(crate) empty: f64,
    pub(crate) stages: Stages,
}

/// Runs a row in rounds; each is a run without a decision and one with it.
pub(crate) fn measure(row: &Row, rounds: usize, count: u64) -> Result<Figures, Failure> {
    let mut setup = row.set_up()?;
    let mut pool = Pool::new(512);
    let (mut packets, mut empties) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let empty = setup.empty(&mut pool, count, |_| {})? as f64 / count as f64;
        let whole = setup.cycles(count)? as f64 / count as f64;
        empties.push(empty);
        packets.push(whole - empty);
    }
    let nothing = || "no rounds were asked for";
    let packet = Summary::of(&packets).ok_or_else(nothing)?;
    let empty = Summary::of(&empties).ok_or_else(nothing)?.median;
    let stages = setup.stages(&mut pool, count)?;
    Ok(Figures { packet, empty, stages })
}
