//! The differences between the versions of the API.

use super::super::cursor::{Cursor, Findings};
use super::super::object::cluster::{ClusterAction, ClusterProtocol, ClusterTier};
use super::protocol::{port_v1alpha1, protocol};
use super::support::Support;

/// The reader of one entry. It returns `None` if the entry is not valid or not supported.
pub(super) type ReadProtocol =
    fn(&Cursor<'_>, &mut Support, &mut Findings) -> Option<ClusterProtocol>;

/// The differences between the versions of the API.
#[derive(Debug, Clone, Copy)]
pub(super) struct Version {
    /// The tier, if the kind determines it.
    pub(super) tier: Option<ClusterTier>,
    /// The names of the actions in this version.
    pub(super) actions: &'static [(&'static str, ClusterAction)],
    /// The field of a rule that restricts it to protocols and ports, and the function that reads one entry of it.
    pub(super) protocols: (&'static str, ReadProtocol),
    /// Whether `namespaceSelector` is required next to `podSelector`.
    pub(super) namespace_selector: bool,
    /// Whether peers may have the form of v0.1.0 of the API, with a `namespaceSelector` within `namespaces`.
    pub(super) nested_namespaces: bool,
}

pub(super) const V1ALPHA2: Version = Version {
    tier: None,
    actions: &[
        ("Accept", ClusterAction::Accept),
        ("Deny", ClusterAction::Deny),
        ("Pass", ClusterAction::Pass),
    ],
    protocols: ("protocols", protocol),
    namespace_selector: false,
    nested_namespaces: false,
};
pub(super) const ADMIN: Version = Version {
    tier: Some(ClusterTier::Admin),
    actions: &[
        ("Allow", ClusterAction::Accept),
        ("Deny", ClusterAction::Deny),
        ("Pass", ClusterAction::Pass),
    ],
    protocols: ("ports", port_v1alpha1),
    namespace_selector: true,
    nested_namespaces: true,
};
pub(super) const BASELINE: Version = Version {
    tier: Some(ClusterTier::Baseline),
    actions: &[("Allow", ClusterAction::Accept), ("Deny", ClusterAction::Deny)],
    ..ADMIN
};
