//! Policy is exchanged as a whole every millisecond while packets pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use manx_dataplane::tables::Tables;
use manx_dataplane::worker::Command;

use super::load::{CONTROL_CORE, FLOWS, Outcome, established, load, p999, require_no_loss};
use crate::error::Failure;
use crate::host::cores::pin;
use crate::report::statistics::Pair;
use crate::sections::pipeline::cluster::Rules;
use crate::sections::pipeline::node::{Node, Shape};

/// Exchanges policy every millisecond under full load. After each exchange, every flow is judged
/// again.
pub(super) fn measure(rounds: usize) -> Result<Outcome, Failure> {
    let mut node = Node::new(Shape { rules: Rules::Pods(1000), ..Shape::default() })?;
    let mut other = Node::new(Shape { rules: Rules::Pods(1001), ..Shape::default() })?;
    let stream = established(&mut node, FLOWS);
    let both = [node.tables.clone(), other.calculate()?];
    let (mut quiet, mut swapping, mut published) = (Vec::new(), Vec::new(), 0);
    let before = node.transmitted().0;
    let mut packets = 0;
    let mut pairs = Vec::new();
    for _ in 0..rounds {
        let (count, beside) = load(&mut node, &stream, &mut quiet)?;
        packets += count;
        let stop = AtomicBool::new(false);
        let (commands, stopped) = (node.commands.clone(), &stop);
        let (made, passed) = std::thread::scope(|scope| {
            let publisher = scope.spawn(|| publish(&both, &commands, published, stopped));
            let passed = load(&mut node, &stream, &mut swapping);
            stop.store(true, Ordering::Relaxed);
            (publisher.join().unwrap_or_default(), passed)
        });
        published += made;
        let (count, manx) = passed?;
        pairs.push(Pair { beside, manx });
        packets += count;
        // Retired tables are freed between the rounds.
        node.reports.try_iter().for_each(drop);
    }
    let lost = packets - (node.transmitted().0 - before);
    require_no_loss(&node, lost)?;
    let remark = format!(
        "{published} policies published while {packets} packets of {FLOWS} flows passed: {lost} lost; \
         p99.9 of a batch {:.0} ticks quiet, {:.0} swapping (goal: at most twice)",
        p999(&mut quiet),
        p999(&mut swapping),
    );
    Ok(Outcome { pairs, remark })
}

/// Publishes the two tables in turn until it is stopped. Returns the number of publications.
fn publish(
    both: &[Tables; 2],
    commands: &crossbeam::channel::Sender<Command>,
    published: u64,
    stop: &AtomicBool,
) -> u64 {
    pin(CONTROL_CORE);
    let mut made = 0;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
        made += 1;
        let mut tables = both[made as usize % 2].clone();
        // Each publication has a new version, and new revisions of the endpoints' policies. So every flow is decided
        // again.
        let number = 2 + published + made;
        tables.version += number;
        for endpoint in tables.endpoints.iter_mut().flatten() {
            endpoint.revision += number as u32 * 16;
        }
        if commands.send(Command::Publish(Arc::new(tables))).is_err() {
            break;
        }
    }
    made
}
