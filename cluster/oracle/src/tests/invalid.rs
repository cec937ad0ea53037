//! An invalid object fails closed.

use std::collections::BTreeSet;

use super::cluster::{
    Cluster, address, db, egress, from, in_tier, ingress, ip, lab, matching, node, pairs, pod_at,
    rule, selecting, stranger, web,
};
use crate::{Packet, VerdictReason};
use manx_objects::Invalid;
use manx_objects::object::calico::Action::{Allow, Deny};
use manx_objects::object::calico::{self, EntityRule, Rule, ServiceAccountMatch, ServiceMatch};
use manx_objects::object::cluster::Pods;
use manx_objects::object::{Kind, LabelSelector, Object, Subject};

fn nothing() -> Invalid {
    Invalid::default()
}

fn subject(subject: Subject) -> Invalid {
    Invalid { subject: Some(subject), ..nothing() }
}

fn labelled(labels: &[(&str, &str)]) -> Invalid {
    Invalid { labels: Some(pairs(labels)), ..nothing() }
}

/// Returns a cluster that allows everything before any other policy applies.
fn open() -> Cluster {
    Cluster::new()
        .policy("in", in_tier("kube-admin", 0.0, ingress("all()", vec![rule(Allow)])))
        .policy("out", in_tier("kube-admin", 0.0, egress("all()", vec![rule(Allow)])))
}

#[test]
fn an_invalid_policy_denies_ahead_of_all_tiers_in_both_directions_what_its_subject_selects() {
    let cluster = open().invalid(
        Kind::GlobalNetworkPolicy,
        "broken",
        subject(Subject::Calico(selecting("app == 'db'"))),
    );
    assert!(!cluster.allows(&web(), &db(), 80) && !cluster.allows(&db(), &web(), 80));
    assert!(cluster.allows(&web(), &lab(), 80));
    assert_eq!(
        cluster.says(&web(), &db(), 80),
        "denied: egress: allowed by GlobalNetworkPolicy out egress[0]; ingress: denied by \
         GlobalNetworkPolicy broken, which cannot be evaluated"
    );
}

#[test]
fn with_an_unreadable_subject_it_selects_its_namespace_or_the_cluster() {
    let namespaced = open().invalid(Kind::CalicoNetworkPolicy, "shop/broken", nothing());
    assert!(!namespaced.allows(&web(), &db(), 80) && !namespaced.allows(&lab(), &db(), 80));
    assert!(namespaced.allows(&lab(), &stranger(), 80));
    let global = open().invalid(Kind::GlobalNetworkPolicy, "broken", nothing());
    assert!(!global.allows(&lab(), &stranger(), 80));
}

#[test]
fn a_cluster_wide_policy_of_kubernetes_denies_likewise() {
    let selector = |key: &str, value: &str| LabelSelector {
        match_labels: pairs(&[(key, value)]),
        match_expressions: vec![],
    };
    let pods = Pods { namespaces: selector("team", "a"), pods: selector("app", "db") };
    for kind in
        [Kind::ClusterNetworkPolicy, Kind::AdminNetworkPolicy, Kind::BaselineAdminNetworkPolicy]
    {
        let cluster = open().invalid(kind, "broken", subject(Subject::Cluster(pods.clone())));
        assert!(!cluster.allows(&web(), &db(), 80) && cluster.allows(&web(), &lab(), 80));
        let cluster = open().invalid(kind, "broken", nothing());
        assert!(!cluster.allows(&web(), &stranger(), 80));
    }
}

#[test]
fn an_invalid_kubernetes_policy_isolates_and_leaves_other_tiers_alone() {
    let cluster = Cluster::new().invalid(Kind::NetworkPolicy, "shop/broken", nothing());
    assert!(!cluster.allows(&lab(), &web(), 80) && !cluster.allows(&web(), &lab(), 80));
    let first = open().invalid(Kind::NetworkPolicy, "shop/broken", nothing());
    assert!(first.allows(&lab(), &web(), 80));
}

#[test]
fn an_invalid_staged_policy_counts_as_absent() {
    for (kind, name) in [
        (Kind::StagedGlobalNetworkPolicy, "broken"),
        (Kind::StagedNetworkPolicy, "shop/broken"),
        (Kind::StagedKubernetesNetworkPolicy, "shop/broken"),
    ] {
        let cluster = Cluster::new().invalid(kind, name, nothing());
        assert!(cluster.allows(&lab(), &web(), 80), "{kind}");
    }
}

