//! What can be said about policy without a packet.
//!
//! - [`references`]: names that policies use and that no object defines.
//! - [`explain`]: whether a connection passes by the objects, step by step.
//! - [`proof`]: that compiled tables say what the objects say, in every case.
//!
//! Everything here is calculated from its arguments: no files, no clock. The types of the answers that travel over the agent's
//! socket are `manx-api`'s.

pub mod explain;
pub mod proof;
pub mod references;
