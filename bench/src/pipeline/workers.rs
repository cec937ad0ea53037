//! Two workers of one node, each with its part of the flows, beside two that share nothing: two nodes, which is all that two cores
//! of this machine give.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use manx_dataplane::pipeline::Sizes;
use manx_dataplane::worker::SharedState;

use super::Failure;
use super::beside::Found;
use super::rows::Row;
use super::setup::Setup;
use super::time::own_seconds;
use crate::cores::pin;
use crate::statistics::{Pair, Summary};

/// Packets of each worker in one measurement, and how many pairs of these a round has: many short ones, so that what else happens
/// on the machine meets both sides.
const PACKETS: u64 = 1 << 18;
const PAIRS: usize = 8;
const WORKERS: u32 = 2;
/// The workers are set up one after the other, and what the later ones hand over waits for so long: it must find room.
const BUFFERS: usize = 1 << 14;

/// From pod to pod.
pub(super) fn near(rounds: usize) -> Result<Found, Failure> {
    two("both-100k", rounds)
}

/// Into the tunnel.
pub(super) fn encap(rounds: usize) -> Result<Found, Failure> {
    two("encap-100k", rounds)
}

/// Out of the tunnel.
pub(super) fn decap(rounds: usize) -> Result<Found, Failure> {
    two("decap-1", rounds)
}

/// Pairs of two workers that share nothing and two that share what the workers of a node share; and in each round one with all
/// flows, which tells how much the second core adds.
fn two(name: &str, rounds: usize) -> Result<Found, Failure> {
    if !(0..WORKERS as usize).all(pin) {
        return Err("two workers need two cores".into());
    }
    let row = Row::named(name).ok_or("a row that is not there")?;
    let mut alone = [row.set_up()?];
    let sizes = Sizes { flows: row.table(), buffers: BUFFERS, ..Sizes::default() };
    let mut apart = parts(row, sizes, (0..WORKERS).map(|_| SharedState::alone()).collect())?;
    let mut together = parts(row, sizes, SharedState::for_workers(WORKERS as usize, sizes)?)?;
    let [first, others @ ..] = &mut together[..] else { return Err("no workers".into()) };
    // The workers of a node judge by one and the same tables.
    first.node.tables.version += 1;
    let tables = first.node.publish()?;
    others.iter_mut().try_for_each(|other| other.node.judge_by(&tables))?;
    // What each touches for the first time is not measured.
    for side in [&mut alone[..], &mut apart, &mut together] {
        rate(side)?;
    }
    let handed_over =
        |of: &[Setup]| -> u64 { of.iter().map(|setup| setup.node.counters.handoffs.read()).sum() };
    let before = handed_over(&together);
    let (mut pairs, mut gains) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let one = rate(&mut alone)?;
        for at in 0..PAIRS {
            // Each side goes first as often as the other.
            let first = (at % 2 == 1).then(|| rate(&mut together)).transpose()?;
            let beside = rate(&mut apart)?;
            let manx = first.map_or_else(|| rate(&mut together), Ok)?;
            pairs.push(Pair { beside, manx });
            gains.push(manx / one);
        }
    }
    let passed = PACKETS * u64::from(WORKERS) * pairs.len() as u64;
    let gain = Summary::of(&gains).ok_or("no rounds were asked for")?;
    let words = format!(
        "{} times one worker with all flows; {} of {passed} packets were handed over",
        gain.show(),
        handed_over(&together) - before,
    );
    Ok(Found { pairs, words })
}

fn parts(row: &Row, sizes: Sizes, shares: Vec<SharedState>) -> Result<Vec<Setup>, Failure> {
    let each = row.flows() / WORKERS;
    let part = |(at, share)| row.set_up_part(sizes, share, at * each..(at + 1) * each);
    (0..).zip(shares).map(part).collect()
}

/// Millions of packets a second of all workers at once, each on a core of its own, by the time that each has had it.
fn rate(workers: &mut [Setup]) -> Result<f64, Failure> {
    let together = Barrier::new(workers.len());
    let running = AtomicUsize::new(workers.len());
    let rates = std::thread::scope(|scope| {
        let start = |(core, setup): (usize, _)| {
            let (together, running) = (&together, &running);
            scope.spawn(move || {
                let setup: &mut Setup = setup;
                pin(core);
                together.wait();
                let passed = own_seconds(|| setup.more(PACKETS)).map_err(|error| error.to_string());
                // What the others still hand over is served, too.
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
