//! ClusterNetworkPolicy, and the kinds that it replaces.

use super::cluster::{Cluster, SCTP, TCP, UDP, db, ingress, lab, node, pairs, rule, stranger, web};
use crate::{Packet, Party};
use manx_objects::Invalid;
use manx_objects::object::calico::Action;
use manx_objects::object::cluster::{
    ClusterAction, ClusterMatch, ClusterPeer, ClusterProtocol, ClusterRule, ClusterTier, Pods,
};
use manx_objects::object::{
    ClusterNetworkPolicy, Kind, LabelSelector, Node, NodeBgp, Object, Protocol,
};

fn labels(key: &str, value: &str) -> LabelSelector {
    LabelSelector { match_labels: pairs(&[(key, value)]), match_expressions: vec![] }
}

fn pods(namespaces: LabelSelector, pods: LabelSelector) -> Pods {
    Pods { namespaces, pods }
}

fn all() -> LabelSelector {
    LabelSelector::default()
}

fn of(action: ClusterAction, peers: Vec<ClusterPeer>) -> ClusterRule {
    ClusterRule { name: None, action, matches: ClusterMatch::Of { peers, protocols: None } }
}

fn anybody() -> Vec<ClusterPeer> {
    vec![ClusterPeer::Pods(pods(all(), all()))]
}

fn unsupported(action: ClusterAction) -> ClusterRule {
    ClusterRule { name: None, action, matches: ClusterMatch::Unsupported }
}

/// Returns a policy for `db`.
fn policy(tier: ClusterTier, priority: u16, ingress: Vec<ClusterRule>) -> ClusterNetworkPolicy {
    let subject = pods(labels("team", "a"), labels("app", "db"));
    ClusterNetworkPolicy { tier, priority, subject, ingress, egress: vec![] }
}

fn with(cluster: Cluster, name: &str, policy: ClusterNetworkPolicy) -> Cluster {
    let object = Object::ClusterNetworkPolicy(Box::new(policy));
    cluster.with(Kind::ClusterNetworkPolicy, name, object)
}

fn admin(rules: Vec<ClusterRule>) -> Cluster {
    with(Cluster::new(), "p", policy(ClusterTier::Admin, 5, rules))
}

#[test]
fn nodes_are_all_addresses_of_the_nodes_with_these_labels() {
    let of_node = |zone: &str, number: u8| {
        Object::Node(Box::new(Node {
            labels: pairs(&[("zone", zone)]),
            pod_cidrs: vec![format!("10.2.{number}.0/24").parse().unwrap()],
            internal_ips: vec![[172, 18, 0, number].into()],
            external_ips: vec![[192, 0, 2, number].into()],
            calico_address: None,
            tunnel_addresses: Vec::new(),
            vxlan_mac: None,
            bgp: NodeBgp::default(),
            is_leaving: false,
        }))
    };
    let nodes = ClusterPeer::Nodes(labels("zone", "a"));
    let egress = vec![of(ClusterAction::Deny, vec![nodes])];
    let web = pods(labels("team", "a"), labels("app", "web"));
    let policy = ClusterNetworkPolicy {
        tier: ClusterTier::Admin,
        priority: 5,
        subject: web,
        ingress: vec![],
        egress,
    };
    let cluster = with(Cluster::new(), "p", policy).with(Kind::Node, "x", of_node("a", 2)).with(
        Kind::Node,
        "y",
        of_node("b", 3),
    );
    for (address, expected) in [
        ([172, 18, 0, 2], false),
        ([192, 0, 2, 2], false),
        // This is the node's own address in its block.
        ([10, 2, 2, 1], false),
        ([10, 2, 2, 2], true),
        ([172, 18, 0, 3], true),
        ([192, 0, 2, 3], true),
        ([10, 2, 3, 1], true),
    ] {
        let to = Party::Address(address.into());
        assert_eq!(cluster.allows(&self::web(), &to, 80), expected, "{address:?}");
    }
    // It is not known which nodes the policy selects.
    let invalid = cluster.invalid(Kind::Node, "z", Invalid::default());
    assert!(!invalid.allows(&self::web(), &Party::Address([172, 18, 0, 3].into()), 80));
}

#[test]
fn admin_goes_to_kube_admin_and_baseline_to_kube_baseline() {
    let deny = || vec![of(ClusterAction::Deny, anybody())];
    let accept = || ingress("app == 'db'", vec![rule(Action::Allow)]);
    let first = with(Cluster::new(), "p", policy(ClusterTier::Admin, 5, deny()));
    assert!(!first.policy("q", accept()).allows(&web(), &db(), 80));
    let last = with(Cluster::new(), "p", policy(ClusterTier::Baseline, 5, deny()));
    assert!(!last.allows(&web(), &db(), 80));
    assert!(last.policy("q", accept()).allows(&web(), &db(), 80));
}

#[test]
fn priority_is_the_order() {
    let two = |first, second| {
        let cluster = with(
            Cluster::new(),
            "a",
            policy(ClusterTier::Admin, first, vec![of(ClusterAction::Deny, anybody())]),
        );
        let accept = vec![of(ClusterAction::Accept, anybody())];
        with(cluster, "b", policy(ClusterTier::Admin, second, accept)).allows(&web(), &db(), 80)
    };
    assert!(two(2, 1) && !two(1, 2) && !two(1, 1));
}