#[test]
fn the_policies_in_an_invalid_tier_count_as_invalid() {
    let cluster = open()
        .policy("p", in_tier("mine", 1.0, ingress("app == 'db'", vec![rule(Allow)])))
        .invalid(Kind::Tier, "mine", nothing());
    assert!(!cluster.allows(&web(), &db(), 80) && !cluster.allows(&db(), &web(), 80));
    assert!(cluster.allows(&lab(), &web(), 80));
    // Objects cannot change a built-in tier.
    let cluster = open().policy("p", ingress("app == 'db'", vec![rule(Allow)])).invalid(
        Kind::Tier,
        "default",
        nothing(),
    );
    assert!(cluster.allows(&web(), &db(), 80));
}

/// Returns a cluster with a policy for `db` that has this ingress rule. The rule's selectors may
/// match a network set.
fn with_rule(policy: &str, rule: Rule) -> Cluster {
    open().policy(policy, ingress("app == 'db'", vec![rule]))
}

#[test]
fn a_policy_whose_rule_could_match_an_invalid_sets_labels_counts_as_invalid() {
    let set = |rule: Rule| {
        with_rule("p", rule)
            .invalid(Kind::GlobalNetworkSet, "broken", labelled(&[("zone", "out")]))
            .allows(&lab(), &db(), 80)
    };
    let not = |selector: &str| EntityRule {
        not_selector: Some(selector.to_owned()),
        ..matching("app == 'x'")
    };
    assert!(!set(from(Allow, matching("zone == 'out'"))));
    assert!(set(from(Allow, matching("zone == 'in'"))));
    assert!(!set(super::cluster::to(Allow, matching("zone == 'out'"))), "the other end");
    assert!(!set(from(Deny, not("zone == 'out'"))), "notSelector");
    assert!(set(from(Deny, not("zone == 'in'"))));
    assert!(set(rule(Deny)), "a rule without selectors means no set");
    let scoped =
        EntityRule { namespace_selector: Some("all()".to_owned()), ..matching("zone == 'out'") };
    assert!(set(from(Allow, scoped)), "a global set has no namespace");
}

#[test]
fn with_unreadable_labels_any_rule_with_a_selector_of_calicos_may_mean_it() {
    let set = |cluster: Cluster| {
        cluster.invalid(Kind::NetworkSet, "shop/broken", nothing()).allows(&lab(), &db(), 80)
    };
    assert!(!set(with_rule("p", from(Allow, matching("zone == 'in'")))));
    assert!(set(with_rule("p", rule(Allow))));
    let accounts = |names: &[&str], selector: &str| EntityRule {
        service_accounts: Some(ServiceAccountMatch {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            selector: Some(selector.to_owned()),
        }),
        ..EntityRule::default()
    };
    let denying = |names: &[&str], selector: &str| from(Deny, accounts(names, selector));
    assert!(!set(with_rule("p", denying(&[], "role != 'x'"))), "true of what has no account");
    assert!(set(with_rule("p", denying(&[], "role == 'x'"))), "a set has no account");
    assert!(set(with_rule("p", denying(&["x"], "all()"))));
    let kubernetes = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
        metadata: {name: p, namespace: shop}\n\
        spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {}}]}]}\n";
    assert!(set(Cluster::new().text(kubernetes)));
}

#[test]
fn only_enforced_policies_and_rules_that_count_are_touched_by_an_invalid_set() {
    let broken =
        |cluster: Cluster| cluster.invalid(Kind::GlobalNetworkSet, "broken", labelled(&[]));
    let policy = ingress("app == 'db'", vec![from(Deny, matching("all()"))]);
    let staged = Object::CalicoPolicy(Box::new(policy.clone()));
    let cluster = broken(open().with(Kind::StagedGlobalNetworkPolicy, "p", staged));
    assert!(cluster.allows(&lab(), &db(), 80));
    let idle =
        calico::Policy { types: Some(vec![manx_objects::object::PolicyType::Egress]), ..policy };
    assert!(broken(open().policy("p", idle)).allows(&lab(), &db(), 80));
}

#[test]
fn a_selector_that_cannot_be_read_makes_its_policy_invalid() {
    let cluster = with_rule("p", from(Allow, matching("a = 'b'")));
    assert!(!cluster.allows(&lab(), &db(), 80) && cluster.allows(&lab(), &web(), 80));
    let cluster = open().policy("shop/p", ingress("a = 'b'", vec![]));
    assert!(!cluster.allows(&lab(), &db(), 80) && !cluster.allows(&lab(), &web(), 80));
    assert!(cluster.allows(&lab(), &stranger(), 80));
}

