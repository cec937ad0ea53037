//! Kinds that Manx does not read. An operator may make pods from their objects, such as `Prometheus`, `Kafka`, or the
//! `Cluster` of a database.

use std::collections::{BTreeMap, BTreeSet};

use manx_objects::contents::Contents;
use manx_objects::object::{Controller, Kind, kind_and_group};
use manx_objects::problem::Cause;

/// Some kinds of an API group. `None` means all kinds of the group.
type Kinds = Option<&'static [&'static str]>;

/// Kinds that often come with policies, by API group, and whose objects make no pods. If a kind is missing here, only
/// the code and the message of the problem differ.
const WITHOUT_PODS: &[(&str, Kinds)] = &[
    ("autoscaling.k8s.io", None),
    ("bitnami.com", Some(&["SealedSecret"])),
    ("crd.projectcalico.org", None),
    ("external-secrets.io", None),
    (
        "gateway.networking.k8s.io",
        Some(&[
            "GRPCRoute",
            "GatewayClass",
            "HTTPRoute",
            "ReferenceGrant",
            "TCPRoute",
            "TLSRoute",
            "UDPRoute",
        ]),
    ),
    ("keda.sh", Some(&["ScaledObject", "TriggerAuthentication"])),
    ("kustomize.config.k8s.io", None),
    ("metallb.io", None),
    (
        "monitoring.coreos.com",
        Some(&[
            "AlertmanagerConfig",
            "PodMonitor",
            "Probe",
            "PrometheusRule",
            "ScrapeConfig",
            "ServiceMonitor",
        ]),
    ),
    ("networking.istio.io", None),
    ("projectcalico.org", None),
    ("secrets-store.csi.x-k8s.io", None),
    ("security.istio.io", None),
    ("snapshot.storage.k8s.io", None),
    ("telemetry.istio.io", None),
    ("traefik.io", None),
];

/// A kind that Manx does not read, and whose objects an operator may turn into pods.
pub(super) struct SkippedKind<'m> {
    pub(super) kind: &'m str,
    pub(super) group: &'m str,
    /// The namespaces of its objects. An empty name means any namespace.
    pub(super) namespaces: BTreeSet<&'m str>,
}

/// Returns the kinds of the input that Manx does not read and that an operator may turn into pods. Kinds that count as
/// workloads are left out, because their pods are known.
pub(super) fn skipped_kinds(contents: &Contents) -> Vec<SkippedKind<'_>> {
    let workloads = contents.of_kind(Kind::Workload(Controller::Other));
    let of_group = workloads.filter_map(|(key, _)| Some(key.name.split_once('/')?.0));
    let workloads: BTreeSet<&str> = of_group.collect();
    let mut kinds: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for problem in &contents.problems {
        let Cause::UnknownKind { kind, api_version, namespaces, .. } = &problem.cause else {
            continue;
        };
        let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
        if workloads.contains(&*kind_and_group(kind, api_version)) {
            continue;
        }
        let known = WITHOUT_PODS.iter().find(|(name, _)| *name == group);
        if known.is_some_and(|(_, kinds)| kinds.is_none_or(|all| all.contains(&kind.as_str()))) {
            continue;
        }
        let there = kinds.entry((kind, group)).or_default();
        there.extend(namespaces.iter().map(String::as_str));
    }
    let skipped = |((kind, group), namespaces)| SkippedKind { kind, group, namespaces };
    kinds.into_iter().map(skipped).collect()
}
