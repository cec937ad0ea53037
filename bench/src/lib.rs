//! Measures Manx alone, and in comparison with other programs. In a comparison, Manx and the other program are measured
//! alternately in one run.
//!
//! - [`sections`]: the rows that can be measured, and how. Each row is defined in `sections/SECTION/rows.rs`;
//! - [`path`]: two ends, the program that carries packets between them (Manx, the kernel, a bare forwarder, or a
//!   switch), and the traffic;
//! - [`run`](mod@run): the settings of a run, and the run itself;
//! - [`report`]: figures with their spread, ratio and goal, written as JSON, table and chart;
//! - [`host`]: the machine: cores, namespaces, processes, installed programs.
//!
//! Each module uses only the modules below it in this list. In all of them, "beside" in a name means the program that
//! Manx is compared with. Without root the bench runs in a user namespace, and it leaves nothing behind.
//!
//! Figures are printed with their goals. A missed goal is not an error.

pub mod error;
pub mod host;
pub mod path;
pub mod report;
pub mod run;
pub mod sections;