#[test]
fn the_address_of_an_invalid_pod_is_denied_as_a_peer() {
    let addresses = BTreeSet::from([ip("10.0.2.1"), ip("10.0.9.9")]);
    let cluster =
        open().invalid(Kind::Pod, "lab/broken", Invalid { reported: addresses, ..nothing() });
    let broken = pod_at("lab", "broken", "10.0.9.9");
    assert!(!cluster.allows(&web(), &broken, 80) && !cluster.allows(&broken, &web(), 80));
    assert!(!cluster.allows(&web(), &address("10.0.9.9"), 80));
    assert!(!cluster.allows(&address("10.0.9.9"), &web(), 80));
    assert!(cluster.allows(&web(), &lab(), 80), "an address that another pod has is that pod's");
    assert!(cluster.allows(&lab(), &stranger(), 80), "at either end");
    assert!(cluster.allows(&web(), &db(), 80));
    let judgement = cluster.oracle().judge(&web(), &broken, Packet::to_port(6, Some(80)));
    assert_eq!(judgement.egress.why, VerdictReason::InvalidPeer);
    assert_eq!(judgement.ingress.why, VerdictReason::NoEndpoint);
}

#[test]
fn nothing_passes_between_an_address_of_a_closed_pod_and_who_is_no_pod() {
    let addresses = BTreeSet::from([ip("10.0.9.9")]);
    let broken = Cluster::new().invalid(
        Kind::Pod,
        "lab/broken",
        Invalid { reported: addresses, ..nothing() },
    );
    // The addresses of a pod whose namespace or service account is invalid are known.
    let nowhere = Cluster::new().invalid(Kind::Namespace, "lab", nothing());
    let no_account = Cluster::new().invalid(Kind::ServiceAccount, "lab/default", nothing());
    let lab = address(&lab().address().to_string());
    for (cluster, closed) in
        [(broken, address("10.0.9.9")), (nowhere, lab.clone()), (no_account, lab)]
    {
        for other in [stranger(), node("node-1"), web()] {
            let text = format!("{closed} and {other}");
            assert!(!cluster.allows(&other, &closed, 80), "to {text}");
            assert!(!cluster.allows(&closed, &other, 80), "from {text}");
        }
        let told = cluster.says(&stranger(), &closed, 80);
        assert_eq!(told, "denied: egress: no pod, no policy; ingress: no such endpoint");
        assert!(cluster.allows(&stranger(), &address("10.0.9.8"), 80));
        assert!(cluster.allows(&stranger(), &web(), 80));
    }
}

#[test]
fn pods_of_an_invalid_namespace_or_service_account_are_no_endpoints() {
    let cluster = Cluster::new().invalid(Kind::Namespace, "lab", nothing());
    assert!(!cluster.allows(&web(), &lab(), 80) && cluster.allows(&web(), &db(), 80));
    let cluster = Cluster::new().invalid(Kind::ServiceAccount, "shop/runner", nothing());
    assert!(!cluster.allows(&lab(), &web(), 80) && cluster.allows(&lab(), &db(), 80));
    assert!(!cluster.allows(&node("node-1"), &web(), 80));
}

#[test]
fn a_set_in_an_invalid_namespace_may_mean_anything() {
    let cluster = with_rule("p", from(Allow, matching("zone == 'x'"))).set(
        "far/s",
        &[("zone", "y")],
        &["192.0.2.0/24"],
    );
    assert!(cluster.allows(&lab(), &db(), 80));
    assert!(!cluster.invalid(Kind::Namespace, "far", nothing()).allows(&lab(), &db(), 80));
}

#[test]
fn a_policy_that_names_a_service_whose_slices_nobody_can_read_counts_as_invalid() {
    let service = ServiceMatch { name: "db".to_owned(), namespace: Some("shop".to_owned()) };
    let source = EntityRule { service: Some(service), ..EntityRule::default() };
    let cluster = with_rule("p", from(Deny, source));
    assert!(cluster.allows(&lab(), &db(), 80));
    let elsewhere = cluster.clone().invalid(Kind::EndpointSlice, "lab/x", nothing());
    assert!(elsewhere.allows(&lab(), &db(), 80));
    let broken = cluster.invalid(Kind::EndpointSlice, "shop/x", nothing());
    assert!(!broken.allows(&lab(), &db(), 80));
}
