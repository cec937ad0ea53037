//! Measures Manx by itself, and in comparison with others, in turn in one run.
//!
//! - [`sections`]: the rows that can be measured, and how; a newcomer finds a row in `sections/SECTION/rows.rs`;
//! - [`path`]: two ends and the way of packets between them: Manx, the kernel, a bare forwarder, a switch; and the
//!   traffic;
//! - [`run`](mod@run): the settings of a run, and its figures;
//! - [`report`]: figures with spread, ratio and goal, written as JSON, table and chart;
//! - [`host`]: the machine: cores, namespaces, processes, installed programs.
//!
//! Each of these knows only those below it in this list. In all of them "beside" names the side that Manx is compared
//! with; it is measured in turn with Manx. Without root the bench runs in a user namespace, and it leaves nothing
//! behind.
//!
//! Figures are printed with their goals. A missed goal is no error.

pub mod error;
pub mod host;
pub mod path;
pub mod report;
pub mod run;
pub mod sections;
