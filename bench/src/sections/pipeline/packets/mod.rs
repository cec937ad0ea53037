//! Packets in memory: their sources and destinations, and the ports that generate and count them.

pub(crate) mod addresses;
pub(crate) mod framed;
pub(crate) mod peers;
pub(crate) mod station;
pub(crate) mod stream;
