//! Manx's BGP speaker in comparison with BIRD and `GoBGP`, in turn, with the same peers over loopback.
//!
//! The device under test is a process (or one process for each speaker), and its peers are in this process. They send
//! messages that were built in advance, and record the prefixes that they have received.
//!
//! - `scenario`: which speakers and peers have sessions, which prefixes each peer announces, and which prefixes it
//!   should receive. It has no I/O.
//! - `messages`: the part of BGP's messages that the peers need. It has no I/O.
//! - `peer`: one peer's connection.
//! - `peers`: all peers, in one thread.
//! - [`device`]: the device under test, with its processes, their files, and their usage.
//! - `rows`: the rows.

pub mod device;
mod messages;
mod peer;
mod peers;
mod rows;
mod scenario;

use std::path::Path;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use manx_linux::netns;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::error::{Error, errno};
use crate::host::namespaces::temporary_folder;
use crate::path::links::{add_address, set_loopback_up};
use crate::report::figures::Figure;
use crate::report::goal::Goal;
use crate::report::statistics::{Pair, percentile};
use crate::run::{ListedRow, Run, Settings};

use device::{Device, Kind, Usage};
use peers::Peers;
use rows::{ROWS, Row};
use scenario::{NET, Scenario};

/// The longest time until all tables are complete.
const PATIENCE: Duration = Duration::from_mins(3);
/// The longest time until all peers have received a change.
const PATIENCE_OF_CHANGE: Duration = Duration::from_secs(10);
/// The time that speakers get to settle before their memory is read. An agent reads the learned routes once per second.
const SETTLE: Duration = Duration::from_millis(1500);
/// The time between two changes.
const BETWEEN: Duration = Duration::from_millis(20);
/// The number of file descriptors that a process needs: either one speaker with a thousand sessions, or all speakers of
/// a mesh.
const DESCRIPTORS: u64 = 12_000;

/// The times of a row, in ms.
const TIMES: [&str; 4] = [
    "from the first connection until all tables are whole",
    "processor time for that",
    "one change until all know it, median",
    "one change until all know it, p99",
];

/// The results of one measurement of one side: [`TIMES`], and the memory in the unit of [`Scenario::memory`].
type Found = [Option<f64>; TIMES.len() + 1];

/// The rows of this section.
pub fn rows(settings: &Settings) -> Vec<ListedRow> {
    let listed = |row: &Row| ListedRow::new(row.name, row.head, row.round * settings.rounds as u32);
    ROWS.iter().map(listed).collect()
}

pub fn measure(run: &mut Run) -> Result<(), Error> {
    let ready = if run.no_namespaces.is_none() { prepare() } else { Ok(()) };
    for row in &ROWS {
        if !run.wants(row.name) {
            continue;
        }
        let missing = run.no_namespaces.clone().or_else(|| row.beside.why_missing());
        if let Some(why) = missing {
            run.add_missing(row.name, why, false)?;
            continue;
        }
        run.progress.begin(&format!("{}: {}", row.name, row.head));
        let measured = match &ready {
            Ok(()) => measure_row(run, row),
            Err(error) => Err(Error::Failed(error.to_string())),
        };
        run.add_measured(row.name, measured)?;
    }
    Ok(())
}

/// Gives the loopback device of this namespace the addresses of all speakers and peers. The processes under test are in
/// this namespace, too.
fn prepare() -> Result<(), Error> {
    let (soft, hard) =
        getrlimit(Resource::RLIMIT_NOFILE).map_err(errno("the limit of descriptors"))?;
    let wanted = soft.max(DESCRIPTORS).min(hard);
    setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).map_err(errno("the limit of descriptors"))?;
    let namespace = netns::open(Path::new("/proc/thread-self/ns/net"))?;
    set_loopback_up(&namespace)?;
    add_address(&namespace, "lo", IpNet::V4(NET))
}

fn measure_row(run: &Run, row: &Row) -> Result<Vec<Figure>, Error> {
    let scenario = Scenario::new(row.shape, run.settings.bgp_part);
    let mut pairs: [Vec<Pair>; TIMES.len() + 1] = Default::default();
    for round in 1..=run.settings.rounds {
        let beside = measure_once(run, row.beside, &scenario)?;
        let manx = measure_once(run, Kind::Manx, &scenario)?;
        for (pairs, found) in pairs.iter_mut().zip(beside.into_iter().zip(manx)) {
            if let (Some(beside), Some(manx)) = found {
                pairs.push(Pair { beside, manx });
            }
        }
        let shown = |found: Found| found[0].unwrap_or_default();
        let (rounds, other, manx) = (run.settings.rounds, shown(beside), shown(manx));
        let text = format!("{} {round}/{rounds}: {other:.0} ms, Manx {manx:.0}", row.name);
        run.progress.step(text, row.round);
    }
    let (memory, unit, _) = scenario.memory();
    let figures = TIMES.into_iter().map(|it| (it, "ms")).chain([(memory, unit)]);
    let figure = |((what, unit), pairs): ((&str, &'static str), &Vec<Pair>)| {
        let goal = Some(Goal::AtMost(1.0));
        Figure::from_pairs(row.name, row.head, what.to_owned(), unit, pairs, goal)
    };
    Ok(figures.zip(&pairs).filter_map(figure).collect())
}

/// Measures one side: starts it, announces all routes, makes the changes, and ends it.
fn measure_once(run: &Run, kind: Kind, scenario: &Scenario) -> Result<Found, Error> {
    let folder = temporary_folder()?;
    let mut device = Device::start(kind, scenario, folder.path())?;
    let mut peers = Peers::new(scenario)?;
    let before = device.usage()?;
    let start = Instant::now();
    let whole = whole(&mut device, &mut peers, scenario)?;
    device.until_still(PATIENCE, || peers.wait(Duration::from_millis(5)))?;
    let processor = device.usage()?.processor.saturating_sub(before.processor);
    let changes = changes(&mut peers, scenario, run.settings.changes / 10)?;
    peers.wait(SETTLE)?;
    device.check()?;
    let Usage { memory, .. } = device.usage()?;
    let ms = |it: Duration| it.as_secs_f64() * 1e3;
    let changes: Vec<f64> = changes.into_iter().map(ms).collect();
    Ok([
        Some(ms(whole - start)),
        Some(ms(processor)),
        percentile(&changes, 50),
        percentile(&changes, 99),
        Some(memory as f64 / scenario.memory().2),
    ])
}

/// Waits until all tables are complete, and returns the time when they became complete.
fn whole(device: &mut Device, peers: &mut Peers, scenario: &Scenario) -> Result<Instant, Error> {
    let whole = peers.until_whole(PATIENCE);
    device.check()?;
    let whole = whole?;
    if scenario.is_announced() {
        return Ok(whole);
    }
    // No peer receives routes that could show when the speaker has processed everything. So the time counts at which
    // the speaker stops using the CPU.
    device.until_still(PATIENCE, || peers.wait(Duration::from_millis(5)))
}

/// Makes `count` changes: one peer after the other withdraws a prefix and announces it again. Returns, for each change,
/// the time until all other peers have received it.
fn changes(peers: &mut Peers, scenario: &Scenario, count: usize) -> Result<Vec<Duration>, Error> {
    let mut times = Vec::new();
    if !scenario.shows_changes() {
        return Ok(times);
    }
    for at in 0..count.div_ceil(2) {
        for is_there in [false, true] {
            peers.wait(BETWEEN)?;
            let start = Instant::now();
            peers.change(at % scenario.peers as usize, is_there)?;
            times.push(peers.until_whole(PATIENCE_OF_CHANGE)? - start);
        }
    }
    Ok(times)
}
