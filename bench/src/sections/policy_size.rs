//! The cost of policies that are made to be expensive, in relation to their length: from their text to the tables of
//! one node. Each row is a shape of `manx_fixtures::heavy`.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use manx_calculation::import::{Cluster, import_for};
use manx_fixtures::heavy::{NODE, SHAPES, Shape};
use manx_objects::contents::Contents;
use manx_policy_compiler::compile::Compiler;
use manx_policy_compiler::model::ObjectName;

use crate::error::{Error, Failure};
use crate::report::figures::{Breakdown, Figure};
use crate::report::goal::Goal;
use crate::run::{ListedRow, Run, Settings};

/// The lengths of the text in bytes, and their names.
const LENGTHS: [(usize, &str); 4] =
    [(100_000, "0.1 MB"), (1_000_000, "1 MB"), (5_000_000, "5 MB"), (10_000_000, "10 MB")];

/// Each compilation from nothing is made this many times, and the shortest time counts.
const TIMES: usize = 3;

/// At most this many pods are on the node.
const LOCAL: usize = 250;

/// The largest factor by which the time may grow when the text is twice as long.
const GROWTH_GOAL: f64 = 2.5;

/// The estimated time of one row.
const ESTIMATE: Duration = Duration::from_secs(25);

/// The rows of this section.
pub fn rows(_: &Settings) -> Vec<ListedRow> {
    SHAPES.iter().map(|shape| ListedRow::new(shape.name, shape.what, ESTIMATE)).collect()
}

/// Measures the chosen rows.
pub fn measure(run: &mut Run) -> Result<(), Error> {
    for shape in &SHAPES {
        if !run.wants(shape.name) {
            continue;
        }
        run.progress.begin(&format!("{}: {}", shape.name, shape.what));
        let measured = LENGTHS.iter().map(|(bytes, _)| measure_length(shape, *bytes));
        match measured.collect::<Result<Vec<_>, Failure>>() {
            Ok(measured) => add(run, shape, &measured)?,
            Err(error) => run.add_missing(shape.name, error.to_string(), true)?,
        }
        run.progress.step(format!("{}: done", shape.name), ESTIMATE);
    }
    Ok(())
}

/// The time of each step in milliseconds, and a description of the tables.
struct Measured {
    imported: f64,
    compiled: f64,
    tables: String,
}

fn measure_length(shape: &Shape, bytes: usize) -> Result<Measured, Failure> {
    let text = shape.text(bytes);
    let contents = Contents::from_texts([("policies.yaml", &*text)]);
    if let Some(problem) = contents.problems.first() {
        return Err(format!("the manifests are not as they should be: {problem:?}").into());
    }
    let start = Instant::now();
    let Cluster { model, pods_by_node, .. } = import_for(&contents, NODE);
    let imported = milliseconds(start.elapsed());
    let local: BTreeSet<_> =
        pods_by_node.keys().take(LOCAL).map(|pod| ObjectName::clone(pod)).collect();
    let (mut compiled, mut tables) = (f64::INFINITY, String::new());
    for _ in 0..TIMES {
        let mut compiler = Compiler::new();
        let start = Instant::now();
        let image = compiler.compile(&model, &local);
        compiled = compiled.min(milliseconds(start.elapsed()));
        let counts = image.counts();
        tables = format!(
            "{} pods of the node, {} classes, {} chains ({} rule by rule), {} rows, {:.1} MB",
            local.len(),
            counts.classes,
            counts.chains,
            counts.linear,
            counts.rows,
            image.bytes() as f64 / 1e6,
        );
    }
    Ok(Measured { imported, compiled, tables })
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Adds the figures of a shape. `measured` has one entry for each length.
fn add(run: &mut Run, shape: &Shape, measured: &[Measured]) -> Result<(), Error> {
    let row = shape.name;
    let compiled: Vec<f64> = measured.iter().map(|it| it.compiled).collect();
    let imported = measured.iter().map(|it| it.imported).collect();
    for (step, times) in [("compiled", compiled), ("imported", imported)] {
        let parts = LENGTHS.into_iter().map(|(_, name)| name).zip(times).collect();
        let head = format!("Policy by its length, {step}, ms");
        run.add_breakdown(Breakdown { row, head, parts })?;
    }
    let [.., half, whole] = measured else { return Ok(()) };
    run.report.remarks.push(format!("policy-size, {row}, 10 MB: {}", whole.tables));
    let head = "Policy by its length: how much longer twice the text takes to compile";
    let what = format!("10 MB over 5 MB: {}", shape.what);
    let (growth, goal) = (whole.compiled / half.compiled, Some(Goal::AtMost(GROWTH_GOAL)));
    run.add_figures(Figure::from_values(row, head, &what, "times", &[growth], goal))
}
