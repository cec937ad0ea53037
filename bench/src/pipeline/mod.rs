//! One worker's pipeline over ports in memory, without system calls: what each packet costs.
//!
//! UDP packets of 64 bytes, IP header included, by tables that the real compiler and calculation have made, with all checks
//! on: header checksums, source check, flow state and generations, counters of ports, rules and drops, hop limit, MTU.
//! Cycles are those of the time-stamp counter, whose rate is constant, whatever the core's frequency is at the moment, as long as the
//! worker's thread has its core. What generator and sink cost is measured by runs without a decision between them, and taken off.

mod beside;
mod framed;
mod instructions;
mod node;
mod peers;
mod rows;
mod setup;
mod shares;
mod station;
mod stream;
mod time;
mod workers;

use std::time::Duration;

use manx_dataplane::stage::Stage;
use manx_dataplane::sys::clock::UNIT;

use crate::cores::pin;
use crate::error::Error;
use crate::goal::Goal;
use crate::programs;
use crate::report::{Breakdown, Figure};
use crate::run::{Listed, Run, Settings};
use crate::statistics::Summary;

use beside::Beside;
use rows::{ROWS, Row};
use setup::Figures;
use time::rate;

type Failure = Box<dyn std::error::Error>;

/// What a row is counted in.
const PER_PACKET: &str = if UNIT.len() == 2 { "ns per packet" } else { "cycles per packet" };
const HEAD: &str = "The pipeline in memory";
/// The row of instructions, and about how long counting takes.
const COUNTED: &str = "instructions";
const COUNTING: Duration = Duration::from_secs(60);

/// Its rows.
pub fn rows(settings: &Settings) -> Vec<Listed> {
    let rows = ROWS.iter().map(|row| (row.name, row.what, of_a_row(settings)));
    let counted = (COUNTED, "instructions per packet, stage by stage", COUNTING);
    let besides = beside::ALL.iter().map(|it| (it.name, it.what, of_a_beside(settings)));
    let listed =
        |(name, words, takes): (_, &str, _)| Listed { name, words: words.to_owned(), takes };
    rows.chain([counted]).chain(besides).map(listed).collect()
}

/// About how long a row takes: it is set up once, with all its flows; then a packet takes about half a microsecond.
fn of_a_row(settings: &Settings) -> Duration {
    Duration::from_millis(1000 + settings.rounds as u64 * settings.packets / 2_000)
}

/// The same of what happens beside it.
fn of_a_beside(settings: &Settings) -> Duration {
    Duration::from_secs(2 + settings.rounds as u64)
}

/// Measures what was chosen of them.
pub fn measure(run: &mut Run) -> Result<(), Error> {
    let core = run.settings.cores.receiver;
    if !pin(core) {
        run.report.remarks.push(format!("pipeline: cannot stay on core {core}"));
    }
    let mut empties = Vec::new();
    let rate = rate();
    for row in ROWS {
        if !run.wants(row.name) {
            continue;
        }
        run.progress.begin(&format!("{}: {}", row.name, row.what));
        match setup::measure(row, run.settings.rounds, run.settings.packets) {
            Ok(figures) => {
                run.progress.step(
                    format!("{}: {:.0}", row.name, figures.packet.median),
                    of_a_row(&run.settings),
                );
                empties.push(figures.empty);
                run.consists(Breakdown {
                    row: row.name,
                    head: format!(
                        "The pipeline's stages: packets a second, packets a batch, and {PER_PACKET}"
                    ),
                    parts: by_stage(&figures, rate),
                })?;
                run.found(Figure {
                    row: row.name,
                    head: HEAD.to_owned(),
                    what: row.what.to_owned(),
                    unit: PER_PACKET,
                    beside: None,
                    manx: figures.packet,
                    ratio: None,
                    goal: row.goal.map(|cycles| Goal::AtMost(cycles.into())),
                })?;
            }
            Err(error) => run.lacks(row.name, error.to_string(), true)?,
        }
    }
    if let Some(empty) = Summary::of(&empties) {
        run.report.remarks.push(format!(
            "pipeline: on core {core}, {UNIT} at {:.2} GHz; {} {UNIT} a packet of generator and sink are taken off",
            rate / 1e9,
            empty.show(),
        ));
    }
    if run.wants(COUNTED) {
        count(run)?;
    }
    for beside in beside::ALL {
        if !run.wants(beside.name) {
            continue;
        }
        run.progress.begin(&format!("{}: {}", beside.name, beside.what));
        match (beside.measure)(run.settings.rounds) {
            Ok(found) => {
                run.progress.step(format!("{}: done", beside.name), of_a_beside(&run.settings));
                run.report.remarks.push(format!("{}: {}", beside.name, found.words));
                let Beside { name, what, goal, head, unit, .. } = *beside;
                let figure =
                    Figure::of_pairs(name, head, what.to_owned(), unit, &found.pairs, goal);
                // What only has to lose nothing has no pairs.
                if let Some(figure) = figure {
                    run.found(figure)?;
                }
            }
            Err(error) => run.lacks(beside.name, error.to_string(), true)?,
        }
    }
    Ok(())
}

/// Millions of packets a second, by the median, the batches that the worker met, and what packets cost by stage.
fn by_stage(figures: &Figures, rate: f64) -> Vec<(&'static str, f64)> {
    let stages = Stage::ALL.iter().zip(figures.stages.each).map(|(stage, it)| (stage.name(), it));
    let mpps = ("Mpps", rate / figures.packet.median / 1e6);
    let batch = ("batch", figures.stages.batch);
    [mpps, batch].into_iter().chain(stages).chain([("turns", figures.stages.turns)]).collect()
}

/// Counts instructions.
fn count(run: &mut Run) -> Result<(), Error> {
    if let Some(why) = programs::missing(&["valgrind"], "valgrind") {
        return run.lacks(COUNTED, why, false);
    }
    for row in instructions::ROWS {
        let (name, _) = row;
        run.progress.begin(&format!("{COUNTED}: {name}"));
        let head = "The pipeline's stages, instructions per packet".to_owned();
        match instructions::count(row) {
            Ok(parts) => run.consists(Breakdown { row: name, head, parts })?,
            Err(error) => run.lacks(COUNTED, format!("{name}: {error}"), true)?,
        }
        run.progress
            .step(format!("{COUNTED}: {name}: done"), COUNTING / instructions::ROWS.len() as u32);
    }
    Ok(())
}

/// Passes packets of this row once and measures nothing: for a profiler that counts instructions.
pub fn instructions(name: &str, packets: u64) -> Result<String, Error> {
    let Some(row) = Row::named(name) else {
        let known = ROWS.iter().map(|row| row.name).collect::<Vec<_>>().join(", ");
        return Err(Error::Failed(format!("found the row {name:?}, expected one of {known}")));
    };
    let passed = || {
        let mut setup = row.set_up()?;
        let warm = setup.node.counters.packets.read();
        setup.node.count_time();
        setup.more(packets)?;
        Ok::<_, Failure>(format!("{warm} packets to set {name} up, and {packets} more"))
    };
    passed().map_err(|error| Error::Failed(error.to_string()))
}
