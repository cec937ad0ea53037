use std::fmt::Write as _;

use super::super::object::cluster::{ClusterMatch, ClusterRule};
use super::super::object::{Kind, Object, Protocol, Subject};
use super::super::tests::{invalid, only, problems};
use super::super::{State, read};
use super::*;

/// Returns a policy with this `spec`, indented by two.
fn text(kind: &str, spec: &str) -> String {
    let version = if kind == "ClusterNetworkPolicy" { "v1alpha2" } else { "v1alpha1" };
    let name = if kind == "BaselineAdminNetworkPolicy" { "default" } else { "a" };
    let body = spec.trim_matches('\n').replace('\n', "\n  ");
    format!(
        "apiVersion: policy.networking.k8s.io/{version}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n  {body}\n"
    )
}

fn policy(kind: &str, spec: &str) -> ClusterNetworkPolicy {
    let Object::ClusterNetworkPolicy(policy) = only(&text(kind, spec)) else { panic!("a policy") };
    *policy
}

const HEAD: &str = "tier: Admin\npriority: 10\nsubject: {namespaces: {}}\n";

fn labels(key: &str, value: &str) -> LabelSelector {
    LabelSelector {
        match_labels: [(key.to_owned(), value.to_owned())].into(),
        ..LabelSelector::default()
    }
}

fn all() -> LabelSelector {
    LabelSelector::default()
}

fn rule_of(name: Option<&str>, action: ClusterAction, matches: ClusterMatch) -> ClusterRule {
    ClusterRule { name: name.map(str::to_owned), action, matches }
}

/// Returns the messages of all cases, one after another. Checks for each case that it is valid or invalid, as expected.
fn messages<'a>(cases: impl IntoIterator<Item = (&'a str, String)>, valid: bool) -> String {
    let mut all = String::new();
    for (name, text) in cases {
        let problems = problems(&text);
        assert!(!problems.is_empty(), "{name} has nothing to say");
        assert_eq!(invalid(&text).is_none(), valid, "{name}: {problems}");
        writeln!(all, "## {name}\n{}", problems.trim_end()).unwrap();
    }
    all
}

#[test]
fn a_cluster_policy_is_read_whole() {
    let read = policy(
        "ClusterNetworkPolicy",
        "
tier: Baseline
priority: 1000
subject:
  pods: {namespaceSelector: {matchLabels: {a: b}}, podSelector: {matchLabels: {c: d}}}
ingress:
- name: first
  action: Accept
  from: [{namespaces: {matchLabels: {a: b}}}, {pods: {podSelector: {matchLabels: {c: d}}}}]
  protocols:
  - tcp: {destinationPort: {number: 80}}
  - udp: {destinationPort: {range: {start: 90, end: 99}}}
  - sctp: {}
  - destinationNamedPort: http
egress:
- {action: Pass, to: [{networks: [10.0.0.0/8, 'fd00::/8']}]}
",
    );
    let pods = Pods { namespaces: labels("a", "b"), pods: labels("c", "d") };
    assert_eq!((read.tier, read.priority, &read.subject), (ClusterTier::Baseline, 1000, &pods));
    let peers = vec![
        ClusterPeer::Pods(Pods { namespaces: labels("a", "b"), pods: all() }),
        ClusterPeer::Pods(Pods { namespaces: all(), pods: labels("c", "d") }),
    ];
    let protocols = vec![
        ClusterProtocol::Ports { protocol: Protocol::Tcp, ports: Some((80, 80)) },
        ClusterProtocol::Ports { protocol: Protocol::Udp, ports: Some((90, 99)) },
        ClusterProtocol::Ports { protocol: Protocol::Sctp, ports: None },
        ClusterProtocol::Named("http".to_owned()),
    ];
    let matches = ClusterMatch::Of { peers, protocols: Some(protocols) };
    assert_eq!(read.ingress, [rule_of(Some("first"), ClusterAction::Accept, matches)]);
    let nets = vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
    let matches = ClusterMatch::Of { peers: vec![ClusterPeer::Networks(nets)], protocols: None };
    assert_eq!(read.egress, [rule_of(None, ClusterAction::Pass, matches)]);
}

#[test]
fn policies_of_v1alpha1_become_cluster_policies() {
    let rules = "
subject: {namespaces: {matchLabels: {a: b}}}
ingress:
- action: Allow
  from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {c: d}}}}]
  ports:
  - portNumber: {port: 80}
  - portRange: {protocol: UDP, start: 90, end: 99}
  - namedPort: http
