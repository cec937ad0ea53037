//! Generated packets pass through real workers. An oracle that shares no code with them says which packets may come
//! out.
//!
//! - `plan`: a cluster that changes. `epoch`: its state between two publications.
//! - `generate`, `conversations`, `fragments`, `invalid`, `mutate`: the packets that are sent. `writer` writes their
//!   bytes.
//! - `world`, `publish`, `buffers`: two nodes whose workers run one after the other; publications to them; their
//!   buffers.
//! - `read`, `input`, `wire`: packets that went in, packets that came out, and the input of each output.
//! - `oracle`, `connections`, `own_errors`, `tunnel`: the packets that may come out. `services`,
//!   `translations`, `translation_law`, `rewritten`, `refusals`, `moves`, `full_range`, `way_out`:
//!   the same with translated services. `batch`, `judge`, `balance`: one batch, judged by these
//!   rules and compared with the node's counters.
//! - `coverage`: the coverage of a run. `sabotage`: faults on purpose.
//!
//! docs/fuzzing.md describes the laws and how to run it.

mod balance;
mod batch;
mod buffers;
mod connections;
mod conversations;
pub mod coverage;
mod epoch;
mod fragments;
mod full_range;
mod generate;
mod history;
mod input;
mod invalid;
mod judge;
mod moves;
mod mutate;
mod oracle;
mod own_errors;
mod plan;
mod publish;
mod read;
mod refusals;
mod rewritten;
pub mod sabotage;
mod services;
mod translation_law;
mod translations;
mod tunnel;
mod way_out;
mod wire;
mod world;
mod writer;

use std::cell::RefCell;
use std::fmt::{self, Write as _};
use std::time::{Duration, Instant};

use batch::{Output, Violation};
use coverage::Coverage;
use read::FlowTuple;
use sabotage::Sabotage;
use world::World;

/// The number of packets of a world.
const WORLD: u64 = 60_000;
/// The number of packets before the first tables of a world.
const BEFORE: u64 = 40;

/// The options of a run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub seed: u64,
    /// The number of packets. The last world is finished.
    pub packets: u64,
    /// The run also ends after this time.
    pub time: Option<Duration>,
    /// The first world, and whether it is the only one.
    pub first: u64,
    pub only: bool,
    pub sabotage: Option<Sabotage>,
    /// Whether half of the worlds translate services.
    pub services: bool,
}

/// A violation, with the information to reproduce it.
pub struct Failure {
    pub seed: u64,
    pub world: u64,
    batch: u64,
    packets: u64,
    violation: Box<Violation>,
    /// The packets and changes before the violation.
    history: String,
    /// A description of the world.
    setting: String,
}

impl Failure {
    /// The violated law, in a sentence.
    pub fn law(&self) -> &str {
        &self.violation.law
    }
}

/// Runs until enough packets were sent or a violation is found. `progress` is called after each
/// world.
pub fn run(
    options: &Options,
    mut progress: impl FnMut(&Coverage),
) -> Result<Coverage, Box<Failure>> {
    let start = Instant::now();
    let is_late = || options.time.is_some_and(|time| start.elapsed() >= time);
    let mut coverage = Coverage::default();
    let mut number = options.first;
    while coverage.packets < options.packets && !is_late() {
        let mut world = World::new(options.seed, number, options.services, options.sabotage);
        let before = coverage.packets;
        if let Err(violation) = run_world(&mut world, &mut coverage, options) {
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

/// Runs one world from beginning to end.
fn run_world(
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
        if world.is_time_for_next_agent() {
            world.replace_agent(coverage);
        }
    }
    world.check_buffers(coverage)
}

fn history(world: &World, violation: &Violation) -> String {
    let input = violation.input.as_ref().map(|(it, start)| &it.bytes[*start..]);
    let output = violation.output.as_ref().map(|it| &it.frame.bytes[..]);
    let packets: Vec<&[u8]> = [input, output].into_iter().flatten().collect();
    let translations = world.judge.translations.each_ref().map(RefCell::borrow);
    let others = |tuple: &FlowTuple| {
        let back = tuple.reversed();
        let pairs = translations.iter().flat_map(|it| {
            [it.pairs_got(tuple), it.pairs_got(&back), it.pairs_sent(tuple), it.pairs_sent(&back)]
        });
        pairs.flatten().flat_map(|pair| [pair.first, pair.behind]).collect()
    };
    world.history.report(&packets, others)
}

fn setting(world: &World) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{:?}", world.settings);
    for planned in &world.plan.planned_pods {
        let _ = write!(
            text,
            "{} on node {}, {:?}: ",
            planned.name,
            planned.node + 1,
            planned.addresses
        );
        let _ = match planned.attachment {
            Some(it) => writeln!(text, "port {}, {:?}", it.port.0, planned.device),
            None => writeln!(text, "not attached"),
        };
    }
    text.push_str(&world.plan.services.report());
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
