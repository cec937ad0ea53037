//! The results of a run: figures and their goals, written as JSON, as a table and as a chart.

mod chart;
pub mod figures;
pub mod files;
pub mod goal;
pub mod progress;
pub mod statistics;
pub mod table;
#[cfg(test)]
mod tests;
