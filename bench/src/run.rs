//! A run: its settings, the rows to measure, and the report. The report is written after each figure.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::Error;
use crate::host::cores::Cores;
use crate::report::figures::{Breakdown, Figure, Missing, Report};
use crate::report::files;
use crate::report::progress::Progress;

/// The duration, number and cores of measurements.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The duration of one measurement.
    pub length: Duration,
    /// The number of measurements of each figure.
    pub rounds: usize,
    /// The number of packets in one run of the pipeline.
    pub packets: u64,
    /// The number of changes that are measured, one after the other, in rows that measure changes of objects.
    pub changes: usize,
    /// The number of Services.
    pub services: usize,
    /// The number of BGP peers, or of their prefixes, is divided by this.
    pub bgp_part: u32,
    /// The number of rules in each of the two policies, besides the one that allows the traffic, and in the kernel's
    /// filters.
    pub rules: usize,
    /// The cores of the parts of a measurement.
    pub cores: Cores,
    /// Whether every cell of the large tables is compared with the reference.
    pub prove: bool,
}

impl Settings {
    /// The settings for a table that is published.
    pub fn full() -> Self {
        Self {
            length: Duration::from_secs(1),
            rounds: 5,
            packets: 1 << 20,
            changes: 1000,
            services: 10_000,
            bgp_part: 1,
            rules: 1000,
            cores: Cores::detect(),
            prove: false,
        }
    }

    /// Short settings, which show that everything works.
    pub fn quick() -> Self {
        Self {
            length: Duration::from_millis(500),
            rounds: 2,
            packets: 1 << 17,
            changes: 100,
            services: 1000,
            bgp_part: 10,
            ..Self::full()
        }
    }

    /// The settings in words, for the head of a report.
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

/// A row in the list of rows that can be measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedRow {
    /// Its name on the command line.
    pub name: &'static str,
    pub description: String,
    /// The estimated time that it takes.
    pub estimate: Duration,
}

impl ListedRow {
    /// A row of the list.
    pub fn new(name: &'static str, description: &str, estimate: Duration) -> Self {
        Self { name, description: description.to_owned(), estimate }
    }
}

/// One run.
#[derive(Debug)]
pub struct Run {
    /// The duration, number and cores of measurements.
    pub settings: Settings,
    /// The rows to measure.
    pub chosen: BTreeSet<&'static str>,
    /// The results so far.
    pub report: Report,
    /// The progress that the user sees.
    pub progress: Progress,
    /// Why the bench could not enter its namespaces. `None` if it has entered them. Rows with devices need the
    /// namespaces.
    pub no_namespaces: Option<String>,
    /// The folder of the results.
    pub output: PathBuf,
}

impl Run {
    /// Whether a row is to be measured.
    pub fn wants(&self, row: &str) -> bool {
        self.chosen.contains(row)
    }

    /// Adds figures, and writes the files.
    pub fn add_figures(&mut self, all: impl IntoIterator<Item = Figure>) -> Result<(), Error> {
        self.report.figures.extend(all);
        self.write()
    }

    /// Adds the figures of a row, or the reason why it has none.
    pub fn add_measured(
        &mut self,
        row: &'static str,
        measured: Result<impl IntoIterator<Item = Figure>, impl ToString>,
    ) -> Result<(), Error> {
        match measured {
            Ok(figures) => self.add_figures(figures),
            Err(error) => self.add_missing(row, error.to_string(), true),
        }
    }

    /// Adds the parts of a figure, and writes the files.
    pub fn add_breakdown(&mut self, breakdown: Breakdown) -> Result<(), Error> {
        self.report.breakdowns.push(breakdown);
        self.write()
    }

    /// Adds a row without a figure, and writes the files. `failed` says whether the measurement was tried.
    pub fn add_missing(
        &mut self,
        row: &'static str,
        why: String,
        failed: bool,
    ) -> Result<(), Error> {
        self.progress.print_line(&format!("{row}: NOT MEASURED: {why}"));
        self.report.missing.push(Missing { row, why, failed });
        self.write()
    }

    /// Writes the results so far.
    pub fn write(&self) -> Result<(), Error> {
        files::write(&self.report, &self.output)
    }
}
