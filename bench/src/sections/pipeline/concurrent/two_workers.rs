//! Two workers of one node, each with its part of the flows. They are compared with the workers of two separate nodes,
//! which share nothing. Those show the highest rate that two cores of this machine can reach.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use manx_dataplane::pipeline::Sizes;
use manx_dataplane::worker::SharedState;

use super::load::Outcome;
use crate::error::Failure;
use crate::host::cores::pin;
use crate::report::statistics::{Pair, Summary};
use crate::sections::pipeline::rows::Row;
use crate::sections::pipeline::setup::Setup;
use crate::sections::pipeline::time::cpu_seconds;

/// The number of packets of each worker in one measurement. A round has `PAIRS` pairs of such measurements. They are
/// short and many, so that other load on the machine affects both sides.
const PACKETS: u64 = 1 << 18;
const PAIRS: usize = 8;
const WORKERS: u32 = 2;
/// The number of buffers of a worker. The workers are set up one after the other. Packets that a later worker hands off
/// to an earlier one are held in buffers until the earlier one runs again.
const BUFFERS: usize = 1 << 14;

/// Measures packets from pod to pod.
pub(super) fn near(rounds: usize) -> Result<Outcome, Failure> {
    measure("both-100k", rounds)
}

/// Measures packets into the tunnel.
pub(super) fn encap(rounds: usize) -> Result<Outcome, Failure> {
    measure("encap-100k", rounds)
}

/// Measures packets out of the tunnel.
pub(super) fn decap(rounds: usize) -> Result<Outcome, Failure> {
    measure("decap-1", rounds)
}

/// Measures pairs of two workers that share nothing and two workers of one node. Each round also measures one worker
/// with all flows, which shows how much the second core adds.
fn measure(name: &str, rounds: usize) -> Result<Outcome, Failure> {
    if !(0..WORKERS as usize).all(pin) {
        return Err("two workers need two cores".into());
    }
    let row = Row::find(name).ok_or("a row that is not there")?;
    let mut alone = [row.set_up()?];
    let sizes = Sizes { flows: row.table_size(), buffers: BUFFERS, ..Sizes::default() };
    let mut apart =
        parts(row, sizes, (0..WORKERS).map(|_| SharedState::alone()).collect::<Result<_, _>>()?)?;
    let mut together = parts(row, sizes, SharedState::for_workers(WORKERS as usize, sizes)?)?;
    let [first, others @ ..] = &mut together[..] else { return Err("no workers".into()) };
    // The workers of a node use the same tables.
    first.node.tables.version += 1;
    let tables = first.node.publish()?;
    others.iter_mut().try_for_each(|other| other.node.publish_shared(&tables))?;
    // The first run of each side touches new memory, so it is not measured.
    for side in [&mut alone[..], &mut apart, &mut together] {
        measure_rate(side)?;
    }
    let handed_off = |workers: &[Setup]| -> u64 {
        workers.iter().map(|setup| setup.node.counters.handoffs.read()).sum()
    };
    let before = handed_off(&together);
    let (mut pairs, mut gains) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let one = measure_rate(&mut alone)?;
        for at in 0..PAIRS {
            // Each side is measured first in half of the pairs.
            let first = (at % 2 == 1).then(|| measure_rate(&mut together)).transpose()?;
            let beside = measure_rate(&mut apart)?;
            let manx = first.map_or_else(|| measure_rate(&mut together), Ok)?;
            pairs.push(Pair { beside, manx });
            gains.push(manx / one);
        }
    }
    let passed = PACKETS * u64::from(WORKERS) * pairs.len() as u64;
    let gain = Summary::from_values(&gains).ok_or("no rounds were asked for")?;
    let remark = format!(
        "{} times one worker with all flows; {} of {passed} packets were handed off",
        gain.show(),
        handed_off(&together) - before,
    );
    Ok(Outcome { pairs, remark })
}

/// Workers with equal parts of the flows.
fn parts(row: &Row, sizes: Sizes, shares: Vec<SharedState>) -> Result<Vec<Setup>, Failure> {
    let each = row.flows() / WORKERS;
    let part = |(at, share)| row.set_up_part(sizes, share, at * each..(at + 1) * each);
    (0..).zip(shares).map(part).collect()
}

/// Runs all workers at once, each on its own core. Returns the millions of packets per second of CPU time.
fn measure_rate(workers: &mut [Setup]) -> Result<f64, Failure> {
    let together = Barrier::new(workers.len());
    let running = AtomicUsize::new(workers.len());
    let rates = std::thread::scope(|scope| {
        let start = |(core, setup): (usize, _)| {
            let (together, running) = (&together, &running);
            scope.spawn(move || {
                let setup: &mut Setup = setup;
                pin(core);
                together.wait();
                let passed = cpu_seconds(|| setup.more(PACKETS)).map_err(|error| error.to_string());
                // Other workers may still hand off packets to this one, so it runs until all are done.
                running.fetch_sub(1, Ordering::Relaxed);
                while running.load(Ordering::Relaxed) > 0 {
                    setup.node.turn();
                }
                passed.map(|(seconds, ())| PACKETS as f64 / seconds / 1e6)
            })
        };
        let threads: Vec<_> = workers.iter_mut().enumerate().map(start).collect();
        let joined = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err("a worker's thread panicked".to_owned()))
        });
        joined.collect::<Result<Vec<f64>, String>>()
    })?;
    Ok(rates.into_iter().sum())
}
