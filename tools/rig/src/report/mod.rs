//! The results of a rig as data ([`Report`]), their grouping and their changes, as text, as events
//! and as an export.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::traffic::check::Finding;
use crate::traffic::measure::Measured;
use changes::Change;
use manx_api::{RuleCount, Status};
use probers::Probers;

pub(crate) mod changes;
pub mod event;
pub(crate) mod export;
pub(crate) mod probers;
pub mod render;
pub mod table;
mod truth;
mod truth_text;

/// All results of a check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub rig: String,
    /// Whether everything is as the oracle expects.
    pub as_expected: bool,
    /// The pods, nodes and the outside host, by name.
    #[serde(rename = "parties")]
    pub probers: Probers,
    pub probes: Vec<Finding>,
    /// The cells whose content has changed since the run before; absent in the first run of a rig.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<Vec<Change>>,
    /// Packets of all nodes by the rule that decided, or the reason if no rule did.
    pub rules: Vec<Counted>,
    /// Dropped packets of all nodes and ports, by reason.
    pub drops: BTreeMap<String, u64>,
    /// A line about each kind of pair that was not probed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Throughput and latency.
    pub samples: Vec<Measured>,
    /// The duration of the probing in milliseconds.
    pub elapsed_ms: u64,
    /// The folder of the export, if there was a deviation.
    pub export: Option<PathBuf>,
}

/// Packets by the rule that decided, or by the reason if no rule did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// The rule, or the reason.
    pub rule: String,
    /// `allow` or `deny`.
    pub verdict: String,
    /// Packets, super-packets counted in segments.
    pub packets: u64,
}

impl Report {
    /// The probes that were not as expected.
    pub fn deviations(&self) -> impl Iterator<Item = &Finding> {
        self.probes.iter().filter(|finding| !finding.as_expected())
    }
}

/// Sums the agents' counters by rule, most packets first.
pub(crate) fn rules(statuses: &[Status]) -> Vec<Counted> {
    let mut sums: BTreeMap<(String, String), u64> = BTreeMap::new();
    for RuleCount { rule, verdict, packets } in statuses.iter().flat_map(|status| &status.rules) {
        *sums.entry((verdict.clone(), rule.clone())).or_default() += packets;
    }
    let mut counted: Vec<Counted> = sums
        .into_iter()
        .filter(|(_, packets)| *packets > 0)
        .map(|((verdict, rule), packets)| Counted { rule, verdict, packets })
        .collect();
    counted.sort_by(|a, b| (&a.verdict, b.packets).cmp(&(&b.verdict, a.packets)));
    counted
}

/// Sums the agents' drops by reason.
pub(crate) fn drops(statuses: &[Status]) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for port in statuses.iter().flat_map(|status| &status.ports) {
        for (reason, packets) in &port.drops {
            *sums.entry(reason.clone()).or_default() += packets;
        }
    }
    sums
}
