//! The events that a rig sends to its caller, and the requests that a caller may send to a running rig: one JSON object
//! per line.

use serde::{Deserialize, Serialize};

use super::Report;
use crate::world::agent::AgentState;
use crate::world::fault::Fault;

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

/// A request to a running rig.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Probe everything and compare the results.
    Check,
    /// Apply these objects (JSON), and then do the same as [`Request::Check`].
    Apply(Vec<serde_json::Value>),
    /// Delete the objects with these names ([`PolicyWord`](crate::plan::policy_word::PolicyWord), with the kind), all or
    /// none, and then do the same as [`Request::Check`].
    Delete(Vec<String>),
    /// Say which agents run. It does not wait for probes.
    Agents,
}
