//! From a cluster's objects to the tables of one node.
//!
//! The layers, in order:
//! - [`interfaces`]: the interfaces of a node that host endpoints may govern.
//! - [`overlay`]: the kinds of tunnels, in one table.
//! - [`import`]: objects to the validated model. An object that is not valid fails closed.
//! - [`topology`]: the route of every prefix, seen from one node.
//! - [`way_out`]: the hosts to which pods keep their own addresses.
//! - [`services`]: service addresses that the node's kube-proxy translates, and the table of those that Manx translates.
//! - [`calc`]: the tables of the dataplane, made anew or changed in place.
//!
//! Everything here is calculated from its arguments: no files, no clock, no system call. The oracle, which judges the
//! result, shares no code with this crate.

pub mod calc;
pub mod import;
pub mod interfaces;
pub mod overlay;
pub mod services;
pub mod topology;
pub mod way_out;
