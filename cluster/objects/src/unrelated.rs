//! Kubernetes kinds that do not affect which connections pass. Every cluster has them, so they are
//! skipped without a message.
//!
//! Source: Kubernetes API reference v1.35, all groups.

/// The unrelated kinds of an API group. `None` stands for all kinds of the group.
type Kinds = Option<&'static [&'static str]>;

/// The API groups, without their versions; the core group has no name.
const GROUPS: &[(&str, Kinds)] = &[
    (
        "",
        Some(&[
            "Binding",
            "ComponentStatus",
            "ConfigMap",
            "Event",
            "LimitRange",
            "PersistentVolume",
            "PersistentVolumeClaim",
            "PodTemplate",
            "ResourceQuota",
            "Secret",
        ]),
    ),
    ("apps", Some(&["ControllerRevision"])),
    ("networking.k8s.io", Some(&["Ingress", "IngressClass", "IPAddress"])),
    ("admissionregistration.k8s.io", None),
    ("apiextensions.k8s.io", None),
    ("apiregistration.k8s.io", None),
    ("autoscaling", None),
    ("certificates.k8s.io", None),
    ("coordination.k8s.io", None),
    ("events.k8s.io", None),
    ("flowcontrol.apiserver.k8s.io", None),
    ("internal.apiserver.k8s.io", None),
    ("metrics.k8s.io", None),
    ("node.k8s.io", None),
    ("policy", None),
    ("rbac.authorization.k8s.io", None),
    ("resource.k8s.io", None),
    ("scheduling.k8s.io", None),
    ("storage.k8s.io", None),
    ("storagemigration.k8s.io", None),
];

/// Returns whether this kind, with this API version, is one of the unrelated kinds.
pub(super) fn is_unrelated(kind: &str, version: &str) -> bool {
    let group = version.rsplit_once('/').map_or("", |(group, _)| group);
    let known = GROUPS.iter().find(|(name, _)| *name == group);
    known.is_some_and(|(_, kinds)| kinds.is_none_or(|kinds| kinds.contains(&kind)))
}
