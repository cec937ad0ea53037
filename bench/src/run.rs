//! A run: what was asked for, measured section by section, reported as it comes.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crate::cores::Cores;
use crate::error::Error;
use crate::progress::Progress;
use crate::report::{Breakdown, Figure, Missing, Report};
use crate::{change, fairness, pipeline, policy_scale, side_by_side};

/// How it is measured.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How long one measurement takes.
    pub length: Duration,
    /// How often each is made.
    pub rounds: usize,
    /// Packets of one run of the pipeline.
    pub packets: u64,
    /// Objects that change, one after the other.
    pub changes: usize,
    /// Rules in each of the two policies besides the one that allows the traffic, and in the kernel's filters.
    pub rules: usize,
    /// Who runs where.
    pub cores: Cores,
    /// Whether every cell of the large tables is compared with the reference.
    pub prove: bool,
}

impl Settings {
    /// What a table is made of.
    pub fn whole() -> Self {
        Self {
            length: Duration::from_secs(1),
            rounds: 5,
            packets: 1 << 20,
            changes: 1000,
            rules: 1000,
            cores: Cores::of_this_machine(),
            prove: false,
        }
    }

    /// What shows that everything works.
    pub fn quick() -> Self {
        Self {
            length: Duration::from_millis(500),
            rounds: 2,
            packets: 1 << 17,
            changes: 100,
            ..Self::whole()
        }
    }

    /// In words, for the head of a report.
    pub fn conditions(&self) -> Vec<String> {
        vec![
            format!(
                "{} rounds; side by side, pairs (the other, Manx, the other, Manx, ...) of {} s each",
                self.rounds,
                self.length.as_secs_f64()
            ),
            self.cores.describe(),
            format!(
                "Manx: default deny both ways, {} rules in each of two policies",
                self.rules + 1
            ),
        ]
    }
}

/// A row as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What is measured.
    pub words: String,
    /// About how long it takes.
    pub takes: Duration,
}

/// Rows that are measured together.
pub struct Section {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it measures.
    pub words: &'static str,
    /// Its rows, in order.
    pub rows: fn(&Settings) -> Vec<Listed>,
    measure: fn(&mut Run) -> Result<(), Error>,
}

/// All, in the order of measuring.
pub const SECTIONS: [Section; 5] = [
    Section {
        name: "side-by-side",
        words: "Manx beside others, on real devices, in turn",
        rows: side_by_side::rows,
        measure: side_by_side::measure,
    },
    Section {
        name: "fairness",
        words: "what a pod's attack leaves its neighbour, on real devices, in turn",
        rows: fairness::rows,
        measure: fairness::measure,
    },
    Section {
        name: "pipeline",
        words: "what a packet costs, packets in memory",
        rows: pipeline::rows,
        measure: pipeline::measure,
    },
    Section {
        name: "policy-scale",
        words: "compiling, changing and asking large policy",
        rows: policy_scale::rows,
        measure: policy_scale::measure,
    },
    Section {
        name: "change",
        words: "what a change of one object costs the control thread",
        rows: change::rows,
        measure: change::measure,
    },
];

/// One run.
#[derive(Debug)]
pub struct Run {
    /// How.
    pub settings: Settings,
    /// The rows to measure.
    pub chosen: BTreeSet<&'static str>,
    /// What was found.
    pub report: Report,
    /// How far it is.
    pub progress: Progress,
    /// Why no namespaces could be entered, if so: nothing beside which there are devices can be measured.
    pub world: Option<String>,
    /// The folder of the results.
    pub output: PathBuf,
}

impl Run {
    /// Measures what was chosen.
    pub fn measure(&mut self) -> Result<(), Error> {
        for section in &SECTIONS {
            let rows = (section.rows)(&self.settings);
            if rows.iter().any(|row| self.chosen.contains(row.name)) {
                // What a section pins, and what it starts, is its thread's own.
                thread::scope(|scope| {
                    let measured = scope.spawn(|| (section.measure)(self)).join();
                    measured.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })?;
                // What it remarked after its last figure too.
                self.write()?;
            }
        }
        Ok(())
    }

    /// Whether a row is wanted.
    pub fn wants(&self, row: &str) -> bool {
        self.chosen.contains(row)
    }

    /// Takes a figure down, at once in the files too.
    pub fn found(&mut self, figure: Figure) -> Result<(), Error> {
        self.report.figures.push(figure);
        self.write()
    }

    /// Takes down what a figure is made of.
    pub fn consists(&mut self, breakdown: Breakdown) -> Result<(), Error> {
        self.report.breakdowns.push(breakdown);
        self.write()
    }

    /// Takes down that there is no figure.
    pub fn lacks(&mut self, row: &'static str, why: String, failed: bool) -> Result<(), Error> {
        self.progress.say(&format!("{row}: NOT MEASURED: {why}"));
        self.report.missing.push(Missing { row, why, failed });
        self.write()
    }

    /// Writes what was found until now.
    pub fn write(&self) -> Result<(), Error> {
        self.report.write(&self.output)
    }
}
