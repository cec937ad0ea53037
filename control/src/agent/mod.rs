//! The node agent.

pub mod server;
