//! Laws of reading that hold for every tree, whatever it contains.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::object::Kind;
use super::problem::Severity;
use super::{State, read};

/// The keys of `spec` and of its parts, from all kinds, so that trees are nearly valid.
const KEYS: [&str; 64] = [
    "action",
    "addressType",
    "addresses",
    "applyOnForward",
    "cidr",
    "code",
    "defaultAction",
    "destination",
    "destinationNamedPort",
    "destinationPort",
    "doNotTrack",
    "egress",
    "end",
    "endpoints",
    "expectedIPs",
    "failsafeInboundHostPorts",
    "from",
    "http",
    "icmp",
    "ingress",
    "interfaceName",
    "ipVersion",
    "ipipMode",
    "key",
    "labelsToApply",
    "matchExpressions",
    "matchLabels",
    "methods",
    "name",
    "names",
    "namespace",
    "namespaceSelector",
    "namespaces",
    "nets",
    "networks",
    "node",
    "nodes",
    "notICMP",
    "notNets",
    "notPorts",
    "notProtocol",
    "notSelector",
    "number",
    "operator",
    "order",
    "paths",
    "podSelector",
    "pods",
    "port",
    "portNumber",
    "portRange",
    "ports",
    "preDNAT",
    "priority",
    "protocol",
    "protocols",
    "range",
    "selector",
    "serviceAccounts",
    "services",
    "source",
    "stagedAction",
    "start",
    "subject",
];
const MORE_KEYS: [&str; 10] =
    ["tcp", "tier", "to", "type", "types", "udp", "values", "vxlanMode", "zone", "a/b"];
const LEAVES: [&str; 26] = [
    "null",
    "true",
    "0",
    "4",
    "6",
    "8",
    "80",
    "65536",
    "-1",
    "1.5",
    "1e400",
    ".nan",
    "''",
    "x",
    "'80:90'",
    "TCP",
    "ICMP",
    "Allow",
    "Deny",
    "Accept",
    "Delete",
    "Admin",
    "10.0.0.0/8",
    "'fd00::/8'",
    "10.0.0.1",
    "\"a == 'b'\"",
];

/// Generates a value in YAML's flow style.
fn tree() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(&LEAVES[..]).prop_map(str::to_owned);
    leaf.prop_recursive(6, 40, 4, |inner| {
        let keys = prop::sample::select([&KEYS[..], &MORE_KEYS[..]].concat());
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3)
                .prop_map(|items| format!("[{}]", items.join(", "))),
            prop::collection::btree_map(keys, inner, 0..5).prop_map(|fields| {
                let mut text = String::from("{");
                for (key, value) in fields {
                    write!(text, "{key}: {value}, ").unwrap();
                }
                text + "}"
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Law: reading ends without a panic, and an object is invalid exactly if an error gives the
    /// reason.
    #[test]
    fn an_object_is_invalid_exactly_if_an_error_says_why(
        kind in prop::sample::select(&Kind::ALL[..]),
        version in 0_usize..2,
        fields in prop::collection::vec((prop::sample::select(&["spec", "status", "ports", "endpoints", "metadata"][..]), tree()), 0..3),
    ) {
        let versions = kind.api_versions();
        let version = versions[version % versions.len()];
        let mut text = format!("apiVersion: {version}\nkind: {kind}\n");
        let mut seen = vec!["metadata"];
        text.push_str("metadata: {name: a}\n");
        for (field, tree) in fields {
            if !seen.contains(&field) {
                seen.push(field);
                writeln!(text, "{field}: {tree}").unwrap();
            }
        }
        let manifest = read("file.yaml", &text).unwrap();
        let errors = manifest.problems.iter().any(|problem| problem.severity == Severity::Error);
        let [entry] = &manifest.entries[..] else { panic!("{text}") };
        prop_assert_eq!(entry.key.kind, kind);
        prop_assert_eq!(matches!(entry.state, State::Invalid(_)), errors, "{}", text);
    }
}
