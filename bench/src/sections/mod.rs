//! The sections of the bench: rows that are measured together.
//!
//! Each section has two functions: `rows` lists the rows that it can measure, and `measure` measures the chosen rows
//! and adds their figures to the run. Its folder holds the table of its rows in `rows.rs`.
//!
//! - [`side_by_side`]: Manx on real devices, compared with the kernel and other programs;
//! - [`fairness`]: the share of a pod while its neighbour attacks, on real devices;
//! - [`attach`]: the time to attach many pods, and the delay of other work meanwhile, on real devices;
//! - [`bgp`]: the BGP speaker, compared with other programs, with peers over loopback;
//! - [`pipeline`]: the cost of a packet, without devices;
//! - [`policy_scale`]: the cost to compile, change and look up large policy;
//! - [`policy_size`]: the cost of policies that are made to be expensive, in relation to their length;
//! - [`change`]: the cost of one object's change for the control thread;
//! - [`matrix`]: the cost of the matrix of a whole cluster;
//! - [`addresses`]: the number of store calls that an address costs, in simulated time;
//! - [`questions`]: the cost of checking a large cluster's policies, and of explaining connections with them.

pub mod addresses;
pub mod attach;
pub mod bgp;
pub mod change;
pub mod fairness;
pub mod matrix;
pub mod pipeline;
pub mod policy_scale;
pub mod policy_size;
pub mod questions;
pub mod side_by_side;
mod steps;

use std::thread;

use crate::error::Error;
use crate::run::{ListedRow, Run, Settings};

/// Rows that are measured together.
pub struct Section {
    /// Its name on the command line.
    pub name: &'static str,
    pub description: &'static str,
    /// Its rows, in order.
    pub rows: fn(&Settings) -> Vec<ListedRow>,
    measure: fn(&mut Run) -> Result<(), Error>,
}

/// All sections, in the order of measuring.
pub const SECTIONS: [Section; 11] = [
    Section {
        name: "side-by-side",
        description: "Manx beside others, on real devices, in turn",
        rows: side_by_side::rows,
        measure: side_by_side::measure,
    },
    Section {
        name: "fairness",
        description: "what a pod's attack leaves its neighbour, on real devices, in turn",
        rows: fairness::rows,
        measure: fairness::measure,
    },
    Section {
        name: "attach",
        description: "attaching many pods at once, and one after the other",
        rows: attach::rows,
        measure: attach::measure,
    },
    Section {
        name: "bgp",
        description: "the BGP speaker beside others, with many peers and large tables, in turn",
        rows: bgp::rows,
        measure: bgp::measure,
    },
    Section {
        name: "pipeline",
        description: "what a packet costs, packets in memory",
        rows: pipeline::rows,
        measure: pipeline::measure,
    },
    Section {
        name: "policy-scale",
        description: "compiling, changing and asking large policy",
        rows: policy_scale::rows,
        measure: policy_scale::measure,
    },
    Section {
        name: "policy-size",
        description: "policies that are made to cost much, by their length",
        rows: policy_size::rows,
        measure: policy_size::measure,
    },
    Section {
        name: "change",
        description: "what a change of one object costs the control thread",
        rows: change::rows,
        measure: change::measure,
    },
    Section {
        name: "matrix",
        description: "who reaches whom in a whole cluster",
        rows: matrix::rows,
        measure: matrix::measure,
    },
    Section {
        name: "addresses",
        description: "what 1,000 nodes ask of the store for 100,000 addresses, in simulated time",
        rows: addresses::rows,
        measure: addresses::measure,
    },
    Section {
        name: "questions",
        description: "checking a large cluster's policies, and explaining connections by them",
        rows: questions::rows,
        measure: questions::measure,
    },
];

/// Measures the chosen rows, section by section.
pub fn measure(run: &mut Run) -> Result<(), Error> {
    for section in &SECTIONS {
        let rows = (section.rows)(&run.settings);
        if rows.iter().any(|row| run.wants(row.name)) {
            // Each section has a separate thread, so that its pinning and its processes end with it.
            thread::scope(|scope| {
                let measured = scope.spawn(|| (section.measure)(run)).join();
                measured.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })?;
            // There may be remarks after the last figure, so the files are written once more.
            run.write()?;
        }
    }
    Ok(())
}
