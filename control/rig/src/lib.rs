//! The rig: a whole cluster on one machine, run by an ordinary user, and the traffic that checks it.
//!
//! Four floors, each of which imports only those above it in this list:
//!
//! 1. [`plan`]: what was asked. A [`plan::Plan`] is made of the objects.
//! 2. [`world`]: what is set up and lived in. A chain of processes ([`world::supervisor`]) provides namespaces that vanish
//!    with it. Inside, the cluster builds the [`world::underlay`], starts an [`world::agent`] for each node and a process
//!    for each [`plan::prober`], and attaches the pods through the agents' sockets.
//! 3. `traffic`: what is asked of whom. Every pair of probers is probed, and the results are compared with what the oracle
//!    expects of the same objects.
//! 4. [`report`]: what came of it, in which what is equal stands together.
//!
//! The [`control_loop`] of the cluster's process goes through them for each request of a [`caller`], who prints the
//! report.
//!
//! Pods on the host's network are their node ([`plan::HostPod`]). No pod is probed from itself, because that traffic
//! never leaves its namespace.

pub mod caller;
pub mod control_loop;
pub mod plan;
pub mod report;
mod traffic;
pub mod world;
