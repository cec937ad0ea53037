//! Sets up a row and measures it.

use std::ops::Range;
use std::sync::Arc;

use manx_dataplane::packet::{Packet, Pool};
use manx_dataplane::pipeline::Sizes;
use manx_dataplane::port::PacketIo;
use manx_dataplane::stage::Stage;
use manx_dataplane::sys::clock::ticks;
use manx_dataplane::tables::PortId;
use manx_dataplane::worker::SharedState;

use super::cluster::Rules;
use super::node::{BUFFERS, Node};
use super::packets::addresses::{CLIENT_PORT, HOST, RAW, SERVER_PORT};
use super::packets::peers::Peers;
use super::packets::station::{Pace, Station};
use super::packets::stream::{Direction, Order, Stream};
use super::rows::{DecidingRule, Row, Traffic};
use super::time::cpu_ticks;
use crate::error::Failure;
use crate::report::statistics::Summary;

/// A row that is set up, with warm caches.
pub(crate) struct Setup {
    pub(crate) node: Node,
    /// The port of the measured packets.
    entrance: PortId,
    pace: Pace,
}

impl Row {
    /// Sets up the node with its flows, and passes one packet of each flow. Returns an error if a packet that leaves is
    /// broken.
    pub(crate) fn set_up(&self) -> Result<Setup, Failure> {
        let sizes = Sizes { flows: self.table_size(), buffers: BUFFERS, ..Sizes::default() };
        self.set_up_part(sizes, SharedState::alone()?, 0..self.flows())
    }

    /// Like `set_up`, for one of several workers, with its part of the flows.
    pub(crate) fn set_up_part(
        &self,
        sizes: Sizes,
        share: SharedState,
        part: Range<u32>,
    ) -> Result<Setup, Failure> {
        let flows = part.len() as u32;
        let node = Node::one_of_several(self.shape(), sizes, share)?;
        let mut setup = Setup { node, entrance: CLIENT_PORT, pace: self.pace };
        let peers = self.peers();
        setup.node.check(true);
        let stream = |direction| Stream::udp(&peers, direction, part.start, flows);
        let requests = stream(Direction::Request);
        let steady = match self.traffic {
            Traffic::New(_) => {
                let warm = self.table_size() as u64 * 3 / 2;
                setup.pass(CLIENT_PORT, Some(requests.in_order(Order::Scattered)), warm)?;
                None
            }
            Traffic::Untracked(..) => Some((CLIENT_PORT, requests)),
            Traffic::Outward(_) => {
                setup.pass(
                    CLIENT_PORT,
                    Some(requests.clone().in_order(Order::InTurn)),
                    flows.into(),
                )?;
                Some((CLIENT_PORT, requests))
            }
            Traffic::Plain(_) => {
                setup.establish(&requests, HOST, stream(Direction::Reply))?;
                Some((CLIENT_PORT, requests))
            }
            Traffic::Near(_) => {
                setup.establish(&requests, SERVER_PORT, stream(Direction::Reply))?;
                Some((CLIENT_PORT, requests))
            }
            Traffic::Encapsulated(_) => {
                setup.establish(&requests, RAW, stream(Direction::TunnelledReply))?;
                Some((CLIENT_PORT, requests))
            }
            Traffic::Decapsulated(_) => {
                setup.establish(&requests, RAW, stream(Direction::TunnelledReply))?;
                Some((RAW, stream(Direction::TunnelledReply)))
            }
        };
        if let Some((entrance, stream)) = steady {
            setup.entrance = entrance;
            setup.pass(entrance, Some(stream), u64::from(flows))?;
            let expected = if matches!(self.traffic, Traffic::Untracked(..)) { 0 } else { flows };
            let held = setup.node.flows()?.len();
            // If there are several workers, this one may have handed off some of its flows.
            if held.abs_diff(expected as usize) as u64 > setup.node.counters.handoffs.read() {
                return Err(
                    format!("{}: {held} flows are known, expected {expected}", self.name).into()
                );
            }
        }
        setup.node.check(false);
        Ok(setup)
    }

