//! What a rig tells its caller while it works, and what a caller may ask of a running one: a JSON object a line.

use serde::{Deserialize, Serialize};

use super::report::Report;

/// One thing that a rig tells.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// How far a step of the work is.
    Progress {
        /// The step.
        step: String,
        /// Done so far.
        done: usize,
        /// In all.
        total: usize,
    },
    /// A line for the reader.
    Note(String),
    /// The rig is built.
    Ready,
    /// What the probes saw.
    Report(Box<Report>),
    /// It does not go on.
    Failed {
        /// Whose fault.
        fault: Fault,
        /// In words.
        message: String,
    },
}

/// Whose fault a failure is; decides on the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// The input's, or the caller's.
    Input,
    /// The environment does not allow it.
    Environment,
    /// Ours.
    Own,
}

/// What a caller asks of a running rig.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Probe everything and compare.
    Check,
    /// Take these objects (JSON) in, then as [`Request::Check`].
    Apply(Vec<serde_json::Value>),
}
