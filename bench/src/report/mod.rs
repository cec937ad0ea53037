//! What a run found, and how it is told: as JSON for programs, as a table and as a chart for people.

mod chart;
mod table;

use std::io::Write as _;
use std::path::Path;

use manx_linux::private;
use serde::Serialize;

use crate::error::{Error, io};
use crate::goal::Goal;
use crate::machine::Machine;
use crate::statistics::{Pair, Summary};

/// One figure of Manx, and what it is compared with.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// What the row that it belongs to is called on the command line.
    pub row: &'static str,
    /// Under which head it is shown.
    pub head: String,
    /// What is measured.
    pub what: String,
    /// In what.
    pub unit: &'static str,
    /// What stands beside Manx, if something does.
    pub beside: Option<Summary>,
    /// Manx's.
    pub manx: Summary,
    /// Manx's over the other's, pair by pair.
    pub ratio: Option<Summary>,
    /// What is hoped for: of the ratio, or of Manx's figure if there is none.
    pub goal: Option<Goal>,
}

impl Figure {
    /// Of pairs; `None` of none.
    pub fn of_pairs(
        row: &'static str,
        head: &str,
        what: String,
        unit: &'static str,
        pairs: &[Pair],
        goal: Option<Goal>,
    ) -> Option<Self> {
        let column =
            |value: fn(&Pair) -> f64| Summary::of(&pairs.iter().map(value).collect::<Vec<_>>());
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

    /// What the goal speaks of.
    fn judged(&self) -> Summary {
        self.ratio.unwrap_or(self.manx)
    }

    /// Whether the goal is met, by the median.
    pub fn is_met(&self) -> Option<bool> {
        self.goal.map(|goal| goal.is_met(self.judged().median))
    }
}

/// What a row's figure is made of.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Breakdown {
    /// What the row is called.
    pub row: &'static str,
    /// Under which head it is shown.
    pub head: String,
    /// Of each part what it is called, and how much it is. All of one head have the same parts.
    pub parts: Vec<(&'static str, f64)>,
}

/// A row that was asked for and has no figure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// What it is called on the command line.
    pub row: &'static str,
    /// Why, and what to do.
    pub why: String,
    /// Whether it was tried and failed; else this machine lacks something that it needs.
    pub failed: bool,
}

/// Everything.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Where it was measured.
    pub machine: Machine,
    /// How.
    pub conditions: Vec<String>,
    /// In the order of measuring.
    pub figures: Vec<Figure>,
    /// What some of them are made of.
    pub breakdowns: Vec<Breakdown>,
    /// What was not measured.
    pub missing: Vec<Missing>,
    /// What else was seen.
    pub remarks: Vec<String>,
}

impl Report {
    /// Nothing yet.
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

    /// As Markdown.
    pub fn markdown(&self) -> String {
        table::markdown(self)
    }

    /// As an SVG picture.
    pub fn svg(&self) -> String {
        chart::svg(self)
    }

    /// Writes `results.json`, `results.md` and `results.svg` into a folder that is there, in place of what it held of these.
    pub fn write(&self, folder: &Path) -> Result<(), Error> {
        let json = serde_json::to_string_pretty(self)
            .map_err(|error| io("the results are no JSON")(std::io::Error::other(error)))?;
        let texts = [("json", json + "\n"), ("md", self.markdown()), ("svg", self.svg())];
        for (form, text) in texts {
            let path = folder.join(format!("results.{form}"));
            let written = private::replace(&path).and_then(|mut it| it.write_all(text.as_bytes()));
            written.map_err(io(format!("{} cannot be written", path.display())))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
