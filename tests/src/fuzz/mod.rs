//! Generated packets through real workers, and an oracle that shares no code with them.
//!
//! - `plan`: a cluster that changes. `epoch`: what is true of it between two publications.
//! - `generate`, `talks`, `pieces`, `lies`, `mutate`: the packets. `craft` writes them.
//! - `world`, `publish`, `census`: two nodes with their workers, turned by hand; what is published to them, and when; their buffers.
//! - `read`, `input`, `wire`: what went in, what came out, and what came of what.
//! - `oracle`, `connections`, `answers`, `tunnel`: what may come out. `side`, `judge`, `account`: a batch held to it, and
//!   to what the node has counted.
//! - `coverage`: what a run has met. `sabotage`: what is made wrong on purpose.
//!
//! docs/fuzzing.md tells what is held and how to run it.

mod account;
mod answers;
mod census;
mod connections;
pub mod coverage;
mod craft;
mod epoch;
mod generate;
mod history;
mod input;
mod judge;
mod lies;
mod mutate;
mod oracle;
mod pieces;
mod plan;
mod publish;
mod read;
pub mod sabotage;
mod side;
mod talks;
mod tunnel;
mod wire;
mod world;

use std::fmt::{self, Write as _};
use std::time::{Duration, Instant};

use coverage::Coverage;
use sabotage::Sabotage;
use side::{Output, Violation};
use world::World;

/// Packets of a world before the next one.
const WORLD: u64 = 60_000;
/// Packets before the first tables of a world.
const BEFORE: u64 = 40;

/// What is to be run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub seed: u64,
    /// How many packets; the last world is finished.
    pub packets: u64,
    /// Or until so much time has passed.
    pub time: Option<Duration>,
    /// The first world, and whether it is the only one.
    pub first: u64,
    pub only: bool,
    pub sabotage: Option<Sabotage>,
}

/// What was found, and how to find it again.
pub struct Failure {
    pub seed: u64,
    pub world: u64,
    batch: u64,
    packets: u64,
    violation: Box<Violation>,
    /// What was before.
    history: String,
    /// The world in words.
    setting: String,
}

impl Failure {
    /// What is wrong, in a sentence.
    pub fn law(&self) -> &str {
        &self.violation.law
    }
}

/// Runs until everything is done, or something is found. `progress` is called after each world.
pub fn run(
    options: &Options,
    mut progress: impl FnMut(&Coverage),
) -> Result<Coverage, Box<Failure>> {
    let start = Instant::now();
    let is_late = || options.time.is_some_and(|time| start.elapsed() >= time);
    let mut coverage = Coverage::default();
    let mut number = options.first;
    while coverage.packets < options.packets && !is_late() {
        let mut world = World::new(options.seed, number, options.sabotage);
        let before = coverage.packets;
        if let Err(violation) = live(&mut world, &mut coverage, options) {
            return Err(Box::new(Failure {
                seed: options.seed,
                world: number,
                batch: world.batches,
                packets: coverage.packets - before,
                history: history(&world, &violation),
                violation,
                setting: setting(&world),
            }));
        }
        coverage.worlds += 1;
        progress(&coverage);
        number += 1;
        if options.only {
            break;
        }
    }
    Ok(coverage)
}

/// One world from its beginning to its end.
fn live(
    world: &mut World,
    coverage: &mut Coverage,
    options: &Options,
) -> Result<(), Box<Violation>> {
    let end = coverage.packets + WORLD.min(options.packets);
    let open = coverage.packets + BEFORE;
    while coverage.packets < open {
        world.batch(coverage)?;
    }
    world.open(coverage);
    while coverage.packets < end {
        world.batch(coverage)?;
        if world.is_time_for_change() {
            world.change(coverage, false);
        }
    }
    world.census(coverage)
}

fn history(world: &World, violation: &Violation) -> String {
    let bytes = violation.input.as_ref().map(|(it, start)| &it.bytes[*start..]);
    let bytes = bytes.or(violation.output.as_ref().map(|it| &it.frame.bytes[..]));
    world.history.of(bytes.unwrap_or_default())
}

fn setting(world: &World) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{:?}", world.settings);
    for seat in &world.plan.seats {
        let _ = write!(text, "{} on node {}, {:?}: ", seat.name, seat.node + 1, seat.addresses);
        let _ = match seat.attachment {
            Some(it) => writeln!(text, "port {}, {:?}", it.port.0, seat.device),
            None => writeln!(text, "not attached"),
        };
    }
    let _ = write!(text, "\n{}", world.plan.manifests(false));
    text
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { law, node, output, input } = &*self.violation;
        writeln!(f, "against the law at node {}: {law}", node + 1)?;
        if let Some(Output { port, frame }) = output {
            writeln!(
                f,
                "\nit came out at port {} with {:?}:\n{}",
                port.0,
                frame.offload,
                hex(&frame.bytes)
            )?;
        }
        if let Some((input, _)) = input {
            writeln!(
                f,
                "\nit had gone in at port {} with {:?}, {}:\n{}",
                input.port.0,
                input.offload,
                input.kind.text(),
                hex(&input.bytes)
            )?;
        }
        writeln!(f, "\n{}\n{}", self.history, self.setting)?;
        writeln!(
            f,
            "seed {}, world {}, batch {}, packet {} of the world. Again: manx-fuzz --seed {} --world {}",
            self.seed, self.world, self.batch, self.packets, self.seed, self.world
        )
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes.iter().take(2000) {
        let _ = write!(text, "{byte:02x}");
    }
    if bytes.len() > 2000 {
        let _ = write!(text, "... {} bytes", bytes.len());
    }
    text
}
