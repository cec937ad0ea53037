//! Paths through Manx: the real node agent, in a separate process for each node.

pub mod agent;
pub mod cluster;
mod manifests;
pub mod node;
mod services;
pub mod shape;
