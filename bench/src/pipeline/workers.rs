//! Two workers of one node, each with its part of the flows, beside one that has them all.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use manx_dataplane::pipeline::Sizes;
use manx_dataplane::worker::Share;

use super::Failure;
use super::beside::Found;
use super::rows::{ROWS, Row, Setup};
use crate::cores::pin;
use crate::statistics::{Pair, Summary};

/// Packets of each worker in a round.
const PACKETS: u64 = 1 << 21;
const WORKERS: u32 = 2;
/// The workers are set up one after the other, and what the later ones hand over waits for so long: it must find room.
const BUFFERS: usize = 1 << 13;

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

/// Rounds of one worker with all flows of a row, two that share what a node's workers share, and two that share nothing, which is
/// what the machine gives at most.
fn two(name: &str, rounds: usize) -> Result<Found, Failure> {
    if !(0..WORKERS as usize).all(pin) {
        return Err("two workers need two cores".into());
    }
    let row = ROWS.iter().find(|row| row.name == name).ok_or("a row that is not there")?;
    let mut alone = [row.set_up()?];
    let sizes = Sizes { flows: row.table(), buffers: BUFFERS, ..Sizes::default() };
    let mut together = parts(row, sizes, Share::among(WORKERS as usize, sizes)?)?;
    let mut apart = parts(row, sizes, (0..WORKERS).map(|_| Share::nothing()).collect())?;
    let (mut pairs, mut separate) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let beside = rate(&mut alone)?;
        pairs.push(Pair { beside, manx: rate(&mut together)? });
        separate.push(rate(&mut apart)? / beside);
    }
    let separate = Summary::of(&separate).ok_or("no rounds were asked for")?;
    let words = format!("two workers that share nothing: {} of one", separate.show());
    Ok(Found { pairs, words })
}

fn parts(row: &Row, sizes: Sizes, shares: Vec<Share>) -> Result<Vec<Setup>, Failure> {
    let each = row.flows() / WORKERS;
    let part = |(at, share)| row.set_up_part(sizes, share, at * each..(at + 1) * each);
    (0..).zip(shares).map(part).collect()
}

/// Millions of packets a second of all workers at once, each on a core of its own.
fn rate(workers: &mut [Setup]) -> Result<f64, Failure> {
    let together = Barrier::new(workers.len());
    let running = AtomicUsize::new(workers.len());
    let count = workers.len() as f64;
    let longest = std::thread::scope(|scope| {
        let start = |(core, setup): (usize, _)| {
            let (together, running) = (&together, &running);
            scope.spawn(move || {
                let setup: &mut Setup = setup;
                pin(core);
                together.wait();
                let start = Instant::now();
                let passed = setup.cycles(PACKETS).map_err(|error| error.to_string());
                let spent = start.elapsed().as_secs_f64();
                // What the others still hand over is served, too.
                running.fetch_sub(1, Ordering::Relaxed);
                while running.load(Ordering::Relaxed) > 0 {
                    setup.node.turn();
                }
                passed.map(|_| spent)
            })
        };
        let threads: Vec<_> = workers.iter_mut().enumerate().map(start).collect();
        let joined = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err("a worker's thread panicked".to_owned()))
        });
        joined.collect::<Result<Vec<f64>, String>>()
    })?;
    // Until the last one is through: it has a core for itself then.
    let longest = longest.into_iter().fold(0.0, f64::max);
    Ok(count * PACKETS as f64 / longest / 1e6)
}
