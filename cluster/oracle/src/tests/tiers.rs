//! The order of evaluation.

use super::cluster::{
    Cluster, at_order, db, egress, from, in_tier, ingress, lab, matching, rule, web,
};
use crate::{Packet, VerdictReason};
use manx_objects::object::calico::Action::{Allow, Deny, Log, Pass};
use manx_objects::object::calico::{self, Action, StagedAction};
use manx_objects::object::{Kind, Object, PolicyType};

/// Returns a policy for `db` with one rule for every packet.
fn one(action: Action) -> calico::Policy {
    ingress("app == 'db'", vec![rule(action)])
}

/// Returns the policy whose rule decides ingress to `db`.
fn decides(cluster: &Cluster) -> String {
    let judgement = cluster.oracle().judge(&web(), &db(), Packet::to_port(6, Some(80)));
    match judgement.ingress.why {
        VerdictReason::Rule { rule, .. } => rule.policy.name,
        other => other.to_string(),
    }
}

#[test]
fn a_packet_needs_egress_of_the_source_and_ingress_of_the_destination() {
    let out = Cluster::new().policy("p", egress("app == 'web'", vec![rule(Deny)]));
    assert!(!out.allows(&web(), &db(), 80) && out.allows(&db(), &web(), 80));
    let into = Cluster::new().policy("p", one(Deny));
    assert!(!into.allows(&web(), &db(), 80) && into.allows(&db(), &web(), 80));
}

#[test]
fn tiers_sort_by_order_with_an_absent_one_last_and_ties_by_name() {
    let tiers = |first: Option<f64>, second: Option<f64>| {
        Cluster::new()
            .tier("a", first, Deny)
            .tier("b", second, Deny)
            .policy("of-a", in_tier("a", 1.0, one(Deny)))
            .policy("of-b", in_tier("b", 1.0, one(Allow)))
    };
    assert_eq!(decides(&tiers(Some(1.0), Some(2.0))), "of-a");
    assert_eq!(decides(&tiers(Some(2.0), Some(1.0))), "of-b");
    assert_eq!(decides(&tiers(Some(2.0), Some(2.0))), "of-a");
    assert_eq!(decides(&tiers(None, Some(2.0))), "of-b");
    assert_eq!(decides(&tiers(None, None)), "of-a");
    assert_eq!(decides(&tiers(Some(-0.0), Some(0.0))), "of-a");
    assert_eq!(decides(&tiers(Some(-1.5), Some(-2.5))), "of-b");
}

#[test]
fn a_tier_that_is_missing_sorts_last_and_denies_at_its_end() {
    let cluster = Cluster::new()
        .tier("z", None, Pass)
        .policy("of-a", in_tier("a", 1.0, one(Allow)))
        .policy("of-z", in_tier("z", 1.0, one(Deny)));
    assert_eq!(decides(&cluster), "of-z");
    let alone = Cluster::new().policy("of-a", in_tier("a", 1.0, one(Log)));
    assert_eq!(
        decides(&alone),
        "denied at the end of tier a: no rule of GlobalNetworkPolicy of-a decides"
    );
}

#[test]
fn the_built_in_tiers_are_fixed() {
    // The tier comes before `default` in one case and after it in the other, whatever orders the
    // objects contain.
    let cluster = |order: f64| {
        Cluster::new()
            .tier("kube-admin", Some(9e9), Deny)
            .tier("default", Some(1.0), Pass)
            .tier("mine", Some(order), Deny)
            .policy("of-mine", in_tier("mine", 1.0, one(Allow)))
            .policy("of-default", one(Deny))
    };
    assert_eq!(decides(&cluster(999_999.0)), "of-mine");
    assert_eq!(decides(&cluster(1_000_001.0)), "of-default");
    let silent = |tier: &str| {
        Cluster::new()
            .tier(tier, Some(1.0), Deny)
            .policy("p", in_tier(tier, 1.0, one(Log)))
            .policy("q", in_tier("mine", 1.0, one(Allow)))
            .tier("mine", Some(1e8), Deny)
    };
    assert_eq!(decides(&silent("kube-admin")), "q");
    assert_eq!(decides(&silent("kube-baseline")), "q");
    assert!(decides(&silent("default")).starts_with("isolated by"));
    let admin = Cluster::new()
        .policy("of-admin", in_tier("kube-admin", 1.0, one(Allow)))
        .tier("mine", Some(1_001.0), Deny)
        .policy("of-mine", in_tier("mine", 1.0, one(Deny)));
    assert_eq!(decides(&admin), "of-admin");
    let before = admin.tier("mine", Some(999.0), Deny);
    assert_eq!(decides(&before), "of-mine");
    let baseline = Cluster::new()
        .policy("of-baseline", in_tier("kube-baseline", 1.0, one(Allow)))
        .tier("mine", Some(9_999_999.0), Deny)
        .policy("of-mine", in_tier("mine", 1.0, one(Deny)));
    assert_eq!(decides(&baseline), "of-mine");
    assert_eq!(decides(&baseline.tier("mine", Some(10_000_001.0), Deny)), "of-baseline");
}

