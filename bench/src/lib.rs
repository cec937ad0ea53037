//! Measures Manx beside others, in turn in one run, and by itself.
//!
//! - [`sections`]: the rows that can be measured, and how; a newcomer finds a row in `sections/SECTION/rows.rs`;
//! - [`path`]: two ends and what carries packets between them: Manx, the kernel, a bare forwarder, a switch; and the
//!   traffic;
//! - [`run`](mod@run): the settings of a run, and taking its figures down;
//! - [`report`]: figures with spread, ratio and goal, written as JSON, table and chart;
//! - [`host`]: the machine: cores, namespaces, processes, installed programs.
//!
//! Each of these knows only those below it in this list. In all of them "beside" is what a figure of Manx is compared
//! with; it is measured in turn with Manx. Without root the bench runs in a user namespace, and it leaves nothing
//! behind.
//!
//! Figures are printed beside their goals. A missed goal is no error.

pub mod error;
pub mod host;
pub mod path;
pub mod report;
pub mod run;
pub mod sections;
