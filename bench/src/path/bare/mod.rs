//! Paths through a forwarder that makes no decision: the lowest cost that is possible with the devices and system calls
//! of Manx.

mod datagrams;
pub mod forwarder;
pub mod paths;
