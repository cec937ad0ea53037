//! The rig: a whole cluster on one machine, as an ordinary user, and the traffic that checks it.
//!
//! From the objects ([`live`]) a [`plan`] is made; a chain of processes ([`supervisor`]) gives it namespaces that vanish
//! with it; inside, the [`cluster`] builds the [`underlay`], starts an [`agent`] for each node and a process for each
//! [`prober`], and attaches the pods by the agents' sockets. Every pair of probers is probed ([`check`]) and what is seen is
//! compared with what the oracle expects of the same objects ([`matrix`]). The [`caller`] prints the [`report`].
//!
//! A pod is not probed from itself: that traffic never leaves its namespace.

pub mod agent;
pub mod caller;
pub mod check;
pub mod cluster;
pub mod command;
pub mod control_loop;
mod crossings;
pub mod enter;
pub mod event;
pub mod export;
pub mod live;
pub mod matrix;
pub mod measure;
pub mod plan;
pub mod policy_word;
pub mod prober;
pub mod prober_process;
pub mod render;
pub mod report;
pub mod service;
pub mod settings;
pub mod setup;
pub mod slices;
pub mod supervisor;
pub mod template;
pub mod underlay;
pub mod workdir;
