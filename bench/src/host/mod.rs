//! The machine that the bench runs on: its cores, namespaces, processes and installed programs.

pub mod cores;
pub mod machine;
pub mod namespaces;
pub mod process;
pub mod programs;
pub mod sys;
pub mod within;
