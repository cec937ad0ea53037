//! The kind that a document claims to have, or as which it has to be judged.

use super::cursor::{Cursor, Findings, edits_apart};
use super::object::Kind;
use super::tree::Node;

/// The fields that every object must have, as messages name them.
pub(super) const OF_ITSELF: &str = "what every Kubernetes object must state";

/// The kind as which a document has to be judged.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClaimedKind<'a> {
    pub(super) kind: Kind,
    version: Option<&'a str>,
    /// Whether the document is of this kind, valid or not. If not, it may be of several kinds, and `kind` is the one
    /// that denies most; its fields then cannot be read.
    pub(super) certain: bool,
    /// Whether its kind does not exist and is spelled nearly like this one.
    misspelled: bool,
}

impl<'a> ClaimedKind<'a> {
    /// `None`: the document is of no kind that is read. If it lacks its kind or its API version, the other one leaves
    /// several kinds; if one of these is a policy, it counts as a policy. Without both it is of no kind.
    ///
    /// A kind that is spelled nearly like one that is read counts as that kind, and as invalid: if it were ignored,
    /// traffic would pass that its author believes denied.
    pub(super) fn new(node: &Node, kind: Option<&str>, version: Option<&'a str>) -> Option<Self> {
        let near = kind.and_then(|kind| nearest(kind, version));
        let claim =
            |kind, certain| Some(Self { kind, version, certain, misspelled: near.is_some() });
        let kind = near.or(kind);
        let Some(kind) = kind else {
            let namespace = node.get("metadata").and_then(|metadata| metadata.get("namespace"));
            // The kind that denies most of those that it may be.
            let policies = [
                if namespace.is_some() {
                    Kind::CalicoNetworkPolicy
                } else {
                    Kind::GlobalNetworkPolicy
                },
                Kind::ClusterNetworkPolicy,
                Kind::NetworkPolicy,
            ];
            let version = version?;
            return claim(policies.into_iter().find(|kind| is_read(*kind, version))?, false);
        };
        let mut named = Kind::ALL.into_iter().filter(|known| known.name() == kind);
        if let Some(known) =
            named.clone().find(|known| version.is_some_and(|it| is_read(*known, it)))
        {
            return claim(known, true);
        }
        let (first, last) = (named.next()?, named.next_back());
        // Other projects also have kinds called Node or Service. Such a document counts as ours only if traffic could
        // pass because our object is missing.
        let closes = version.is_none() || first.enforced_policy() || first.opens_if_absent();
        // Calico's NetworkPolicy comes after Kubernetes' in the list, and denies more.
        if closes { claim(last.unwrap_or(first), last.is_none()) } else { None }
    }

    /// Reports a missing kind, and an API version that is missing or does not fit the kind.
    pub(super) fn check(&self, root: &Cursor<'_>, out: &mut Findings) {
        if root.field("kind").is_none() && !self.certain {
            root.missing(out, "kind", OF_ITSELF);
            return;
        }
        if self.misspelled {
            match root.field("kind") {
                Some(field) => field.expected(out, self.kind.name()),
                // The list that contains it gives the kind.
                None => root.missing(out, "kind", self.kind.name()),
            }
        }
        let of_kind = Kind::ALL.into_iter().filter(|kind| {
            *kind == self.kind || (!self.certain && kind.name() == self.kind.name())
        });
        let versions: Vec<_> = of_kind.flat_map(Kind::api_versions).copied().collect();
        if self.certain && self.version.is_some_and(|version| versions.contains(&version)) {
            return;
        }
        let expected = versions.join(" or ");
        match root.field("apiVersion") {
            Some(field) => field.expected(out, expected),
            None => root.missing(out, "apiVersion", &expected),
        }
    }
}

/// The existing kind that a misspelled name resembles: at most three letters differ, and fewer in short names. The kind
/// must be of the API group; in a group of policies any policy may be meant, and without an API version any kind.
fn nearest(name: &str, version: Option<&str>) -> Option<&'static str> {
    let candidates = Kind::ALL.into_iter().filter(|kind| match version {
        Some(version) => {
            is_read(*kind, version) || (kind.enforced_policy() && holds_policies(version))
        }
        None => true,
    });
    if Kind::ALL.into_iter().any(|kind| kind.name() == name) {
        return None;
    }
    // One edit makes a name at most one letter longer.
    let comparable = candidates.filter(|kind| kind.name().len().abs_diff(name.len()) <= 3);
    let near = comparable.map(|kind| (edits_apart(name, kind.name()), kind.name()));
    near.filter(|(edits, known)| *edits <= 3.min(known.len() / 3)).min().map(|(_, known)| known)
}

/// Whether an API version belongs to a group that contains kinds of policy which are read.
pub(super) fn holds_policies(version: &str) -> bool {
    Kind::ALL.into_iter().any(|kind| kind.enforced_policy() && is_read(kind, version))
}

/// Whether an object with this kind and API version must be judged here: the API group must be the kind's own, with any
/// version, so that `networking.k8s.io/v1beta1` is an invalid NetworkPolicy and not an unknown kind.
fn is_read(kind: Kind, version: &str) -> bool {
    let group = |version: &str| version.rsplit_once('/').map(|(group, _)| group.to_owned());
    kind.api_versions().iter().any(|known| group(known) == group(version))
        || (kind == Kind::NetworkPolicy && version.starts_with("extensions/"))
}
