//! Packets in, packets out.
pub mod fate;
pub mod packet;
pub mod port;
