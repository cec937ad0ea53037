//! A row, set up and measured.

use std::ops::Range;
use std::sync::Arc;

use manx_dataplane::packet::{Packet, Pool};
use manx_dataplane::pipeline::Sizes;
use manx_dataplane::port::PacketIo;
use manx_dataplane::stage::Stage;
use manx_dataplane::sys::clock::ticks;
use manx_dataplane::tables::PortId;
use manx_dataplane::worker::SharedState;

use super::Failure;
use super::node::{BUFFERS, CLIENT_PORT, HOST, Node, RAW, Rules, SERVER_PORT};
use super::peers::Peers;
use super::rows::{Decides, Row, Traffic};
use super::station::{Pace, Station};
use super::stream::{Order, Stream, Way};
use super::time::own_ticks;
use crate::statistics::Summary;

/// A row, set up and warm.
pub(crate) struct Setup {
    pub(crate) node: Node,
    entrance: PortId,
    pace: Pace,
}

impl Row {
    /// The node with its flows, after one round of its packets, each of which a receiver has taken.
    pub(crate) fn set_up(&self) -> Result<Setup, Failure> {
        let sizes = Sizes { flows: self.table(), buffers: BUFFERS, ..Sizes::default() };
        self.set_up_part(sizes, SharedState::alone(), 0..self.flows())
    }

    /// One of several workers with its part of the flows.
    pub(crate) fn set_up_part(
        &self,
        sizes: Sizes,
        share: SharedState,
        part: Range<u32>,
    ) -> Result<Setup, Failure> {
        let flows = part.len() as u32;
        let node = Node::shared(self.shape(), sizes, share)?;
        let mut setup = Setup { node, entrance: CLIENT_PORT, pace: self.pace };
        let peers = self.peers();
        setup.node.check(true);
        let forth = Stream::udp(&peers, Way::Forth, part.start, flows);
        let back = |way| Stream::udp(&peers, way, part.start, flows);
        let steady = match self.traffic {
            Traffic::New(_) => {
                let warm = self.table() as u64 * 3 / 2;
                setup.pass(CLIENT_PORT, Some(forth.in_order(Order::Scattered)), warm)?;
                None
            }
            Traffic::Untracked(..) => Some((CLIENT_PORT, forth)),
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
            let expected = if matches!(self.traffic, Traffic::Untracked(..)) { 0 } else { flows };
            let held = setup.node.flows()?.len();
            // Of several workers each may have some of the others' flows.
            if held.abs_diff(expected as usize) as u64 > setup.node.counters.handoffs.read() {
                return Err(
                    format!("{}: {held} flows are known, expected {expected}", self.name).into()
                );
            }
        }
        setup.node.check(false);
        Ok(setup)
    }

    /// Whom the client speaks with.
    fn peers(&self) -> Arc<Peers> {
        match (self.traffic, self.rules) {
            (Traffic::Near(_), _) => Peers::near(),
            (Traffic::Encapsulated(_) | Traffic::Decapsulated(_), _) => {
                Peers::far(self.nodes, true)
            }
            (Traffic::New(Decides::Any), Rules::Pods(rules)) => Peers::networks(rules, false),
            (Traffic::Untracked(_, Decides::Any), Rules::Untracked(rules, many_lengths)) => {
                Peers::networks(rules, many_lengths)
            }
            _ => Peers::far(self.nodes, false),
        }
    }
}

