//! Facts that Calico fixes: the fields of every object, and the tiers that it makes.

/// The fields of every object.
pub(super) const OBJECT: &[&str] = &["apiVersion", "kind", "metadata", "spec"];

/// The tiers that hold cluster-wide policies, with their fixed orders.
pub(super) const KUBE_ADMIN: (&str, f64) = ("kube-admin", 1_000.0);
pub(super) const KUBE_BASELINE: (&str, f64) = ("kube-baseline", 10_000_000.0);
/// The tier of policies that do not name one, with its fixed order.
pub(super) const DEFAULT: (&str, f64) = ("default", 1_000_000.0);
