//! The code that the rows of this folder share: established flows, a measured load, and the result.

use std::time::{Duration, Instant};

use manx_dataplane::sys::clock::ticks;

use crate::error::Failure;
use crate::report::statistics::Pair;
use crate::sections::pipeline::node::Node;
use crate::sections::pipeline::packets::addresses::{CLIENT_PORT, HOST};
use crate::sections::pipeline::packets::peers::Peers;
use crate::sections::pipeline::packets::station::Pace;
use crate::sections::pipeline::packets::stream::{Direction, Order, Stream};
use crate::sections::pipeline::time::cpu_ticks;

/// The result of a row.
pub(crate) struct Outcome {
    /// Pairs of figures without and with the event. There are none if the row only requires that no packet is lost.
    pub(crate) pairs: Vec<Pair>,
    /// Other observations, as text for the report.
    pub(crate) remark: String,
}

/// The duration of a round.
pub(super) const ROUND: Duration = Duration::from_millis(500);
pub(super) const FLOWS: u32 = 1000;
/// The core of the control thread. The worker runs on another core, unless the user has chosen this core for it.
pub(super) const CONTROL_CORE: usize = 0;

/// Establishes flows. Returns the stream of their packets.
pub(super) fn established(node: &mut Node, flows: u32) -> Stream {
    let peers = Peers::far(1, false);
    let requests = Stream::udp(&peers, Direction::Request, 0, flows);
    let replies = Stream::udp(&peers, Direction::Reply, 0, flows).in_order(Order::InTurn);
    node.station(CLIENT_PORT).load(
        requests.clone().in_order(Order::InTurn),
        flows.into(),
        Pace::DEVICE,
    );
    node.run();
    node.station(HOST).load(replies, flows.into(), Pace::DEVICE);
    node.run();
    requests
}

/// Passes packets through the node as fast as possible for a round. Returns their number, and the average cost of a
/// packet in ticks. Adds the ticks of each batch to `batches`.
pub(super) fn load(
    node: &mut Node,
    stream: &Stream,
    batches: &mut Vec<f64>,
) -> Result<(u64, f64), Failure> {
    node.station(CLIENT_PORT).load(stream.clone(), u64::MAX, Pace::DEVICE);
    let (spent, packets) = cpu_ticks(|| {
        let (began, mut last) = (Instant::now(), ticks());
        let mut packets = 0;
        while began.elapsed() < ROUND {
            packets += node.turn() as u64;
            let now = ticks();
            batches.push(now.wrapping_sub(last) as f64);
            last = now;
        }
        Ok(packets)
    })?;
    node.station(CLIENT_PORT).unload();
    Ok((packets, spent / packets as f64))
}

/// The 99.9th percentile: one in a thousand values lies above it.
pub(super) fn p999(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() * 999 / 1000).copied().unwrap_or_default()
}

/// Returns an error if packets did not leave the node.
pub(super) fn require_no_loss(node: &Node, lost: u64) -> Result<(), Failure> {
    if lost == 0 {
        return Ok(());
    }
    Err(format!("{lost} packets did not come out; dropped: {:?}", node.drops()).into())
}