#[test]
fn policies_sort_by_order_with_an_absent_one_last() {
    let cluster = Cluster::new().policy("a", one(Deny)).policy("b", at_order(5.0, one(Allow)));
    assert_eq!(decides(&cluster), "b");
    let cluster = cluster.policy("c", at_order(4.5, one(Deny)));
    assert_eq!(decides(&cluster), "c");
}

#[test]
fn ties_go_by_the_string_name_namespace_kind() {
    let two = |first: &str, second: &str| {
        let own = |action| ingress("app == 'db'", vec![rule(action)]);
        Cluster::new().policy(first, own(Deny)).policy(second, own(Allow))
    };
    assert_eq!(decides(&two("b", "a")), "a");
    // A slash sorts after a hyphen, so the longer name may come first.
    assert_eq!(decides(&two("a", "a-b")), "a-b");
    assert_eq!(decides(&two("a", "ab")), "a");
    // A policy without a namespace sorts before one with a namespace: "a//.." before "a/shop/..".
    let same = two("shop/a", "a").oracle().judge(&web(), &db(), Packet::to_port(6, Some(80)));
    assert_eq!(same.ingress.to_string(), "allowed by GlobalNetworkPolicy a ingress[0]");
}

#[test]
fn kubernetes_policies_sit_in_tier_default_at_order_1000() {
    let kubernetes = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
        metadata: {name: p, namespace: shop}\nspec: {podSelector: {}, ingress: [{}]}\n";
    let with = |order| Cluster::new().text(kubernetes).policy("q", at_order(order, one(Deny)));
    assert_eq!(decides(&with(999.0)), "q");
    assert_eq!(decides(&with(1001.0)), "p");
    // "p/shop/KubernetesNetworkPolicy" sorts before "p/shop/NetworkPolicy".
    let same = Cluster::new().text(kubernetes).policy("shop/p", at_order(1000.0, one(Deny)));
    assert!(same.allows(&web(), &db(), 80));
}

#[test]
fn a_tier_without_an_enforced_policy_in_this_direction_contributes_nothing() {
    let cluster = Cluster::new()
        .tier("mine", Some(1.0), Deny)
        .policy("out", in_tier("mine", 1.0, egress("app == 'db'", vec![])))
        .policy("other", in_tier("mine", 1.0, ingress("app == 'nobody'", vec![])));
    // A policy without types and without egress rules applies to ingress, so the type must be
    // stated.
    let only_egress = calico::Policy {
        types: Some(vec![PolicyType::Egress]),
        ..in_tier("mine", 1.0, egress("app == 'db'", vec![]))
    };
    assert!(!cluster.allows(&web(), &db(), 80));
    let cluster = cluster.policy("out", only_egress);
    assert!(cluster.allows(&web(), &db(), 80));
    assert!(!cluster.allows(&db(), &web(), 80));
}

#[test]
fn the_tiers_default_action_applies_if_no_rule_ended_the_search() {
    let with = |action| {
        Cluster::new()
            .tier("mine", Some(1.0), action)
            .policy("p", in_tier("mine", 1.0, ingress("app == 'db'", vec![])))
    };
    assert_eq!(
        with(Deny).says(&web(), &db(), 80),
        "denied: egress: no policy decides, and profile kns.shop allows everything; ingress: \
         denied at the end of tier mine: no rule of GlobalNetworkPolicy p decides"
    );
    assert!(with(Pass).allows(&web(), &db(), 80));
    assert_eq!(decides(&with(Pass).policy("q", one(Deny))), "q");
}

