//! The rows: the event while packets pass, and the goal.

use super::load::Outcome;
use super::{churn, swap, syn_flood, two_ports, two_workers};
use crate::error::Failure;
use crate::report::goal::Goal;
use crate::sections::pipeline::time::PER_PACKET;

pub(crate) struct Row {
    /// The name of the row on the command line.
    pub(crate) name: &'static str,
    /// The event during the load.
    pub(crate) what: &'static str,
    /// The goal for the ratio of the figure with the event to the figure without it.
    pub(crate) goal: Option<Goal>,
    /// The heading of its figure.
    pub(crate) head: &'static str,
    /// The unit of the pairs.
    pub(crate) unit: &'static str,
    /// The function that measures the row in a number of rounds.
    pub(crate) measure: Measure,
}

/// A function that measures in this many rounds.
type Measure = fn(usize) -> Result<Outcome, Failure>;

/// All rows, in the order of the report.
pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "swap",
        what: "policy exchanged whole every millisecond, 1,000 flows",
        goal: None,
        head: HEAD,
        unit: PER_PACKET,
        measure: swap::measure,
    },
    Row {
        name: "syn-flood",
        what: "as many SYNs of new flows as packets of 1,000 established ones",
        goal: None,
        head: HEAD,
        unit: PER_PACKET,
        measure: syn_flood::measure,
    },
    Row {
        name: "churn",
        what: "1,000 of 100,000 pods come and go a second, 100,000 flows",
        goal: Some(Goal::AtMost(1.1)),
        head: HEAD,
        unit: PER_PACKET,
        measure: churn::measure,
    },
    fair(
        "fair-memory",
        "64-byte packets beside 64 KB super-packets into a tunnel",
        two_ports::whole,
    ),
    fair(
        "fair-memory-segments",
        "64-byte packets beside 520-byte ones of 480 segments",
        two_ports::tiny,
    ),
    workers("workers-near", "two workers, policy of both ends, 100,000 flows", two_workers::near),
    workers("workers-encap", "two workers, IPIP put on, 100,000 flows", two_workers::encap),
    workers("workers-decap", "two workers, IPIP taken off, 1,000 flows", two_workers::decap),
];

const HEAD: &str = "The pipeline while something happens beside it";

/// A row with two workers of one node.
const fn workers(name: &'static str, what: &'static str, measure: Measure) -> Row {
    let head = "Two workers of one node beside two that share nothing";
    Row { name, what, goal: Some(Goal::AtLeast(0.98)), head, unit: "Mpps", measure }
}

/// A row with the share of a worker's time that one of two ports gets, compared with half, which is its fair share.
const fn fair(name: &'static str, what: &'static str, measure: Measure) -> Row {
    let head = "A port with cheap packets beside one with dear ones";
    let goal = Some(Goal::AtLeast(0.9));
    Row { name, what, goal, head, unit: "of the worker's time", measure }
}