impl Setup {
    /// Opens every flow and lets it be answered.
    fn answered(&mut self, forth: &Stream, far: PortId, back: Stream) -> Result<(), Failure> {
        let flows = forth.flows().into();
        self.pass(CLIENT_PORT, Some(forth.clone().in_order(Order::InTurn)), flows)?;
        self.pass(far, Some(back.in_order(Order::InTurn)), flows)
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
        let handed_over = || self.node.counters.handoffs.read();
        let before = self.node.left().0 + handed_over();
        self.node.station(entrance).load(stream, count, self.pace);
        self.node.run();
        let (after, broken) = self.node.left();
        let after = after + self.node.counters.handoffs.read();
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

    /// Takes more packets of the row through. What it does is what is measured, and what valgrind counts.
    #[inline(never)]
    pub(crate) fn more(&mut self, count: u64) -> Result<(), Failure> {
        self.pass(self.entrance, None, count)
    }

    /// Generator and sink alone: sends the same packets as they came. `sunk` is called with each batch's, when the sink is to take
    /// them, and when it has.
    pub(crate) fn empty(
        &mut self,
        pool: &mut Pool,
        count: u64,
        mut sunk: impl FnMut(bool),
    ) -> Result<(), Failure> {
        let mut station: Station = self.node.station(self.entrance).clone();
        let Some(stream) = station.unload() else { return Err("nothing to send".into()) };
        // The stream goes on where it was, as if nothing had been sent.
        station.load(stream.clone(), count, self.pace);
        let mut batch: Vec<Packet> = Vec::new();
        loop {
            let received = station.receive(pool, &mut batch, BATCH)?;
            sunk(false);
            let _ = station.transmit(pool, &mut batch)?;
            sunk(true);
            if received.drained {
                break;
            }
        }
        station.load(stream, 0, self.pace);
        Ok(())
    }

    /// Cycles of `count` packets by stage, what is left of the worker's turns, and the batches that it met; generator and sink are taken off. The last stage
    /// and the turns are without what it costs to read the counter, for the sink and the generator are measured by it too; each of
    /// the others holds one reading a batch.
    pub(crate) fn stages(&mut self, pool: &mut Pool, count: u64) -> Result<Stages, Failure> {
        let (mut sink, mut last) = (0, 0);
        let start = ticks();
        self.empty(pool, count, |is_over| {
            let now = ticks();
            sink += if is_over { now.wrapping_sub(last) } else { 0 };
            last = now;
        })?;
        let empty = ticks().wrapping_sub(start);
        let counters = Arc::clone(&self.node.counters);
        let read = || Stage::ALL.map(|stage| counters.stages.read(stage));
        let given = |setup: &Self| setup.node.station(setup.entrance).given();
        let (before, given_before) = (read(), given(self));
        counters.stages.enable(true);
        let start = ticks();
        let passed = self.more(count);
        let whole = ticks().wrapping_sub(start) as f64;
        counters.stages.enable(false);
        passed?;
        let after = read();
        let mut spent = [0.0; Stage::ALL.len()];
        for (spent, (after, before)) in spent.iter_mut().zip(after.into_iter().zip(before)) {
            *spent = after.wrapping_sub(before) as f64;
        }
        let turns = whole - spent.iter().sum::<f64>() - empty.wrapping_sub(sink) as f64;
        spent[Stage::Send as usize] -= sink as f64;
        let of_one = |ticks: f64| ticks / count as f64;
        let (packets, batches) = given(self);
        let batch = (packets - given_before.0) as f64 / (batches - given_before.1) as f64;
        Ok(Stages { each: spent.map(of_one), turns: of_one(turns), batch })
    }
}

/// What a packet costs by stage.
pub(crate) struct Stages {
    /// In [`Stage::ALL`]'s order.
    pub(crate) each: [f64; Stage::ALL.len()],
    /// What is none of theirs: the worker's turns, and what a port does to what it has received.
    pub(crate) turns: f64,
    /// Packets that the worker took at once, on average.
    pub(crate) batch: f64,
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
    let mut pool = Pool::new(BUFFERS);
    // Each buffer once: the kernel gives a page when it is first written.
    let warm = BUFFERS as u64;
    setup.empty(&mut pool, warm, |_| {})?;
    setup.more(warm)?;
    let (mut packets, mut empties) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (empty, ()) = own_ticks(|| setup.empty(&mut pool, count, |_| {}))?;
        let (whole, ()) = own_ticks(|| setup.more(count))?;
        empties.push(empty / count as f64);
        packets.push((whole - empty) / count as f64);
    }
    let nothing = || "no rounds were asked for";
    let packet = Summary::of(&packets).ok_or_else(nothing)?;
    let empty = Summary::of(&empties).ok_or_else(nothing)?.median;
    let stages = setup.stages(&mut pool, count)?;
    Ok(Figures { packet, empty, stages })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_up(name: &str) -> Setup {
        Row::named(name).unwrap().set_up().unwrap()
    }

    #[test]
    fn a_row_meets_the_batches_that_it_names() {
        for (name, batch) in [("vector-1", 1), ("vector-8", 8), ("flows-1k", BATCH)] {
            let stages = set_up(name).stages(&mut Pool::new(BUFFERS), 3200).unwrap();
            // The first packet after a silence comes alone, if not all do.
            let batches = 3200 / batch + usize::from(batch > 1);
            let expected = 3200.0 / batches as f64;
            assert!((stages.batch - expected).abs() < 1e-9, "{name}: {}", stages.batch);
        }
    }

    #[test]
    fn new_flows_meet_the_rules_that_the_row_names() {
        let decided = |name| {
            let counters = Arc::clone(&set_up(name).node.counters);
            (0..4096).filter(|slot| counters.rules.read(*slot) > 0).count()
        };
        assert_eq!((decided("new-1k"), decided("new-1k-any")), (1, 999));
    }

    /// Setting up ends with an error if a packet does not come out, or opens a flow.
    #[test]
    fn untracked_packets_are_decided_before_tracking_whichever_rule_allows_them() {
        for name in ["stateless-1k", "stateless-100-any"] {
            assert!(set_up(name).node.flows().unwrap().is_empty());
        }
    }

    #[test]
    fn what_is_measured_is_a_whole_turn() {
        let mut setup = set_up("flows-1k");
        let counters = Arc::clone(&setup.node.counters);
        let before = counters.busy_turns.read();
        setup.node.count_time();
        // Ageing, which comes each 200,000 packets of 50 ns, says how many flows there are.
        counters.flows.set(7);
        setup.more(400_000).unwrap();
        let turns = counters.busy_turns.read() - before;
        // The first packet after a silence comes alone.
        assert_eq!((turns, counters.flows.read()), (400_000 / BATCH as u64 + 1, 1000));
    }
}
