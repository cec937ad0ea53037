//! The node agent.

pub mod device;
pub mod host_device;
pub mod pod_device;
pub mod server;
