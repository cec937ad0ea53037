//! Packets in, packets out.
pub mod checksum;
pub mod counters;
pub mod decide;
pub mod encapsulation;
pub mod fate;
pub mod flow;
pub mod fragment;
pub mod icmp;
pub mod offload;
pub mod packet;
pub mod parse;
pub mod port;
pub mod sys;
pub mod tables;
pub mod wire;
pub mod worker;
