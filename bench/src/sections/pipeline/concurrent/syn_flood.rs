//! SYNs of new flows fill the flow table while packets of established flows pass.

use manx_dataplane::wire::{protocol, tcp};

use super::load::{FLOWS, Outcome, established, require_no_loss};
use crate::error::Failure;
use crate::sections::pipeline::node::{Node, Shape};
use crate::sections::pipeline::packets::addresses::{CLIENT_PORT, HOST};
use crate::sections::pipeline::packets::peers::Peers;
use crate::sections::pipeline::packets::station::Pace;
use crate::sections::pipeline::packets::stream::{Direction, Order, Stream};
use crate::sections::pipeline::time::cpu_ticks;

/// The size of the flow table.
const TABLE: usize = 1 << 16;
/// The number of SYNs, which fill the table many times.
const SYNS: u64 = 4 << 20;

/// Sends one SYN of a new flow for each packet of an established flow.
pub(super) fn measure(_: usize) -> Result<Outcome, Failure> {
    let mut node = Node::new(Shape { flows: TABLE, ..Shape::default() })?;
    let peers = Peers::far(1, false);
    let stream = established(&mut node, FLOWS);
    let flood = Stream::tcp(&peers, Direction::Unsolicited, 0, u32::MAX, tcp::flag::SYN)
        .in_order(Order::InTurn);
    // The table is filled once before the measurement, so that all its memory is allocated.
    node.station(HOST).load(flood, 2 * TABLE as u64, Pace::DEVICE);
    node.run();
    let (before_flood, before) = (resident_kib()?, node.transmitted().0);
    let Some(flood) = node.station(HOST).unload() else { return Err("no flood".into()) };
    node.station(HOST).load(flood, SYNS, Pace::DEVICE);
    node.station(CLIENT_PORT).load(stream, SYNS, Pace::DEVICE);
    let (spent, packets) = cpu_ticks(|| Ok(node.run()))?;
    let more = resident_kib()?.saturating_sub(before_flood);
    let lost = packets - (node.transmitted().0 - before);
    require_no_loss(&node, lost)?;
    let flows = node.flows()?;
    let kept = flows.iter().filter(|flow| flow.key().protocol() == protocol::UDP).count();
    if kept < FLOWS as usize {
        return Err(format!("{kept} of {FLOWS} established flows were kept").into());
    }
    let remark = format!(
        "{SYNS} SYNs of new flows beside as many packets of {FLOWS} established ones, a table of {TABLE}: {lost} of \
         all packets lost, {kept} of the established flows kept; {:.0} ticks per packet; {} KiB more resident than before",
        spent / packets as f64,
        more,
    );
    Ok(Outcome { pairs: Vec::new(), remark })
}

/// The resident memory of this process, in KiB.
fn resident_kib() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    Ok(kib.ok_or("found no VmRSS in /proc/self/status, expected one")?.parse()?)
}
