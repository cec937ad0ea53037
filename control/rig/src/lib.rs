//! The rig: a whole cluster on one machine, run by an ordinary user, and the traffic that checks it.
//!
//! A [`plan`] is made of the objects ([`live`]). A chain of processes ([`supervisor`]) provides namespaces that vanish
//! with it. Inside, the [`cluster`] builds the [`underlay`], starts an [`agent`] for each node and a process for each
//! [`prober`], and attaches the pods through the agents' sockets. Every pair of probers is probed ([`check`]), and the
//! results are compared with what the oracle expects of the same objects ([`matrix`]). The [`caller`] prints the
//! [`report`], in which what is equal stands together ([`truth`]).
//!
//! Pods on the host's network are their node ([`host_pods`]). No pod is probed from itself, because that traffic never
//! leaves its namespace.

pub mod agent;
pub mod bounded_log;
pub mod caller;
pub mod changes;
pub mod check;
pub mod cluster;
pub mod command;
pub mod control_loop;
mod crossings;
pub mod deletion;
pub mod enter;
pub mod event;
pub mod export;
pub mod host_pods;
pub mod live;
pub mod matrix;
pub mod measure;
pub mod more_ports;
pub mod plan;
pub mod policy_ports;
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
pub mod truth;
mod truth_text;
pub mod underlay;
pub mod workdir;
