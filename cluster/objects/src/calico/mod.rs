//! Calico's kinds, checked in the same way as Calico's own validation.
//!
//! An unknown field of a rule makes the policy invalid: the field may be a restriction, and the rule would match more
//! without it. Other unknown fields cause a warning.
//!
//! Source: Calico's API reference (`projectcalico.org/v3`) and its custom resource definitions.

mod bgp;
mod bgp_filter;
mod block_affinity;
mod context;
mod entity;
mod felix;
mod fixed;
mod policy;
mod pool;
mod resource;
mod rule;
#[cfg(test)]
mod tests;
mod value;

pub(super) use bgp::{bgp_configuration, bgp_peer, system_text};
pub(super) use bgp_filter::bgp_filter;
pub(super) use block_affinity::block_affinity;
pub(super) use felix::felix_configuration;
pub(super) use policy::{decode, nothing_but, staged_action};
pub(super) use pool::ip_pool;
pub(super) use resource::{host_endpoint, network_set, profile, tier};