    /// The peers of the client.
    fn peers(&self) -> Arc<Peers> {
        match (self.traffic, self.rules) {
            (Traffic::Near(_), _) => Peers::near(),
            (Traffic::Encapsulated(_) | Traffic::Decapsulated(_), _) => {
                Peers::far(self.nodes, true)
            }
            (Traffic::New(DecidingRule::Any), Rules::Pods(rules)) => Peers::networks(rules, false),
            (Traffic::Untracked(_, DecidingRule::Any), Rules::Untracked(rules, many_lengths)) => {
                Peers::networks(rules, many_lengths)
            }
            _ => Peers::far(self.nodes, false),
        }
    }
}

impl Setup {
    /// Establishes every flow with one packet of each stream.
    fn establish(
        &mut self,
        requests: &Stream,
        far: PortId,
        replies: Stream,
    ) -> Result<(), Failure> {
        let flows = requests.flows().into();
        self.pass(CLIENT_PORT, Some(requests.clone().in_order(Order::InTurn)), flows)?;
        self.pass(far, Some(replies.in_order(Order::InTurn)), flows)
    }

    /// Passes packets of `stream` through the node, or further packets of the entrance's last stream if `stream` is
    /// `None`. Returns an error if not all of them leave the node.
    fn pass(
        &mut self,
        entrance: PortId,
        stream: Option<Stream>,
        count: u64,
    ) -> Result<(), Failure> {
        let stream = stream.or_else(|| self.node.station(entrance).unload());
        let Some(stream) = stream else { return Err("nothing to send".into()) };
        let handed_off = || self.node.counters.handoffs.read();
        let before = self.node.transmitted().0 + handed_off();
        self.node.station(entrance).load(stream, count, self.pace);
        self.node.run();
        let (after, broken) = self.node.transmitted();
        let after = after + self.node.counters.handoffs.read();
        // More packets may leave than were sent here, because another worker may have handed off packets to this one.
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

    /// Passes more packets of the row. This part is measured, and valgrind counts its instructions.
    #[inline(never)]
    pub(crate) fn more(&mut self, count: u64) -> Result<(), Failure> {
        self.pass(self.entrance, None, count)
    }

    /// Runs the generator and the sink without the worker: the same packets are transmitted unchanged. For each batch,
    /// calls `sunk` with `false` before the sink, and with `true` after it.
    pub(crate) fn pass_without_worker(
        &mut self,
        pool: &mut Pool,
        count: u64,
        mut sunk: impl FnMut(bool),
    ) -> Result<(), Failure> {
        let mut station: Station = self.node.station(self.entrance).clone();
        let Some(stream) = station.unload() else { return Err("nothing to send".into()) };
        // A copy is sent, so that the stream itself stays at its position.
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

    /// Measures the cycles of `count` packets by stage, without generator and sink.
    ///
    /// Reading the time-stamp counter takes cycles itself. The cost of generator and sink, which is subtracted from the
    /// turns and the last stage, includes such reads. So these two figures contain no reads, and each other stage
    /// contains one read per batch.
    pub(crate) fn stages(&mut self, pool: &mut Pool, count: u64) -> Result<Stages, Failure> {
        let (generator, sink) = self.measure_generator_and_sink(pool, count)?;
        let counters = Arc::clone(&self.node.counters);
        let read = || Stage::ALL.map(|stage| counters.stages.read(stage));
        let received = |setup: &Self| setup.node.station(setup.entrance).given();
        let (before, received_before) = (read(), received(self));
        counters.stages.enable(true);
        let start = ticks();
        let passed = self.more(count);
        let whole = ticks().wrapping_sub(start) as f64;
        counters.stages.enable(false);
        passed?;
        let after = read();
        let mut each = [0.0; Stage::ALL.len()];
        for (each, (after, before)) in each.iter_mut().zip(after.into_iter().zip(before)) {
            *each = after.wrapping_sub(before) as f64;
        }
        let turns = whole - each.iter().sum::<f64>() - generator as f64;
        each[Stage::Send as usize] -= sink as f64;
        let per_packet = |ticks: f64| ticks / count as f64;
        let (packets, batches) = received(self);
        let batch = (packets - received_before.0) as f64 / (batches - received_before.1) as f64;
        Ok(Stages { each: each.map(per_packet), turns: per_packet(turns), batch })
    }

    /// The ticks of the generator and of the sink for `count` packets.
    fn measure_generator_and_sink(
        &mut self,
        pool: &mut Pool,
        count: u64,
    ) -> Result<(u64, u64), Failure> {
        let (mut sink, mut last) = (0, 0);
        let start = ticks();
        self.pass_without_worker(pool, count, |is_over| {
            let now = ticks();
            sink += if is_over { now.wrapping_sub(last) } else { 0 };
            last = now;
        })?;
        let both = ticks().wrapping_sub(start);
        Ok((both.wrapping_sub(sink), sink))
    }
}

/// The cost of a packet by stage.
pub(crate) struct Stages {
    /// The cost of each stage, in the order of [`Stage::ALL`].
    pub(crate) each: [f64; Stage::ALL.len()],
    /// The rest: the cost of the worker's turns outside the stages, and of a port's work for packets that it has
    /// received.
    pub(crate) turns: f64,
    /// The average number of packets per batch.
    pub(crate) batch: f64,
}

/// The number of packets that the worker requests from a port at once.
const BATCH: usize = 32;

/// The figures of a row in cycles per packet.
pub(crate) struct Figures {
    /// The cost of a packet, without generator and sink.
    pub(crate) packet: Summary,
    /// The cost of generator and sink.
    pub(crate) generator: f64,
    pub(crate) stages: Stages,
}

/// Measures a row in rounds. Each round consists of a run without the worker and a run with it.
pub(crate) fn measure(row: &Row, rounds: usize, count: u64) -> Result<Figures, Failure> {
    let mut setup = row.set_up()?;
    let mut pool = Pool::new(BUFFERS);
    // Each buffer is used once before the measurement, because the kernel allocates a page only at the first write.
    let warm = BUFFERS as u64;
    setup.pass_without_worker(&mut pool, warm, |_| {})?;
    setup.more(warm)?;
    let (mut packets, mut generators) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (generator, ()) = cpu_ticks(|| setup.pass_without_worker(&mut pool, count, |_| {}))?;
        let (whole, ()) = cpu_ticks(|| setup.more(count))?;
        generators.push(generator / count as f64);
        packets.push((whole - generator) / count as f64);
    }
    let no_rounds = || "no rounds were asked for";
    let packet = Summary::from_values(&packets).ok_or_else(no_rounds)?;
    let generator = Summary::from_values(&generators).ok_or_else(no_rounds)?.median;
    let stages = setup.stages(&mut pool, count)?;
    Ok(Figures { packet, generator, stages })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row whose batches do not depend on the speed of the machine.
    fn set_up(name: &str) -> Setup {
        let mut setup = Row::find(name).unwrap().set_up().unwrap();
        setup.node.worker.set_batch_ticks(1 << 50);
        setup
    }

    #[test]
    fn the_batches_of_a_row_have_the_size_that_it_names() {
        for (name, batch) in [("vector-1", 1), ("vector-8", 8), ("flows-1k", BATCH)] {
            let stages = set_up(name).stages(&mut Pool::new(BUFFERS), 3200).unwrap();
            // The first packet after a pause arrives alone.
            let batches = 3200 / batch + usize::from(batch > 1);
            let expected = 3200.0 / batches as f64;
            assert!((stages.batch - expected).abs() < 1e-9, "{name}: {}", stages.batch);
        }
    }

    #[test]
    fn new_flows_are_decided_by_the_rules_that_the_row_names() {
        let decided = |name| {
            let counters = Arc::clone(&set_up(name).node.counters);
            (0..4096).filter(|slot| counters.rules.read(*slot) > 0).count()
        };
        assert_eq!((decided("new-1k"), decided("new-1k-any")), (1, 999));
    }

    /// The setup fails if a packet does not leave the node, or opens a flow.
    #[test]
    fn untracked_packets_open_no_flows_whichever_rule_allows_them() {
        for name in ["stateless-1k", "stateless-100-any"] {
            assert!(set_up(name).node.flows().unwrap().is_empty());
        }
    }

    #[test]
    fn whole_turns_of_the_worker_are_measured() {
        let mut setup = set_up("flows-1k");
        let counters = Arc::clone(&setup.node.counters);
        let before = counters.busy_turns.read();
        setup.node.count_time();
        // Ageing, which is due after 200,000 packets of 50 ns, sets the number of flows.
        counters.flows.set(7);
        setup.more(400_000).unwrap();
        let turns = counters.busy_turns.read() - before;
        // The first packet after a pause arrives alone.
        assert_eq!((turns, counters.flows.read()), (400_000 / BATCH as u64 + 1, 1000));
    }
}