#[test]
fn without_a_matching_rule_both_tiers_pass() {
    let no_pods = vec![ClusterPeer::Pods(pods(labels("x", "y"), all()))];
    assert!(admin(vec![of(ClusterAction::Deny, no_pods)]).allows(&web(), &db(), 80));
    assert!(admin(vec![]).allows(&web(), &db(), 80));
}

#[test]
fn its_subject_are_pods_by_their_namespaces_labels_and_their_own() {
    let cluster = admin(vec![of(ClusterAction::Deny, anybody())]);
    assert!(!cluster.allows(&lab(), &db(), 80));
    assert!(cluster.allows(&lab(), &web(), 80), "not the pod's labels");
    assert!(cluster.allows(&web(), &lab(), 80), "not the namespace's");
    assert!(cluster.allows(&node("node-2"), &db(), 80), "its own node is always allowed");
}

#[test]
fn peers_are_pods_or_networks() {
    let deny = |peers| admin(vec![of(ClusterAction::Deny, peers)]);
    let by = deny(vec![ClusterPeer::Pods(pods(labels("team", "a"), labels("app", "web")))]);
    assert!(!by.allows(&web(), &db(), 80) && by.allows(&lab(), &db(), 80));
    assert!(deny(anybody()).allows(&stranger(), &db(), 80), "no pod");
    let set = deny(anybody()).set("shop/s", &[], &["192.0.2.0/24"]);
    assert!(set.allows(&stranger(), &db(), 80), "a network set is none either");
    let nets = vec!["192.0.2.0/24".parse().unwrap(), "10.0.2.0/24".parse().unwrap()];
    let egress = vec![of(ClusterAction::Deny, vec![ClusterPeer::Networks(nets)])];
    let cluster = with(
        Cluster::new(),
        "p",
        ClusterNetworkPolicy { egress, ..policy(ClusterTier::Admin, 5, vec![]) },
    );
    assert!(!cluster.allows(&db(), &stranger(), 80) && !cluster.allows(&db(), &lab(), 80));
    assert!(cluster.allows(&db(), &web(), 80));
}

#[test]
fn protocols_are_ports_of_the_destination_by_number_or_by_its_own_name() {
    let deny = |protocols: Vec<ClusterProtocol>| {
        let matches = ClusterMatch::Of { peers: anybody(), protocols: Some(protocols) };
        admin(vec![ClusterRule { name: None, action: ClusterAction::Deny, matches }])
    };
    let denies = |cluster: &Cluster, protocol, port| {
        !cluster.passes(&web(), &db(), Packet::to_port(protocol, port))
    };
    let range = deny(vec![
        ClusterProtocol::Ports { protocol: Protocol::Tcp, ports: Some((10, 20)) },
        ClusterProtocol::Ports { protocol: Protocol::Sctp, ports: None },
    ]);
    for (protocol, port, expected) in [
        (TCP, Some(10), true),
        (TCP, Some(20), true),
        (TCP, Some(9), false),
        (TCP, Some(21), false),
        (TCP, None, false),
        (UDP, Some(10), false),
        (SCTP, Some(1), true),
        (SCTP, None, true),
        (1, None, false),
    ] {
        assert_eq!(denies(&range, protocol, port), expected, "{protocol} {port:?}");
    }
    let named = deny(vec![ClusterProtocol::Named("http".to_owned())]);
    assert!(denies(&named, TCP, Some(8080)));
    assert!(!denies(&named, TCP, Some(80)) && !denies(&named, UDP, Some(8080)));
}

#[test]
fn what_cannot_be_converted_denies_everything_unless_it_would_accept() {
    assert!(!admin(vec![unsupported(ClusterAction::Deny)]).allows(&web(), &db(), 80));
    assert!(!admin(vec![unsupported(ClusterAction::Pass)]).allows(&stranger(), &db(), 80));
    let rules = vec![unsupported(ClusterAction::Accept), of(ClusterAction::Deny, anybody())];
    let cluster = admin(rules);
    assert!(!cluster.allows(&web(), &db(), 80), "an Accept is dropped");
    assert!(
        cluster.says(&web(), &db(), 80).ends_with("denied by ClusterNetworkPolicy p ingress[1]"),
        "and the others keep their indices"
    );
}

#[test]
fn the_older_kinds_are_judged_alike_and_sort_by_their_own_kind() {
    let deny = policy(ClusterTier::Admin, 5, vec![of(ClusterAction::Deny, anybody())]);
    let accept = policy(ClusterTier::Admin, 5, vec![of(ClusterAction::Accept, anybody())]);
    let old = |policy: &ClusterNetworkPolicy| {
        let object = Object::ClusterNetworkPolicy(Box::new(policy.clone()));
        Cluster::new().with(Kind::AdminNetworkPolicy, "p", object)
    };
    assert!(!old(&deny).allows(&web(), &db(), 80));
    assert!(!with(old(&deny), "p", accept).allows(&web(), &db(), 80));
    let baseline = policy(ClusterTier::Baseline, 0, vec![of(ClusterAction::Deny, anybody())]);
    let object = Object::ClusterNetworkPolicy(Box::new(baseline));
    let cluster = Cluster::new().with(Kind::BaselineAdminNetworkPolicy, "default", object);
    assert!(!cluster.allows(&web(), &db(), 80));
}