#[test]
fn allow_and_deny_end_the_search() {
    let rules = vec![rule(Allow), rule(Deny)];
    assert!(Cluster::new().policy("p", ingress("all()", rules)).allows(&web(), &db(), 80));
    let cluster = Cluster::new()
        .tier("mine", Some(1.0), Deny)
        .policy("p", in_tier("mine", 1.0, one(Allow)))
        .policy("q", one(Deny));
    assert!(cluster.allows(&web(), &db(), 80), "Allow skips all later tiers");
}

#[test]
fn pass_goes_to_the_next_tier_and_after_the_last_to_the_profiles() {
    let cluster = Cluster::new()
        .tier("mine", Some(1.0), Deny)
        .policy("a", in_tier("mine", 1.0, one(Pass)))
        .policy("b", in_tier("mine", 2.0, one(Deny)));
    assert!(cluster.allows(&web(), &db(), 80));
    assert_eq!(
        cluster.says(&web(), &db(), 80),
        "allowed: egress: no policy decides, and profile kns.shop allows everything; ingress: \
         no policy decides, and profile kns.shop allows everything (after GlobalNetworkPolicy a ingress[0])"
    );
    assert_eq!(decides(&cluster.policy("c", one(Deny))), "c");
}

#[test]
fn log_records_and_continues_with_the_next_rule() {
    let rules = vec![rule(Log), from(Log, matching("app == 'x'")), rule(Log), rule(Deny)];
    let cluster = Cluster::new().policy("p", ingress("app == 'db'", rules));
    let judgement = cluster.oracle().judge(&web(), &db(), Packet::to_port(6, Some(80)));
    assert_eq!(
        judgement.ingress.to_string(),
        "denied by GlobalNetworkPolicy p ingress[3] (after GlobalNetworkPolicy p ingress[0], \
         GlobalNetworkPolicy p ingress[2])"
    );
}

#[test]
fn after_the_tiers_a_pods_namespace_profile_allows_both_directions() {
    let judgement = Cluster::new().oracle().judge(&lab(), &db(), Packet::to_port(6, Some(80)));
    assert_eq!(judgement.egress.why, VerdictReason::DefaultProfile("kns.lab".to_owned()));
    assert_eq!(judgement.ingress.why, VerdictReason::DefaultProfile("kns.shop".to_owned()));
}

#[test]
fn staged_kinds_are_never_enforced_and_never_make_a_tier_count() {
    let staged = |kind, name: &str| {
        let policy = in_tier("mine", 1.0, one(Deny));
        Cluster::new().tier("mine", Some(1.0), Deny).with(
            kind,
            name,
            Object::CalicoPolicy(Box::new(policy)),
        )
    };
    assert!(staged(Kind::StagedGlobalNetworkPolicy, "p").allows(&web(), &db(), 80));
    assert!(staged(Kind::StagedNetworkPolicy, "shop/p").allows(&web(), &db(), 80));
    let text = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
        metadata: {name: p, namespace: shop}\nspec: {podSelector: {}}\n";
    let mut objects = Cluster::of(&[text]).0;
    let (_, stored) = objects.pop_first().unwrap();
    let manx_objects::State::Valid(object) = stored.state else { panic!("it is valid") };
    let kind = Kind::StagedKubernetesNetworkPolicy;
    assert!(Cluster::new().with(kind, "shop/p", (*object).clone()).allows(&web(), &db(), 80));
}

#[test]
fn a_staged_policy_says_what_it_would_have_decided() {
    let staged = |cluster: Cluster, name: &str, policy: calico::Policy| {
        cluster.with(Kind::StagedGlobalNetworkPolicy, name, Object::CalicoPolicy(Box::new(policy)))
    };
    let rules = vec![from(Deny, matching("app == 'x'")), rule(Log), rule(Deny)];
    let mut cluster = Cluster::new().policy("enforced", at_order(5.0, one(Allow)));
    cluster = staged(cluster, "denies", at_order(1.0, ingress("app == 'db'", rules)));
    cluster = staged(cluster, "silent", at_order(2.0, ingress("app == 'db'", vec![])));
    cluster = staged(cluster, "too-late", at_order(6.0, one(Deny)));
    cluster =
        staged(cluster, "elsewhere", at_order(1.0, ingress("app == 'web'", vec![rule(Deny)])));
    let learnt =
        calico::Policy { staged_action: Some(StagedAction::Learn), ..at_order(1.0, one(Deny)) };
    cluster = staged(cluster, "learnt", learnt);
    let said: Vec<String> = cluster
        .oracle()
        .staged(&web(), &db(), Packet::to_port(6, Some(80)))
        .into_iter()
        .map(|staged| staged.to_string())
        .collect();
    assert_eq!(
        said,
        [
            "Log by StagedGlobalNetworkPolicy denies ingress[1]",
            "Deny by StagedGlobalNetworkPolicy denies ingress[2]"
        ]
    );
}

