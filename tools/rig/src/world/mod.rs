//! The running rig: the processes that hold it, its network, an agent for each node, a process for
//! each prober, and the live manifests.

pub mod agent;
pub mod bounded_log;
pub(crate) mod cluster;
pub(crate) mod command;
mod deletion;
pub mod enter;
pub mod fault;
pub mod live;
pub mod pasta;
pub mod prober_process;
pub(crate) mod process;
pub(crate) mod service;
pub mod setup;
pub mod slices;
pub mod supervisor;
pub mod underlay;
pub mod workdir;
