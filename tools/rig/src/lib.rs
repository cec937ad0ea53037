//! The rig: a whole cluster on one machine, run by an ordinary user, and the traffic that checks it.
//!
//! Four layers, each of which imports only those above it in this list:
//!
//! 1. [`plan`]: the input. A [`plan::Plan`] is made from the objects.
//! 2. [`world`]: the processes and namespaces of the rig. A chain of processes ([`world::supervisor`]) provides
//!    namespaces that end with it. Inside, the cluster builds the [`world::underlay`], starts an [`world::agent`] for
//!    each node and a process for each [`plan::prober`], and attaches the pods through the agents' sockets.
//! 3. `traffic`: the probes. Every pair of probers is probed, and the results are compared with the oracle's verdicts
//!    on the same objects.
//! 4. [`report`]: the results, with equal ones grouped together.
//!
//! The [`control_loop`] of the cluster's process uses them for each request of a [`caller`], which prints the report.
//!
//! Pods on the host's network send and receive as their node ([`plan::HostPod`]). No pod is probed from itself, because
//! that traffic never leaves its namespace.

pub mod caller;
pub mod control_loop;
pub mod plan;
pub mod report;
mod traffic;
pub mod world;
