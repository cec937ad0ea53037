//! Calculates the tables of one node from a cluster's objects.
//!
//! The layers, in order:
//! - [`interfaces`]: the interfaces of a node to which host endpoints may apply.
//! - [`overlay`]: the types of tunnels.
//! - [`import`]: turns objects into the validated model. An invalid object fails closed.
//! - [`topology`]: the route of every prefix, seen from one node.
//! - [`way_out`]: the hosts to which pods keep their own addresses.
//! - [`services`]: the service addresses that the node's kube-proxy translates, and the table of the services that Manx
//!   translates.
//! - [`calc`]: the tables of the dataplane, which are calculated again or changed in place.
//!
//! All results are calculated from the arguments: there are no files, no clock and no system calls. The oracle, which
//! judges the result, shares no code with this crate.

pub mod calc;
pub mod import;
pub mod interfaces;
pub mod overlay;
pub mod services;
pub mod topology;
pub mod way_out;
