//! Calico's kinds, checked in the same way as Calico's own validation.
//!
//! An unknown field of a rule makes the policy invalid: the field may restrict, and without it the rule would match
//! more. Other unknown fields cause a warning.
//!
//! Source: Calico's API reference (`projectcalico.org/v3`) and its custom resource definitions.

mod entity;
mod felix;
mod policy;
mod pool;
mod resource;
mod rule;
#[cfg(test)]
mod tests;
mod value;

pub(super) use felix::felix_configuration;
pub(super) use policy::{decode, nothing_but, staged_action};
pub(super) use pool::ip_pool;
pub(super) use resource::{host_endpoint, network_set, profile, tier};

/// The fields of every object.
const OBJECT: &[&str] = &["apiVersion", "kind", "metadata", "spec"];

/// The tiers that hold cluster-wide policies, with their fixed orders.
const KUBE_ADMIN: (&str, f64) = ("kube-admin", 1_000.0);
const KUBE_BASELINE: (&str, f64) = ("kube-baseline", 10_000_000.0);
/// The tier of policies that name none, with its fixed order.
const DEFAULT: (&str, f64) = ("default", 1_000_000.0);
