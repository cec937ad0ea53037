//! The figures of a run. The fields have the same names and order in `results.json`.

use std::time::Duration;

use serde::Serialize;

use super::goal::Goal;
use super::statistics::{Pair, Summary};
use crate::host::machine::Machine;

/// One figure of Manx, and the figure that it is compared with.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// The name of the row on the command line.
    pub row: &'static str,
    /// The heading under which it is shown.
    pub head: String,
    /// The measured quantity.
    pub what: String,
    pub unit: &'static str,
    /// The figure of the program that Manx is compared with, if there is one.
    pub beside: Option<Summary>,
    /// The figure of Manx.
    pub manx: Summary,
    /// The figure of Manx divided by that of the other program, for each pair of measurements.
    pub ratio: Option<Summary>,
    /// The goal of the ratio, or of the figure of Manx if there is no ratio.
    pub goal: Option<Goal>,
}

impl Figure {
    /// A figure from pairs of measurements. `None` if there are no pairs.
    pub fn from_pairs(
        row: &'static str,
        head: &str,
        what: String,
        unit: &'static str,
        pairs: &[Pair],
        goal: Option<Goal>,
    ) -> Option<Self> {
        let column = |value: fn(&Pair) -> f64| {
            Summary::from_values(&pairs.iter().map(value).collect::<Vec<_>>())
        };
        Some(Self {
            row,
            head: head.to_owned(),
            what,
            unit,
            beside: Some(column(|pair| pair.beside)?),
            manx: column(|pair| pair.manx)?,
            ratio: Some(column(Pair::ratio)?),
            goal,
        })
    }

    /// A figure of Manx alone, from these values. `None` if there are no values.
    pub fn from_values(
        row: &'static str,
        head: &str,
        what: &str,
        unit: &'static str,
        values: &[f64],
        goal: Option<Goal>,
    ) -> Option<Self> {
        let manx = Summary::from_values(values)?;
        let (head, what) = (head.to_owned(), what.to_owned());
        Some(Self { row, head, what, unit, beside: None, manx, ratio: None, goal })
    }

    /// A figure of Manx alone, from these times. `unit` is `us` or `ms`. `None` if there are no times.
    pub fn from_times(
        row: &'static str,
        head: &str,
        what: &str,
        unit: &'static str,
        times: &[Duration],
        goal: Option<Goal>,
    ) -> Option<Self> {
        let per_second = if unit == "us" { 1e6 } else { 1e3 };
        let values: Vec<f64> = times.iter().map(|it| it.as_secs_f64() * per_second).collect();
        Self::from_values(row, head, what, unit, &values, goal)
    }

    /// The value to which the goal applies.
    fn limited(&self) -> Summary {
        self.ratio.unwrap_or(self.manx)
    }

    /// Whether the median meets the goal.
    pub fn is_met(&self) -> Option<bool> {
        self.goal.map(|goal| goal.is_met(self.limited().median))
    }
}

/// The figure of a row, divided into parts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Breakdown {
    /// The name of the row on the command line.
    pub row: &'static str,
    /// The heading under which it is shown.
    pub head: String,
    /// The name and the value of each part. All rows of one heading have the same parts.
    pub parts: Vec<(&'static str, f64)>,
}

/// A row that was requested but has no figure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// The name of the row on the command line.
    pub row: &'static str,
    /// The reason, and what to do about it.
    pub why: String,
    /// Whether the measurement failed. If it did not fail, this machine lacks something that the
    /// row needs.
    pub failed: bool,
}

/// All results of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub machine: Machine,
    /// The conditions of the run: length, number, cores, policies.
    pub conditions: Vec<String>,
    /// The figures, in the order of measuring.
    pub figures: Vec<Figure>,
    /// The parts of some figures.
    pub breakdowns: Vec<Breakdown>,
    /// The rows without a figure.
    pub missing: Vec<Missing>,
    /// Observations that are not figures.
    pub remarks: Vec<String>,
}

impl Report {
    pub const fn new(machine: Machine, conditions: Vec<String>) -> Self {
        Self {
            machine,
            conditions,
            figures: Vec::new(),
            breakdowns: Vec::new(),
            missing: Vec::new(),
            remarks: Vec::new(),
        }
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.figures.is_empty() && self.breakdowns.is_empty()
    }
}
