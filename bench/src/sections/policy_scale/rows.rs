//! The rows: clusters of different shapes, and the goals of each.

use super::shapes::{self, Shape};

pub(super) struct Row {
    /// The name of the row on the command line.
    pub(super) name: &'static str,
    /// A description of the shape.
    pub(super) what: &'static str,
    pub(super) make: fn() -> Shape,
    /// The estimated time of the measurement.
    pub(super) seconds: u64,
    /// The goal of compiling from nothing, in milliseconds.
    pub(super) compile_goal: f64,
    /// The goals for compiling after a policy of every endpoint has changed, in milliseconds: for a change of its
    /// ports, and for a change to new peers.
    pub(super) change_goals: [Option<f64>; 2],
}

/// All rows, in the order of the report.
pub(super) const ROWS: [Row; 4] = [
    Row {
        name: "cluster",
        what: "100,000 pods, 14,000 policies, 250 local endpoints",
        make: shapes::cluster,
        seconds: 6,
        compile_goal: 50.0,
        change_goals: [Some(5.0); 2],
    },
    Row {
        name: "site",
        what: "294 policies of 68 rules, 3,708 sets with 256,000 members, one endpoint",
        make: shapes::site,
        seconds: 12,
        compile_goal: 50.0,
        change_goals: [None; 2],
    },
    Row {
        name: "sets",
        what: "250 policies of 50 rules, each with its own set, one endpoint",
        make: shapes::sets,
        seconds: 6,
        compile_goal: 1000.0,
        change_goals: [None; 2],
    },
    Row {
        name: "explosion",
        what: "2,000 overlapping selectors on one endpoint, 8,000 identities",
        make: shapes::explosion,
        seconds: 8,
        compile_goal: 1000.0,
        change_goals: [None; 2],
    },
];