egress:
- {action: Deny, to: [{namespaces: {}}], ports: []}
";
    let admin = policy("AdminNetworkPolicy", &format!("priority: 3{rules}"));
    assert_eq!((admin.tier, admin.priority), (ClusterTier::Admin, 3));
    let baseline = policy("BaselineAdminNetworkPolicy", rules);
    assert_eq!((baseline.tier, baseline.priority), (ClusterTier::Baseline, 0));
    for policy in [admin, baseline] {
        assert_eq!(policy.subject, Pods { namespaces: labels("a", "b"), pods: all() });
        let peers = vec![ClusterPeer::Pods(Pods { namespaces: all(), pods: labels("c", "d") })];
        let protocols = vec![
            ClusterProtocol::Ports { protocol: Protocol::Tcp, ports: Some((80, 80)) },
            ClusterProtocol::Ports { protocol: Protocol::Udp, ports: Some((90, 99)) },
            ClusterProtocol::Named("http".to_owned()),
        ];
        let matches = ClusterMatch::Of { peers, protocols: Some(protocols) };
        assert_eq!(policy.ingress, [rule_of(None, ClusterAction::Accept, matches)]);
        let peers = vec![ClusterPeer::Pods(Pods { namespaces: all(), pods: all() })];
        let matches = ClusterMatch::Of { peers, protocols: None };
        assert_eq!(policy.egress, [rule_of(None, ClusterAction::Deny, matches)]);
    }
}

#[test]
fn nodes_are_named_by_their_labels() {
    for (kind, head) in [
        ("ClusterNetworkPolicy", HEAD),
        ("AdminNetworkPolicy", "priority: 1\nsubject: {namespaces: {}}\n"),
        ("BaselineAdminNetworkPolicy", "subject: {namespaces: {}}\n"),
    ] {
        let action = if kind == "ClusterNetworkPolicy" { "Accept" } else { "Allow" };
        let rules = format!(
            "egress: [{{action: {action}, to: [{{nodes: {{matchLabels: {{a: b}}}}}}, {{nodes: {{}}}}]}}]"
        );
        let policy = policy(kind, &format!("{head}{rules}"));
        let peers = vec![ClusterPeer::Nodes(labels("a", "b")), ClusterPeer::Nodes(all())];
        let matches = ClusterMatch::Of { peers, protocols: None };
        assert_eq!(policy.egress, [rule_of(None, ClusterAction::Accept, matches)], "{kind}");
    }
}

/// Peers in the form of v0.1.0 of the API.
#[test]
fn peers_of_v1alpha1_may_nest_the_selector_of_namespaces() {
    let rules = "
priority: 3
subject: {namespaces: {}}
ingress:
- action: Allow
  from:
  - namespaces: {namespaceSelector: {matchLabels: {a: b}}}
  - pods: {namespaces: {namespaceSelector: {matchLabels: {a: b}}}, podSelector: {matchLabels: {c: d}}}
";
    let policy = policy("AdminNetworkPolicy", rules);
    let peers = vec![
        ClusterPeer::Pods(Pods { namespaces: labels("a", "b"), pods: all() }),
        ClusterPeer::Pods(Pods { namespaces: labels("a", "b"), pods: labels("c", "d") }),
    ];
    let matches = ClusterMatch::Of { peers, protocols: None };
    assert_eq!(policy.ingress, [rule_of(None, ClusterAction::Accept, matches)]);
}

