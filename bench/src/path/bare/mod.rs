//! Paths through a forwarder that decides nothing: the lowest cost with the devices and system calls of Manx.

mod datagrams;
pub mod forwarder;
pub mod paths;
