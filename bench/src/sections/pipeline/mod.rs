//! The cost of a packet in one worker: its pipeline with ports in memory, without system calls.
//!
//! The packets are UDP packets of 64 bytes, including the IP header. The real compiler and calculation produce the
//! tables. All checks are on: header checksums, source check, flow state and epochs, counters of ports, rules and
//! drops, hop limit, MTU.
//!
//! Cycles are those of the time-stamp counter, whose rate does not change with the core's frequency. Cycles are counted
//! only while the worker's thread has its core. The cost of generator and sink is measured in runs without the worker,
//! and is subtracted.

mod cluster;
mod concurrent;
mod instructions;
mod node;
mod packets;
mod rows;
mod setup;
mod time;

use std::time::Duration;

use manx_dataplane::stage::Stage;
use manx_dataplane::sys::clock::UNIT;

use crate::error::{Error, Failure};
use crate::host::cores::pin;
use crate::host::programs;
use crate::report::figures::{Breakdown, Figure};
use crate::report::goal::Goal;
use crate::report::statistics::Summary;
use crate::run::{ListedRow, Run, Settings};

use concurrent::rows as concurrent_rows;
use rows::{ROWS, Row};
use setup::Figures;
use time::{PER_PACKET, ticks_per_second};

const HEAD: &str = "The pipeline in memory";
/// The row of instructions, and the estimated time of counting.
const COUNTED: &str = "instructions";
const COUNTING: Duration = Duration::from_mins(1);

/// The rows of this section.
pub fn rows(settings: &Settings) -> Vec<ListedRow> {
    let rows = ROWS.iter().map(|row| (row.name, row.what, row_estimate(settings)));
    let counted = (COUNTED, "instructions per packet, stage by stage", COUNTING);
    let concurrent =
        concurrent_rows::ROWS.iter().map(|row| (row.name, row.what, concurrent_estimate(settings)));
    let listed = |(name, what, estimate)| ListedRow::new(name, what, estimate);
    rows.chain([counted]).chain(concurrent).map(listed).collect()
}

/// The estimated time of a row: the setup with all its flows, and about half a microsecond per packet.
fn row_estimate(settings: &Settings) -> Duration {
    Duration::from_millis(1000 + settings.rounds as u64 * settings.packets / 2_000)
}

/// The estimated time of a row of [`concurrent`].
fn concurrent_estimate(settings: &Settings) -> Duration {
    Duration::from_secs(2 + settings.rounds as u64)
}

/// Measures the chosen rows.
pub fn measure(run: &mut Run) -> Result<(), Error> {
    let core = run.settings.cores.receiver;
    if !pin(core) {
        run.report.remarks.push(format!("pipeline: cannot stay on core {core}"));
    }
    let mut generators = Vec::new();
    for row in ROWS {
        if run.wants(row.name) {
            generators.extend(measure_row(run, row)?);
        }
    }
    if let Some(generator) = Summary::from_values(&generators) {
        run.report.remarks.push(format!(
            "pipeline: on core {core}, {UNIT} at {:.2} GHz; {} {UNIT} a packet of generator and sink are taken off",
            ticks_per_second() / 1e9,
            generator.show(),
        ));
    }
    if run.wants(COUNTED) {
        count_instructions(run)?;
    }
    for row in concurrent_rows::ROWS {
        if run.wants(row.name) {
            measure_concurrent_row(run, row)?;
        }
    }
    Ok(())
}

/// Measures a row. Returns the cost of generator and sink, if it succeeded.
fn measure_row(run: &mut Run, row: &Row) -> Result<Option<f64>, Error> {
    run.progress.begin(&format!("{}: {}", row.name, row.what));
    let figures = match setup::measure(row, run.settings.rounds, run.settings.packets) {
        Ok(figures) => figures,
        Err(error) => {
            run.add_missing(row.name, error.to_string(), true)?;
            return Ok(None);
        }
    };
    let text = format!("{}: {:.0}", row.name, figures.packet.median);
    run.progress.step(text, row_estimate(&run.settings));
    run.add_breakdown(Breakdown {
        row: row.name,
        head: format!("The pipeline's stages: packets a second, packets a batch, and {PER_PACKET}"),
        parts: parts(&figures),
    })?;
    run.add_figures([Figure {
        row: row.name,
        head: HEAD.to_owned(),
        what: row.what.to_owned(),
        unit: PER_PACKET,
        beside: None,
        manx: figures.packet,
        ratio: None,
        goal: row.goal.map(|cycles| Goal::AtMost(cycles.into())),
    }])?;
    Ok(Some(figures.generator))
}

/// The median of millions of packets per second, the packets per batch, and the cost of a packet by stage.
fn parts(figures: &Figures) -> Vec<(&'static str, f64)> {
    let stages = Stage::ALL.iter().zip(figures.stages.each).map(|(stage, it)| (stage.name(), it));
    let mpps = ("Mpps", ticks_per_second() / figures.packet.median / 1e6);
    let batch = ("batch", figures.stages.batch);
    [mpps, batch].into_iter().chain(stages).chain([("turns", figures.stages.turns)]).collect()
}

fn count_instructions(run: &mut Run) -> Result<(), Error> {
    if let Some(why) = programs::why_missing(&["valgrind"], "valgrind") {
        return run.add_missing(COUNTED, why, false);
    }
    for row in instructions::ROWS {
        let (name, _) = row;
        run.progress.begin(&format!("{COUNTED}: {name}"));
        let head = "The pipeline's stages, instructions per packet".to_owned();
        match instructions::count(row) {
            Ok(parts) => run.add_breakdown(Breakdown { row: name, head, parts })?,
            Err(error) => run.add_missing(COUNTED, format!("{name}: {error}"), true)?,
        }
        run.progress
            .step(format!("{COUNTED}: {name}: done"), COUNTING / instructions::ROWS.len() as u32);
    }
    Ok(())
}

fn measure_concurrent_row(run: &mut Run, row: &concurrent_rows::Row) -> Result<(), Error> {
    run.progress.begin(&format!("{}: {}", row.name, row.what));
    let outcome = match (row.measure)(run.settings.rounds) {
        Ok(outcome) => outcome,
        Err(error) => return run.add_missing(row.name, error.to_string(), true),
    };
    run.progress.step(format!("{}: done", row.name), concurrent_estimate(&run.settings));
    run.report.remarks.push(format!("{}: {}", row.name, outcome.remark));
    let what = row.what.to_owned();
    // A row that only requires that no packet is lost has no pairs.
    let pairs = &outcome.pairs;
    run.add_figures(Figure::from_pairs(row.name, row.head, what, row.unit, pairs, row.goal))
}

/// Passes packets of this row once and measures nothing. This is for a profiler that counts instructions. Batches do
/// not end by time, because a profiler slows the worker down.
pub fn pass_packets(name: &str, packets: u64) -> Result<String, Error> {
    let Some(row) = Row::find(name) else {
        let known = ROWS.iter().map(|row| row.name).collect::<Vec<_>>().join(", ");
        return Err(Error::Failed(format!("found the row {name:?}, expected one of {known}")));
    };
    let passed = || {
        let mut setup = row.set_up()?;
        setup.node.worker.set_batch_ticks(u64::from(u32::MAX));
        let warm = setup.node.counters.packets.read();
        setup.node.count_time();
        setup.more(packets)?;
        Ok::<_, Failure>(format!("{warm} packets to set {name} up, and {packets} more"))
    };
    passed().map_err(|error| Error::Failed(error.to_string()))
}
