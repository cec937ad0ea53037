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
        step: String,
        /// The number of parts that are done.
        done: usize,
        /// The number of all parts.
        total: usize,
    },
    /// A line for the user.
    Note(String),
    /// The rig is built.
    Ready,
    /// The results of the probes.
    Report(Box<Report>),
    /// The state of each agent.
    Agents(Vec<AgentState>),
    /// The rig cannot continue.
    Failed { fault: Fault, message: String },
}

/// A request to a running rig.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Probe everything and compare the results.
    Check,
    /// Apply these objects (JSON), then act as for [`Request::Check`].
    Apply(Vec<serde_json::Value>),
    /// Delete the objects with these names ([`PolicyReference`](crate::plan::policy_reference::PolicyReference), with the kind), all
    /// or none, then act as for [`Request::Check`].
    Delete(Vec<String>),
    /// Report the state of each agent, without waiting for probes.
    Agents,
}
