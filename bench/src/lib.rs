//! Measures Manx beside the kernel, in turn in one run.
//!
//! - [`world`]: a user, mount and network namespace of our own, so that nothing here needs root or touches the machine;
//! - [`path`]: two ends that can reach each other, and what lies between them;
//! - [`kernel`], [`bare`] and [`agents`]: the ways to make one: kernel routing, a kernel VXLAN device, a forwarder that decides
//!   nothing, and real node agents;
//! - [`process`]: what carries packets in a process of its own, and is halted while the other side is measured;
//! - [`filter`]: what the kernel would need to enforce as many rules;
//! - [`traffic`]: what is sent over one, and what arrived: TCP streams, a flood of small UDP packets, a UDP ping-pong;
//! - [`statistics`]: medians, spread, and the ratio of each pair;
//! - [`ground`]: what stands beside Manx;
//! - [`comparison`]: which pairs are measured there, by what traffic, and what is hoped for.
//!
//! Nothing is judged by a time here: the programs print figures, they do not fail by them.

pub mod agents;
pub mod bare;
pub mod comparison;
pub mod cores;
pub mod error;
pub mod filter;
pub mod ground;
pub mod kernel;
pub mod path;
pub mod process;
pub mod statistics;
pub mod sys;
pub mod traffic;
pub mod world;