#[test]
fn what_the_end_of_a_tier_would_deny_is_told_of_each_staged_policy_if_none_is_enforced() {
    let staged = |cluster: Cluster, tier, order, name: &str, policy: calico::Policy| {
        let policy = in_tier(tier, order, policy);
        cluster.with(Kind::StagedGlobalNetworkPolicy, name, Object::CalicoPolicy(Box::new(policy)))
    };
    let said = |cluster: &Cluster| {
        let all = cluster.oracle().staged(&web(), &db(), Packet::to_port(6, Some(80)));
        all.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let no_match = || vec![from(Allow, matching("app == 'x'")), rule(Log)];
    let cluster = |action| {
        let cluster = Cluster::new().tier("mine", Some(1.0), action);
        let cluster = staged(cluster, "mine", 1.0, "a", ingress("app == 'db'", no_match()));
        let cluster = staged(cluster, "mine", 2.0, "b", one(Allow));
        let cluster = staged(cluster, "mine", 3.0, "c", ingress("app == 'db'", vec![]));
        let cluster = staged(cluster, "mine", 4.0, "elsewhere", ingress("app == 'web'", vec![]));
        staged(
            cluster,
            "default",
            1.0,
            "d",
            egress("app == 'web'", vec![from(Deny, matching("app == 'x'"))]),
        )
    };
    insta::assert_snapshot!(said(&cluster(Deny)), @r"
    Deny by StagedGlobalNetworkPolicy d egress[end of tier]
    Log by StagedGlobalNetworkPolicy a ingress[1]
    Deny by StagedGlobalNetworkPolicy a ingress[end of tier]
    Allow by StagedGlobalNetworkPolicy b ingress[0]
    Deny by StagedGlobalNetworkPolicy c ingress[end of tier]
    ");
    insta::assert_snapshot!(said(&cluster(Pass)), @r"
    Deny by StagedGlobalNetworkPolicy d egress[end of tier]
    Log by StagedGlobalNetworkPolicy a ingress[1]
    Allow by StagedGlobalNetworkPolicy b ingress[0]
    ");
    let last = in_tier("mine", 9.0, ingress("app == 'db'", vec![rule(Pass)]));
    insta::assert_snapshot!(said(&cluster(Deny).policy("enforced", last)), @r"
    Deny by StagedGlobalNetworkPolicy d egress[end of tier]
    Log by StagedGlobalNetworkPolicy a ingress[1]
    Allow by StagedGlobalNetworkPolicy b ingress[0]
    ");
}

#[test]
fn types_default_by_the_rules_that_are_there() {
    let speaks = |policy: &calico::Policy| {
        let cluster = Cluster::new().policy("p", policy.clone());
        // If a policy applies to a direction and has no rule for the packet, it isolates.
        (!cluster.allows(&lab(), &db(), 80), !cluster.allows(&db(), &lab(), 80))
    };
    let no = || vec![from(Allow, matching("app == 'nobody'"))];
    let only_in = ingress("app == 'db'", no());
    let only_out = egress("app == 'db'", no());
    let both = calico::Policy { egress: no(), ..only_in.clone() };
    assert_eq!(speaks(&ingress("app == 'db'", vec![])), (true, false), "none");
    assert_eq!(speaks(&only_in), (true, false));
    assert_eq!(speaks(&only_out), (false, true));
    assert_eq!(speaks(&both), (true, true));
    let named = |types: Vec<PolicyType>| calico::Policy { types: Some(types), ..both.clone() };
    assert_eq!(speaks(&named(vec![])), (true, true));
    assert_eq!(speaks(&named(vec![PolicyType::Egress])), (false, true), "ingress rules are idle");
}