/// Rules that cannot be decided here, each with its messages. None of them is read as if the field were absent.
#[test]
fn what_cannot_be_decided_is_never_passed_over() {
    let rule = |direction: &str, rule: &str| {
        text("ClusterNetworkPolicy", &format!("{HEAD}{direction}: [{rule}]"))
    };
    let texts = [
        ("nodes_of_ingress", rule("ingress", "{action: Deny, from: [{nodes: {}}]}")),
        ("nodes_field", rule("egress", "{action: Deny, to: [{nodes: {nodeSelector: {}}}]}")),
        ("domain_names", rule("egress", "{action: Accept, to: [{domainNames: [example.com]}]}")),
        (
            "networks_of_ingress",
            rule("ingress", "{action: Deny, from: [{networks: [10.0.0.0/8]}]}"),
        ),
        ("peer_empty", rule("ingress", "{action: Pass, from: [{}]}")),
        ("peer_field", rule("ingress", "{action: Deny, from: [{serviceAccounts: {}}]}")),
        ("rule_field", rule("ingress", "{action: Accept, from: [{namespaces: {}}], via: x}")),
        (
            "selector_field",
            rule("ingress", "{action: Accept, from: [{namespaces: {sameLabels: [a]}}]}"),
        ),
        (
            "pods_field",
            rule(
                "ingress",
                "{action: Accept, from: [{pods: {podSelector: {}, nodeSelector: {}}}]}",
            ),
        ),
        (
            "protocol",
            rule("ingress", "{action: Accept, from: [{namespaces: {}}], protocols: [{icmp: {}}]}"),
        ),
        (
            "protocol_empty",
            rule("ingress", "{action: Accept, from: [{namespaces: {}}], protocols: [{}]}"),
        ),
        (
            "protocol_field",
            rule(
                "ingress",
                "{action: Accept, from: [{namespaces: {}}], protocols: [{tcp: {sourcePort: {number: 1}}}]}",
            ),
        ),
        (
            "port_field",
            rule(
                "ingress",
                "{action: Accept, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {numbers: [1]}}}]}",
            ),
        ),
        (
            "v1alpha1_port_empty",
            text(
                "AdminNetworkPolicy",
                "priority: 1\nsubject: {namespaces: {}}\negress: [{action: Deny, to: [{nodes: {}}], ports: [{}]}]",
            ),
        ),
        (
            "v1alpha1_same_labels",
            text(
                "AdminNetworkPolicy",
                "priority: 1\nsubject: {namespaces: {}}\negress: [{action: Deny, to: [{namespaces: {sameLabels: [a]}}]}]",
            ),
        ),
        (
            "v1alpha1_not_same_labels",
            text(
                "AdminNetworkPolicy",
                "priority: 1\nsubject: {namespaces: {}}\negress: [{action: Deny, to: [{pods: {namespaces: {namespaceSelector: {}, notSameLabels: [a]}, podSelector: {}}}]}]",
            ),
        ),
        (
            "v1alpha2_nested_namespaces",
            rule("ingress", "{action: Deny, from: [{namespaces: {namespaceSelector: {}}}]}"),
        ),
    ];
    for (name, text) in &texts {
        let manifest = read("file.yaml", text).unwrap();
        let State::Valid(object) = &manifest.entries[0].state else { panic!("{name}") };
        let Object::ClusterNetworkPolicy(policy) = &**object else { panic!("{name}") };
        let [rule] = &[&policy.ingress[..], &policy.egress[..]].concat()[..] else {
            panic!("{name}")
        };
        assert_eq!(rule.matches, ClusterMatch::Unsupported, "{name}");
    }
    insta::assert_snapshot!(messages(texts, true));
}

