//! Measures Manx beside others, in turn in one run, and by itself.
//!
//! A [`run`](mod@run) measures what was chosen of five sections and writes a [`report`]:
//!
//! - [`side_by_side`]: Manx on real devices beside the kernel and other programs;
//! - [`fairness`]: what a pod's attack leaves its neighbour, on real devices;
//! - [`pipeline`]: what a packet costs, without devices;
//! - [`policy_scale`]: what compiling, changing and asking large policy costs;
//! - [`change`]: what a change of one object costs the control thread.
//!
//! What lies below the first two:
//!
//! - [`world`]: a user, mount and network namespace of our own, so that nothing here needs root or touches the machine;
//! - [`path`]: two ends that can reach each other, and what lies between them;
//! - [`kernel`], [`bare`], [`bare_tunnel`], [`switch`] and [`agents`]: the ways to make one: kernel routing or a kernel VXLAN
//!   device, a forwarder that decides nothing, or one on each of two nodes, other people's userspace switches, and real node agents;
//! - [`process`]: what carries packets in a process of its own, and is halted while the other side is measured;
//! - [`filter`]: what the kernel would need to enforce as many rules;
//! - [`traffic`]: what is sent over a path, and what arrived: TCP streams, a flood of small UDP packets, a UDP ping-pong;
//! - [`ground`]: what stands beside Manx;
//! - [`comparison`]: which pairs are measured there, by what traffic, and what is hoped for.
//!
//! And for all: [`statistics`] (medians, spread, the ratio of each pair), [`goal`], [`cores`], [`machine`], [`programs`],
//! [`progress`].
//!
//! Nothing is judged by a time here: figures are printed beside their goals, and nothing fails by them.

pub mod agents;
pub mod bare;
pub mod bare_tunnel;
pub mod change;
pub mod comparison;
pub mod cores;
pub mod error;
pub mod fairness;
pub mod filter;
pub mod goal;
pub mod ground;
pub mod kernel;
pub mod machine;
mod manifests;
pub mod path;
pub mod pipeline;
pub mod policy_scale;
pub mod process;
pub mod programs;
pub mod progress;
pub mod report;
pub mod run;
pub mod side_by_side;
pub mod statistics;
pub mod switch;
pub mod sys;
pub mod traffic;
pub mod world;
