//! The kind that a document is checked as: the kind that the document claims to be, or a guess if its kind or its API
//! version is missing or misspelled.

use super::cursor::{Cursor, Findings, edits_apart};
use super::object::Kind;
use super::syntax::is_dns_subdomain;
use super::tree::Node;

/// The expected value in messages about a missing field that every object must have.
pub(super) const OF_ITSELF: &str = "what every Kubernetes object must state";

/// The kind that a document is checked as.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClaimedKind<'a> {
    pub(super) kind: Kind,
    version: Option<&'a str>,
    /// Whether the document can be of this kind only, valid or not. If it can be of several kinds, `kind` is the one
    /// that denies most, and the fields of the document are not read.
    pub(super) certain: bool,
    /// Whether no kind has the document's kind name, and the name is nearly that of `kind`.
    misspelled: bool,
}

impl<'a> ClaimedKind<'a> {
    /// Returns `None` if the document is of no kind that Manx reads. A document that lacks its kind or its API version
    /// may be of several kinds; if one of them is a policy, the document counts as a policy. A document that lacks both
    /// is of no kind.
    ///
    /// A kind name that is nearly one of the known names counts as that kind, and the document is invalid. If the
    /// document were ignored, traffic would pass that its author believes denied.
    pub(super) fn new(node: &Node, kind: Option<&str>, version: Option<&'a str>) -> Option<Self> {
        let near = kind.and_then(|kind| nearest(kind, version));
        let claim =
            |kind, certain| Some(Self { kind, version, certain, misspelled: near.is_some() });
        let kind = near.or(kind);
        let Some(kind) = kind else {
            let namespace = node.get("metadata").and_then(|metadata| metadata.get("namespace"));
            // Among the kinds that the document may be, the one that denies most is chosen.
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
        // Other projects also have kinds called Node or Service. A document of another API group counts as Kubernetes'
        // or Calico's object only under two conditions: traffic could pass if that object were missing, and the group
        // may be a typing error.
        let opens = first.enforced_policy() || first.opens_if_absent();
        let closes = version.is_none_or(|version| opens && !is_of_another_vendor(version));
        // In `Kind::ALL`, Calico's NetworkPolicy comes after Kubernetes' NetworkPolicy. Calico's is chosen because an
        // invalid policy of Calico denies more than an invalid policy of Kubernetes.
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
                // The object has no field `kind`: the misspelled kind comes from the list that contains the object.
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

/// Returns the kind whose name a misspelled name resembles: at most three letters differ, and fewer in short names. The
/// kind must belong to the document's API group. If that group contains policies, the kind may be any policy; if the
/// document has no API version, it may be any kind.
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
    // One edit changes the length of a name by one letter at most, so kinds of very different length are not compared.
    let comparable = candidates.filter(|kind| kind.name().len().abs_diff(name.len()) <= 3);
    let near = comparable.map(|kind| (edits_apart(name, kind.name()), kind.name()));
    near.filter(|(edits, known)| *edits <= 3.min(known.len() / 3)).min().map(|(_, known)| known)
}

/// Returns whether an API version belongs to a group that contains policies which Manx reads.
pub(super) fn holds_policies(version: &str) -> bool {
    Kind::ALL.into_iter().any(|kind| kind.enforced_policy() && is_read(kind, version))
}

/// Returns whether the kind belongs to another vendor and has the name of a kind that Manx reads, such as
/// ClusterNetworkPolicy of `networking.k8s.aws/v1alpha1`.
pub(super) fn is_another_vendors(kind: &str, version: &str) -> bool {
    Kind::ALL.into_iter().any(|known| known.name() == kind) && is_of_another_vendor(version)
}

/// Returns whether an API version is well-formed and cannot be a misspelling of one that Manx reads. The version must
/// meet all of these conditions. Its group has a dot (every group except some of Kubernetes has one). The group does
/// not contain `kubernetes`, `calico` or `networking`. The group differs by more than three letters from each group
/// that Manx reads, with and without the last part of the name.
pub(super) fn is_of_another_vendor(version: &str) -> bool {
    /// A domain of Amazon, which differs from the domain of Kubernetes by three letters only.
    const AMAZON: &str = ".k8s.aws";
    let Some((group, version)) = version.split_once('/') else { return false };
    if !group.contains('.') || !is_dns_subdomain(group) || !is_version(version) {
        return false;
    }
    if group.ends_with(AMAZON) {
        return true;
    }
    let is_ours = group.ends_with("k8s.io")
        || ["kubernetes", "networking.", "calico"].iter().any(|part| group.contains(part));
    let versions = Kind::ALL.into_iter().flat_map(Kind::api_versions);
    let mut groups = versions.filter_map(|version| Some(version.split_once('/')?.0));
    // The end of a domain is often mistyped: `.com`, `.oi`.
    let name = |group: &str| group.rsplit_once('.').map_or("", |(name, _)| name).to_owned();
    let is_near = |known: &str| {
        edits_apart(group, known) <= 3 || edits_apart(&name(group), &name(known)) <= 3
    };
    !is_ours && !groups.any(is_near)
}

/// Returns whether a text is a version of an API, such as `v1` or `v1alpha2`.
fn is_version(text: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    text.strip_prefix('v').is_some_and(|rest| {
        let parts = rest.split_once("alpha").or_else(|| rest.split_once("beta"));
        parts.map_or(is_number(rest), |(major, minor)| is_number(major) && is_number(minor))
    })
}

/// Returns whether an object with this kind and API version must be checked here. The API group must be the kind's own,
/// with any version: `networking.k8s.io/v1beta1` is an invalid NetworkPolicy, not an unknown kind.
fn is_read(kind: Kind, version: &str) -> bool {
    let group = |version: &str| version.rsplit_once('/').map(|(group, _)| group.to_owned());
    kind.api_versions().iter().any(|known| group(known) == group(version))
        || (kind == Kind::NetworkPolicy && version.starts_with("extensions/"))
}

#[cfg(test)]
mod tests {
    use super::super::code::Code;
    use super::super::problem::Problem;
    use super::super::{State, read};

    /// Returns the codes of a document's problems, and whether the document denies everything.
    fn judged(version: &str, kind: &str) -> (Vec<Code>, bool) {
        let text = format!(
            "{{apiVersion: {version}, kind: {kind}, metadata: {{name: a, namespace: shop}}, spec: {{}}}}\n"
        );
        let manifest = read("a.yaml", &format!("{text}---\n{text}")).unwrap();
        let closes = manifest.entries.iter().any(|it| matches!(it.state, State::Invalid(_)));
        (manifest.problems.iter().map(Problem::code).collect(), closes)
    }

    #[test]
    fn a_kind_of_another_vendor_with_the_name_of_ours_is_skipped_and_told_once() {
        for (version, kind) in [
            ("networking.k8s.aws/v1alpha1", "ClusterNetworkPolicy"),
            ("crd.antrea.io/v1beta1", "ClusterNetworkPolicy"),
            ("crd.antrea.io/v1beta1", "NetworkPolicy"),
            ("crd.antrea.io/v1beta1", "Tier"),
            ("k8s.ovn.org/v1", "AdminNetworkPolicy"),
            ("yangtse.cni.huawei.com/v1", "NetworkPolicy"),
            ("firewall.example.com/v1", "GlobalNetworkPolicy"),
            ("example.com/v2beta1", "StagedNetworkPolicy"),
            ("example.com/v1", "HostEndpoint"),
            ("example.com/v1", "NetworkSet"),
        ] {
            let of_policy = kind.contains("NetworkPolicy") && !kind.starts_with("Staged");
            let code = if of_policy { Code::UnknownKind } else { Code::KindOfAnotherProject };
            assert_eq!(judged(version, kind), (vec![code], false), "{version} {kind}");
        }
        let text = "{apiVersion: networking.k8s.aws/v1alpha1, kind: ClusterNetworkPolicy, metadata: {name: a}}";
        let help = read("a.yaml", text).unwrap().problems[0].help();
        assert!(help.is_some_and(|help| help.contains("another vendor's policy")), "{help:?}");
    }

    #[test]
    fn what_may_be_a_slip_of_the_pen_closes() {
        for version in [
            "networking.k8s.oi/v1",
            "networking.k8s.com/v1",
            "networking.k8s/v1",
            "network.k8s.io/v1",
            "networking.kubernetes.io/v1",
            "networking.kubernetes.com/v1",
            "netwroking.k8s.io/v1",
            "policy.networking.k8s.i/v1alpha1",
            "policy.networking.x-k8s.io/v1alpha1",
            "projectcalico.com/v3",
            "projectcalcio.org/v3",
            "projectcailco.com/v3",
            "projectcalico/v3",
            "calico.org/v3",
            "networking/v1",
            "example.com/one",
            "example.com/v1/v1",
            "Example.com/v1",
            "v1",
            "extensions/v1beta1",
        ] {
            for kind in ["NetworkPolicy", "GlobalNetworkPolicy", "ClusterNetworkPolicy", "Tier"] {
                let (codes, closes) = judged(version, kind);
                assert!(closes, "{version} {kind}");
                assert_eq!(codes[0], Code::UnexpectedValue, "{version} {kind}");
            }
        }
    }
}
