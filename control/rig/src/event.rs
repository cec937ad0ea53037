//! The events that a rig sends to its caller, and the requests that a caller may send to a running rig: one JSON object
//! per line.

use serde::{Deserialize, Serialize};

use super::agent::AgentState;
use super::report::Report;

/// An event of a rig.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// The progress of a step.
    Progress {
        /// The step.
        step: String,
        /// How much is done.
        done: usize,
        /// How much there is.
        total: usize,
    },
    /// A line for the user.
    Note(String),
    /// The rig is built.
    Ready,
    /// What the probes saw.
    Report(Box<Report>),
    /// Which agents run.
    Agents(Vec<AgentState>),
    /// The rig cannot go on.
    Failed {
        /// Whose fault it is.
        fault: Fault,
        /// The message.
        message: String,
    },
}

/// Whose fault a failure is; it decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// The fault of the input or of the caller.
    Input,
    /// The environment does not allow it.
    Environment,
    /// A fault of Manx.
    Own,
}

/// A request to a running rig.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Probe everything and compare the results.
    Check,
    /// Apply these objects (JSON), and then do the same as [`Request::Check`].
    Apply(Vec<serde_json::Value>),
    /// Delete the objects with these names ([`PolicyWord`](super::policy_word::PolicyWord), with the kind), all or
    /// none, and then do the same as [`Request::Check`].
    Delete(Vec<String>),
    /// Say which agents run. It does not wait for probes.
    Agents,
}
