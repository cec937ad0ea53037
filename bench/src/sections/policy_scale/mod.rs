//! The cost of policy at scale: compiling a node, following a change, and one lookup. The linear reference, which
//! evaluates the policies as they were written, is measured for comparison.

mod changes;
mod lookups;
mod rows;
mod shapes;

use std::time::{Duration, Instant};

use manx_policy_compiler::compile::Compiler;
use manx_policy_compiler::image::Image;
use manx_policy_compiler::reference::prove;

use crate::error::Error;
use crate::report::figures::Figure;
use crate::report::goal::Goal;
use crate::run::{ListedRow, Run, Settings};

use changes::{pod_changes, policy_changes, set_changes};
use lookups::{by_image, by_reference};
use rows::{ROWS, Row};
use shapes::Shape;

/// The goal of one more network set, in milliseconds.
const SET_GOAL_MS: f64 = 5.0;
/// The goals of random lookups and of hot ones, in nanoseconds.
const LOOKUP_GOALS: [f64; 2] = [30.0, 10.0];
const POD_GOAL_US: f64 = 50.0;
const TABLES_GOAL_MB: f64 = 16.0;
/// The number of hot addresses.
const HOT: usize = 64;

/// The rows of this section.
pub fn rows(_: &Settings) -> Vec<ListedRow> {
    let listed = |row: &Row| ListedRow::new(row.name, row.what, Duration::from_secs(row.seconds));
    ROWS.iter().map(listed).collect()
}

/// Measures the chosen rows.
pub fn measure(run: &mut Run) -> Result<(), Error> {
    for row in &ROWS {
        if !run.wants(row.name) {
            continue;
        }
        run.progress.begin(&format!("{}: {}", row.name, row.what));
        measure_row(&mut Sheet { run, row })?;
        run.progress.step(format!("{}: done", row.name), Duration::from_secs(row.seconds));
    }
    Ok(())
}

/// A row of this section that is being measured. Its figures are added to `run`.
struct Sheet<'a> {
    run: &'a mut Run,
    row: &'static Row,
}

impl Sheet<'_> {
    /// Adds a figure. If there are no values, it adds nothing. The goal is an upper limit.
    fn add(
        &mut self,
        what: &str,
        unit: &'static str,
        values: &[f64],
        goal: Option<f64>,
    ) -> Result<(), Error> {
        let goal = goal.map(Goal::AtMost);
        let figure = Figure::from_values(self.row.name, &self.head(), what, unit, values, goal);
        self.run.add_figures(figure)
    }

    /// Adds a figure of these times, in `us` or `ms`.
    fn add_times(
        &mut self,
        what: &str,
        unit: &'static str,
        times: &[Duration],
        goal: Option<f64>,
    ) -> Result<(), Error> {
        let goal = goal.map(Goal::AtMost);
        let figure = Figure::from_times(self.row.name, &self.head(), what, unit, times, goal);
        self.run.add_figures(figure)
    }

    fn head(&self) -> String {
        format!("Policy at scale, {}: {}", self.row.name, self.row.what)
    }

    fn add_remark(&mut self, text: &str) {
        self.run.report.remarks.push(format!("policy-scale, {}: {text}", self.row.name));
    }
}

fn measure_row(sheet: &mut Sheet<'_>) -> Result<(), Error> {
    let shape = (sheet.row.make)();
    let image = measure_compiling(sheet, &shape)?;
    measure_policy_and_set_changes(sheet, &shape)?;
    let (times, refused) = pod_changes(&shape, sheet.run.settings.changes);
    sheet.add_times("a pod elsewhere comes or goes", "us", &times, Some(POD_GOAL_US))?;
    let reference = by_reference(&shape.model, &shape.local, &shape.peers);
    measure_lookups(sheet, &shape, &image)?;
    let megabytes = image.bytes() as f64 / 1e6;
    sheet.add("tables", "MB", &[megabytes], Some(TABLES_GOAL_MB))?;
    let counts = image.counts();
    sheet.add_remark(&format!(
        "{} classes, {} chains ({} rule by rule), {} rows; a lookup by the reference {reference:.0} ns; {refused} of {} pods \
         that came or went took more than the tables in use",
        counts.classes,
        counts.chains,
        counts.linear,
        counts.rows,
        times.len(),
    ));
    if sheet.run.settings.prove {
        prove_image(sheet, &shape, &image)?;
    }
    Ok(())
}

/// Compiles from nothing in each round. Returns the last image.
fn measure_compiling(sheet: &mut Sheet<'_>, shape: &Shape) -> Result<Image, Error> {
    let mut times = Vec::new();
    let mut image = Image::default();
    for _ in 0..sheet.run.settings.rounds {
        let mut compiler = Compiler::new();
        let start = Instant::now();
        let next = compiler.compile(&shape.model, &shape.local);
        times.push(start.elapsed());
        image = next;
    }
    sheet.add_times("compiled from nothing", "ms", &times, Some(sheet.row.compile_goal))?;
    Ok(image)
}

fn measure_policy_and_set_changes(sheet: &mut Sheet<'_>, shape: &Shape) -> Result<(), Error> {
    let (rounds, goals) = (sheet.run.settings.rounds, sheet.row.change_goals);
    let [ports, peers] = policy_changes(shape, rounds);
    sheet.add_times("a policy of every endpoint changes", "ms", &ports, goals[0])?;
    sheet.add_times("the same, with selectors that no policy had", "ms", &peers, goals[1])?;
    let sets = set_changes(shape, rounds);
    sheet.add_times("one more network set comes, changes or goes", "ms", &sets, Some(SET_GOAL_MS))
}

fn measure_lookups(sheet: &mut Sheet<'_>, shape: &Shape, image: &Image) -> Result<(), Error> {
    let peers = &shape.peers;
    let kinds = [("random", peers.len()), ("of 64 hot ones", HOT)];
    for ((kind, count), goal) in kinds.into_iter().zip(LOOKUP_GOALS) {
        let times = by_image(image, &shape.local, &peers[..count.min(peers.len())]);
        sheet.add(&format!("a lookup, {kind}"), "ns", &times, Some(goal))?;
    }
    Ok(())
}

/// Compares every cell of the image with the reference.
fn prove_image(sheet: &mut Sheet<'_>, shape: &Shape, image: &Image) -> Result<(), Error> {
    let start = Instant::now();
    match prove(&shape.model, &shape.local, image) {
        Ok(proof) => {
            sheet.add_remark(&format!(
                "proved in {:.2} s: {} cells, {} peers stand for all",
                start.elapsed().as_secs_f64(),
                proof.cells,
                proof.peers
            ));
            Ok(())
        }
        Err(counterexample) => {
            sheet.run.add_missing(sheet.row.name, format!("WRONG: {counterexample}"), true)
        }
    }
}
