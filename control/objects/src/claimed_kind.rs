//! Which kind of object a document says that it is, or that it is to be judged as.

use super::cursor::{Cursor, Findings, edits_apart};
use super::object::Kind;
use super::tree::Node;

/// What every object has to say, as messages have it.
pub(super) const OF_ITSELF: &str = "what every Kubernetes object says of itself";

/// Which kind of object a document is to be judged as.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClaimedKind<'a> {
    pub(super) kind: Kind,
    version: Option<&'a str>,
    /// Whether it is of this kind, valid or not. If not, it is of one of several, and `kind` is the one that closes most;
    /// what it says of itself cannot be read then.
    pub(super) certain: bool,
    /// Whether its kind is nobody's, and spelled nearly like this one.
    misspelled: bool,
}

impl<'a> ClaimedKind<'a> {
    /// `None`: nothing that is read. A document that lacks its kind or its API version is what the other leaves; if a policy
    /// is among that, it is one. Without either it is nobody's.
    ///
    /// A kind that is spelled nearly like one that is read is that one, and not valid: passed over, it would leave open what
    /// its author believes closed.
    pub(super) fn new(node: &Node, kind: Option<&str>, version: Option<&'a str>) -> Option<Self> {
        let near = kind.and_then(|kind| nearest(kind, version));
        let claim =
            |kind, certain| Some(Self { kind, version, certain, misspelled: near.is_some() });
        let kind = near.or(kind);
        let Some(kind) = kind else {
            let namespace = node.get("metadata").and_then(|metadata| metadata.get("namespace"));
            // The one that closes most of those that it may be.
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
        // Of other projects' kinds some are called Node or Service; without these of ours something opens.
        let closes = version.is_none() || first.enforced_policy() || first.opens_if_absent();
        // Calico's NetworkPolicy comes after Kubernetes', and closes more.
        if closes { claim(last.unwrap_or(first), last.is_none()) } else { None }
    }

    /// Reports a kind that is missing, and an API version that is or is none of the kind's.
    pub(super) fn check(&self, root: &Cursor<'_>, out: &mut Findings) {
        if root.field("kind").is_none() && !self.certain {
            root.missing(out, "kind", OF_ITSELF);
            return;
        }
        if self.misspelled {
            match root.field("kind") {
                Some(field) => field.expected(out, self.kind.name()),
                // The list that it stands in says it.
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

/// The name of the kind that a name which is no kind's is spelled nearly like: at most three letters apart, and fewer in
/// short names. It is one of the API group's; in a group of policies it may be any policy's, and without an API version
/// anything's.
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
    // An edit makes a name longer by one letter at most.
    let comparable = candidates.filter(|kind| kind.name().len().abs_diff(name.len()) <= 3);
    let near = comparable.map(|kind| (edits_apart(name, kind.name()), kind.name()));
    near.filter(|(edits, known)| *edits <= 3.min(known.len() / 3)).min().map(|(_, known)| known)
}

/// Whether an API version is of a group that has policies of ours.
pub(super) fn holds_policies(version: &str) -> bool {
    Kind::ALL.into_iter().any(|kind| kind.enforced_policy() && is_read(kind, version))
}

/// Whether objects of this kind name and API version are ours to judge: of the kind's own group, whatever the version, so
/// that `networking.k8s.io/v1beta1` is an invalid NetworkPolicy and not an unknown kind.
fn is_read(kind: Kind, version: &str) -> bool {
    let group = |version: &str| version.rsplit_once('/').map(|(group, _)| group.to_owned());
    kind.api_versions().iter().any(|known| group(known) == group(version))
        || (kind == Kind::NetworkPolicy && version.starts_with("extensions/"))
}