#[test]
fn error_texts_of_cluster_policies() {
    let cnp = |spec: &str| text("ClusterNetworkPolicy", spec);
    let ingress = |rule: &str| cnp(&format!("{HEAD}ingress: [{rule}]"));
    let egress = |rule: &str| cnp(&format!("{HEAD}egress: [{rule}]"));
    let protocol = |entry: &str| {
        ingress(&format!("{{action: Deny, from: [{{namespaces: {{}}}}], protocols: [{entry}]}}"))
    };
    let texts = [
        ("tier_missing", cnp("priority: 1\nsubject: {namespaces: {}}")),
        ("tier_unknown", cnp("tier: Default\npriority: 1\nsubject: {namespaces: {}}")),
        ("priority_missing", cnp("tier: Admin\nsubject: {namespaces: {}}")),
        ("priority_too_large", cnp("tier: Admin\npriority: 1001\nsubject: {namespaces: {}}")),
        ("subject_missing", cnp("tier: Admin\npriority: 1")),
        ("subject_empty", cnp("tier: Admin\npriority: 1\nsubject: {}")),
        (
            "subject_both",
            cnp("tier: Admin\npriority: 1\nsubject: {namespaces: {}, pods: {podSelector: {}}}"),
        ),
        ("subject_field", cnp("tier: Admin\npriority: 1\nsubject: {nodes: {}}")),
        (
            "subject_pods_half",
            cnp("tier: Admin\npriority: 1\nsubject: {pods: {namespaceSelector: {}}}"),
        ),
        ("spec_field", cnp(&format!("{HEAD}order: 1"))),
        ("action_missing", ingress("{from: [{namespaces: {}}]}")),
        ("action_of_another_version", ingress("{action: Allow, from: [{namespaces: {}}]}")),
        ("from_missing", ingress("{action: Deny}")),
        ("from_empty", ingress("{action: Deny, from: []}")),
        ("peer_both", ingress("{action: Deny, from: [{namespaces: {}, pods: {podSelector: {}}}]}")),
        ("peer_selector", ingress("{action: Deny, from: [{namespaces: {matchLabels: {a: 5}}}]}")),
        ("network_illegal", egress("{action: Deny, to: [{networks: [10.0.0.0]}]}")),
        ("networks_empty", egress("{action: Deny, to: [{networks: []}]}")),
        (
            "named_port_of_networks",
            egress(
                "{action: Deny, to: [{networks: [10.0.0.0/8]}], protocols: [{destinationNamedPort: http}]}",
            ),
        ),
        ("protocols_empty", ingress("{action: Deny, from: [{namespaces: {}}], protocols: []}")),
        ("protocol_two", protocol("{tcp: {}, udp: {}}")),
        ("port_zero", protocol("{tcp: {destinationPort: {number: 0}}}")),
        ("range_empty", protocol("{tcp: {destinationPort: {range: {start: 5, end: 5}}}}")),
        ("range_half", protocol("{tcp: {destinationPort: {range: {start: 5}}}}")),
        ("named_port_empty", protocol("{destinationNamedPort: ''}")),
        ("named_port_number", protocol("{destinationNamedPort: 8080}")),
        (
            "name_too_long",
            ingress(&format!(
                "{{name: {}, action: Deny, from: [{{namespaces: {{}}}}]}}",
                "x".repeat(101)
            )),
        ),
        (
            "baseline_name",
            text("BaselineAdminNetworkPolicy", "subject: {namespaces: {}}")
                .replace("name: default", "name: a"),
        ),
        (
            "baseline_pass",
            text(
                "BaselineAdminNetworkPolicy",
                "subject: {namespaces: {}}\ningress: [{action: Pass, from: [{namespaces: {}}]}]",
            ),
        ),
        (
            "admin_pods_half",
            text(
                "AdminNetworkPolicy",
                "priority: 1\nsubject: {namespaces: {}}\ningress: [{action: Deny, from: [{pods: {podSelector: {}}}]}]",
            ),
        ),
    ];
    insta::assert_snapshot!(messages(texts, false));
}

#[test]
fn a_port_name_that_no_container_may_have_is_warned_of() {
    let from = "action: Deny, from: [{namespaces: {}}]";
    let of = |kind: &str, head: &str, ports: &str| {
        text(kind, &format!("{head}ingress: [{{{from}, {ports}}}]"))
    };
    let named = of("ClusterNetworkPolicy", HEAD, "protocols: [{destinationNamedPort: '8080'}]");
    let head = "priority: 1\nsubject: {namespaces: {}}\n";
    let former = of("AdminNetworkPolicy", head, "ports: [{namedPort: Web_Port}]");
    insta::assert_snapshot!(messages([("named_port", named), ("former_version", former)], true));
}

#[test]
fn an_invalid_policy_keeps_its_subject() {
    let kept = |spec: &str| {
        let manifest = read("file.yaml", &text("ClusterNetworkPolicy", spec)).unwrap();
        let State::Invalid(invalid) = &manifest.entries[0].state else { panic!("{spec}") };
        assert_eq!(manifest.entries[0].key.kind, Kind::ClusterNetworkPolicy);
        invalid.subject.clone()
    };
    let pods = Pods { namespaces: labels("a", "b"), pods: all() };
    let subject = kept("tier: x\npriority: 1\nsubject: {namespaces: {matchLabels: {a: b}}}");
    assert_eq!(subject, Some(Subject::Cluster(pods)));
    assert_eq!(
        kept("tier: Admin\npriority: 1\nsubject: {namespaces: {matchLabels: {a: 5}}}"),
        None
    );
}

#[test]
fn a_policy_without_a_name_still_fails_closed() {
    let text = text("ClusterNetworkPolicy", HEAD).replace("name: a", "");
    let key = invalid(&text).unwrap();
    assert!(key.name.starts_with("(no name") && key.namespace.is_empty(), "{key}");
}
