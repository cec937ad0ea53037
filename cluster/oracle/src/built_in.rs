//! The tiers that every cluster has.

pub(super) const KUBE_ADMIN: &str = "kube-admin";
pub(super) const DEFAULT: &str = "default";
pub(super) const KUBE_BASELINE: &str = "kube-baseline";

/// Name and order of each tier, and whether a packet that no rule of the tier decided continues to the next tier. No
/// object changes these tiers.
pub(super) const BUILT_IN: [(&str, f64, bool); 3] = [
    (KUBE_ADMIN, 1_000.0, true),
    (DEFAULT, 1_000_000.0, false),
    (KUBE_BASELINE, 10_000_000.0, true),
];
