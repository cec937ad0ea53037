//! Order of evaluation.

use crate::model::*;
use crate::tests::build::*;

/// Two pods of one namespace, and an address outside.
fn pods() -> Cluster {
    Cluster::new().namespace("shop", "team=a").pod("shop/web", "app=web", "10.0.0.1 fd00::1").pod(
        "shop/db",
        "app=db",
        "10.0.0.2 fd00::2",
    )
}

#[test]
fn egress_of_the_source_and_ingress_of_the_destination_are_judged_each_for_itself() {
    let cluster = pods()
        .policy(kubernetes("shop/db").selects("app == 'db'").ingress([allow()]))
        .policy(kubernetes("shop/web").selects("app == 'web'").egress([]));
    cluster.says(
        "shop/web > 10.0.0.2 tcp 80 = deny: isolated by shop/web for egress, no rule allows
         shop/db < 10.0.0.1 tcp 80 = allow: shop/db ingress[0]
         shop/db > 10.0.0.1 tcp 80 = allow: no policy selects it for egress",
    );
}

#[test]
fn tiers_sort_by_order() {
    let cluster = pods()
        .tier("z", 1.0, DefaultAction::Deny)
        .tier("a", 2.0, DefaultAction::Deny)
        .policy(global("p").tier("a").ingress([deny()]))
        .policy(global("q").tier("z").ingress([allow()]));
    cluster.says("shop/web < 10.0.0.2 tcp 80 = allow: GlobalNetworkPolicy q ingress[0]");
}

#[test]
fn tiers_of_equal_order_sort_by_name() {
    let cluster = pods()
        .tier("z", 1.0, DefaultAction::Deny)
        .tier("a", 1.0, DefaultAction::Deny)
        .policy(global("p").tier("z").ingress([deny()]))
        .policy(global("q").tier("a").ingress([allow()]));
    cluster.says("shop/web < 10.0.0.2 tcp 80 = allow: GlobalNetworkPolicy q ingress[0]");
}

#[test]
fn a_tier_without_order_is_the_last() {
    let cluster = pods()
        .tier("a", f64::INFINITY, DefaultAction::Deny)
        .policy(global("p").tier("a").ingress([deny()]))
        .policy(global("q").tier("kube-baseline").ingress([allow()]));
    cluster.says("shop/web < 10.0.0.2 tcp 80 = allow: GlobalNetworkPolicy q ingress[0]");
}

#[test]
fn a_tier_that_nobody_defines_is_the_last_and_denies() {
    let cluster = pods()
        .policy(global("p").tier("a").ingress([allow().tcp("80")]))
        .policy(global("q").tier("kube-baseline").ingress([deny().tcp("80")]));
    cluster.says(
        "shop/web < 10.0.0.2 tcp 80 = deny: GlobalNetworkPolicy q ingress[0]
         shop/web < 10.0.0.2 tcp 81 = deny: isolated by GlobalNetworkPolicy p for ingress, no rule allows",
    );
}

#[test]
fn a_tier_that_nobody_defines_comes_after_one_without_order() {
    let cluster = pods()
        .tier("z", f64::INFINITY, DefaultAction::Deny)
        .policy(global("p").tier("a").ingress([deny()]))
        .policy(global("q").tier("z").ingress([allow()]));
    cluster.says("shop/web < 10.0.0.2 tcp 80 = allow: GlobalNetworkPolicy q ingress[0]");
}

#[test]
fn the_built_in_tiers_stand_round_the_default_one_and_pass() {
    let cluster = pods()
        .policy(draft(PolicyKind::Cluster, "a").tier("kube-admin").ingress([allow().tcp("1")]))
        .policy(kubernetes("shop/k").ingress([allow().tcp("1-2"), pass().tcp("3-4")]))
        .policy(draft(PolicyKind::Cluster, "b").tier("kube-baseline").ingress([deny().tcp("1-3")]));
    cluster.says(
        "shop/web < 10.0.0.2 tcp 1 = allow: ClusterNetworkPolicy a ingress[0]
         shop/web < 10.0.0.2 tcp 2 = allow: shop/k ingress[0]
         shop/web < 10.0.0.2 tcp 3 = deny: ClusterNetworkPolicy b ingress[0]; Pass shop/k ingress[1]
         shop/web < 10.0.0.2 tcp 4 = allow: no policy selects it for ingress; Pass shop/k ingress[1]
         shop/web < 10.0.0.2 tcp 5 = deny: isolated by shop/k for ingress, no rule allows",
    );
}

#[test]
fn objects_of_the_built_in_tiers_change_neither_their_order_nor_their_default_action() {
    let cluster = pods()
        .tier("default", 1.0, DefaultAction::Pass)
        .tier("kube-admin", f64::INFINITY, DefaultAction::Deny)
        .policy(global("p").tier("kube-admin").ingress([allow().tcp("80")]))
        .policy(global("q").ingress([deny().tcp("80")]));
    cluster.says(
        "shop/web < 10.0.0.2 tcp 80 = allow: GlobalNetworkPolicy p ingress[0]
         shop/web < 10.0.0.2 tcp 81 = deny: isolated by GlobalNetworkPolicy q for ingress, no rule allows",
    );
}

#[test]
fn policies_sort_by_order_and_those_without_come_last() {
    let cluster = pods()
        .policy(global("a").ingress([deny()]))
        .policy(global("b").order(10.0).ingress([allow().tcp("80")]))
        .policy(global("c").order(-1.5).ingress([deny().tcp("80-90").from([who("app == 'web'")])]));
    cluster.says(
        "shop/db < 10.0.0.1 tcp 80 = deny: GlobalNetworkPolicy c ingress[0]
         shop/db < 10.0.0.9 tcp 80 = allow: GlobalNetworkPolicy b ingress[0]
         shop/db < 10.0.0.9 tcp 81 = deny: GlobalNetworkPolicy a ingress[0]",
    );
}

#[test]
fn negative_zero_is_zero() {
    let cluster = pods()
        .policy(global("a").order(0.0).ingress([allow()]))
        .policy(global("b").order(-0.0).ingress([deny()]));
    cluster.says("shop/db < 10.0.0.1 tcp 80 = allow: GlobalNetworkPolicy a ingress[0]");
}

#[test]
fn policies_of_equal_order_sort_by_name_then_namespace_then_kind() {
    let cluster = pods()
        .policy(global("b").ingress([deny().tcp("1-3")]))
        .policy(draft(PolicyKind::Calico, "shop/b").ingress([deny().tcp("1-2")]))
        .policy(draft(PolicyKind::Calico, "shop/a").ingress([allow().tcp("1")]));
    cluster.says(
        "shop/web < 10.0.0.2 tcp 1 = allow: Calico NetworkPolicy shop/a ingress[0]
         shop/web < 10.0.0.2 tcp 2 = deny: GlobalNetworkPolicy b ingress[0]
         shop/web < 10.0.0.2 tcp 3 = deny: GlobalNetworkPolicy b ingress[0]",
    );
    let kinds = pods()
        .policy(draft(PolicyKind::Calico, "shop/a").order(1000.0).ingress([deny()]))
        .policy(kubernetes("shop/a").ingress([allow()]));
    kinds.says("shop/web < 10.0.0.2 tcp 1 = allow: shop/a ingress[0]");
}

#[test]
fn kubernetes_policies_sit_in_the_default_tier_at_order_1000() {
    let cluster = pods()
        .policy(kubernetes("shop/m").ingress([allow()]))
        .policy(global("a").order(1000.5).ingress([deny()]))
        .policy(global("z").order(999.5).ingress([deny().tcp("80")]));
    assert_eq!(Order::new(1000.0), Some(Order::KUBERNETES));
    cluster.says(
        "shop/web < 10.0.0.2 tcp 80 = deny: GlobalNetworkPolicy z ingress[0]
         shop/web < 10.0.0.2 tcp 81 = allow: shop/m ingress[0]",
    );
}

#[test]
fn a_tier_without_policy_for_this_endpoint_in_this_direction_contributes_nothing() {
    let cluster = pods()
        .tier("first", 1.0, DefaultAction::Deny)
        .policy(global("p").tier("first").selects("app == 'db'").ingress([]))
        .policy(global("q").tier("first").selects("app == 'web'").egress([]));
    cluster.says(
        "shop/db < 10.0.0.1 tcp 80 = deny: isolated by GlobalNetworkPolicy p for ingress, no rule allows
         shop/db > 10.0.0.1 tcp 80 = allow: no policy selects it for egress
         shop/web < 10.0.0.2 tcp 80 = allow: no policy selects it for ingress
         shop/web > 10.0.0.2 tcp 80 = deny: isolated by GlobalNetworkPolicy q for egress, no rule allows",
    );
}

#[test]
fn the_end_of_a_tier_is_its_default_action_and_carries_its_first_policy() {
    let cluster = pods()
        .tier("first", 1.0, DefaultAction::Pass)
        .tier("second", 2.0, DefaultAction::Deny)
        .policy(global("p").tier("first").ingress([]))
        .policy(global("r").tier("second").ingress([]))
        .policy(global("q").tier("second").ingress([]));
    cluster.says(
        "shop/db < 10.0.0.1 tcp 80 = deny: isolated by GlobalNetworkPolicy q for ingress, no rule allows",
    );
}

#[test]
fn allow_and_deny_end_the_search() {
    let cluster = pods()
        .tier("first", 1.0, DefaultAction::Deny)
        .policy(global("p").tier("first").ingress([
            allow().tcp("80"),
            deny().tcp("80-81"),
            allow(),
        ]))
        .policy(global("q").ingress([deny()]));
    cluster.says(
        "shop/db < 10.0.0.1 tcp 80 = allow: GlobalNetworkPolicy p ingress[0]
         shop/db < 10.0.0.1 tcp 81 = deny: GlobalNetworkPolicy p ingress[1]
         shop/db < 10.0.0.1 tcp 82 = allow: GlobalNetworkPolicy p ingress[2]",
    );
}

#[test]
fn pass_skips_the_rest_of_the_tier_and_its_default_action() {
    let cluster = pods()
        .tier("first", 1.0, DefaultAction::Deny)
        .policy(global("p").tier("first").ingress([pass().tcp("80"), deny().tcp("80")]))
        .policy(global("q").tier("first").ingress([deny().tcp("80")]))
        .policy(global("r").ingress([allow().tcp("80")]));
    cluster.says(
        "shop/db < 10.0.0.1 tcp 80 = allow: GlobalNetworkPolicy r ingress[0]; Pass GlobalNetworkPolicy p ingress[0]
         shop/db < 10.0.0.1 tcp 81 = deny: isolated by GlobalNetworkPolicy p for ingress, no rule allows",
    );
}

#[test]
fn pass_goes_through_several_tiers_and_after_the_last_to_the_profiles() {
    let cluster = pods()
        .tier("first", 1.0, DefaultAction::Deny)
        .tier("second", 2.0, DefaultAction::Deny)
        .policy(global("p").tier("first").ingress([pass()]))
        .policy(global("q").tier("second").ingress([pass()]))
        .policy(global("r").ingress([pass()]));
    cluster.says(
        "shop/db < 10.0.0.1 tcp 80 = allow: no policy selects it for ingress; Pass GlobalNetworkPolicy p ingress[0]; \
         Pass GlobalNetworkPolicy q ingress[0]; Pass GlobalNetworkPolicy r ingress[0]",
    );
}

#[test]
fn log_records_and_continues_with_the_next_rule() {
    let cluster =
        pods().policy(global("p").ingress([log(), log().tcp("80-81"), allow().tcp("80"), log()]));
    cluster.says(
        "shop/db < 10.0.0.1 tcp 80 = allow: GlobalNetworkPolicy p ingress[2]; \
         Log GlobalNetworkPolicy p ingress[0]; Log GlobalNetworkPolicy p ingress[1]
         shop/db < 10.0.0.1 udp 80 = deny: isolated by GlobalNetworkPolicy p for ingress, no rule allows; \
         Log GlobalNetworkPolicy p ingress[0]; Log GlobalNetworkPolicy p ingress[3]",
    );
}

#[test]
fn the_profile_of_a_namespace_allows_both_directions() {
    pods().says(
        "shop/web < 203.0.113.1 proto 50 = allow: no policy selects it for ingress
         shop/web > fd00::99 udp 53 = allow: no policy selects it for egress",
    );
}

#[test]
fn staged_policies_are_noted_and_never_enforced() {
    let cluster = pods()
        .policy(staged("a").order(1.0).ingress([deny().tcp("80"), allow()]))
        .policy(global("b").order(2.0).ingress([allow().tcp("80")]));
    cluster.says(
        "shop/db < 10.0.0.1 tcp 80 = allow: GlobalNetworkPolicy b ingress[0]; Deny StagedGlobalNetworkPolicy a ingress[0]
         shop/db < 10.0.0.1 tcp 81 = deny: isolated by GlobalNetworkPolicy b for ingress, no rule allows; \
         Allow StagedGlobalNetworkPolicy a ingress[1]",
    );
}

#[test]
fn a_log_of_a_staged_policy_is_noted_and_the_next_rule_asked() {
    let cluster = pods().policy(staged("a").ingress([log(), log().tcp("81"), deny(), allow()]));
    cluster.says(
        "shop/db < 10.0.0.1 tcp 80 = allow: no policy selects it for ingress; \
         Log StagedGlobalNetworkPolicy a ingress[0]; Deny StagedGlobalNetworkPolicy a ingress[2]
         shop/db < 10.0.0.1 tcp 81 = allow: no policy selects it for ingress; Log StagedGlobalNetworkPolicy a ingress[0]; \
         Log StagedGlobalNetworkPolicy a ingress[1]; Deny StagedGlobalNetworkPolicy a ingress[2]",
    );
}

#[test]
fn behind_the_rule_that_matches_a_staged_policy_logs_nothing() {
    let cluster = pods().policy(staged("a").ingress([allow().tcp("80"), log()]));
    cluster.says(
        "shop/db < 10.0.0.1 tcp 80 = allow: no policy selects it for ingress; \
         Allow StagedGlobalNetworkPolicy a ingress[0]
         shop/db < 10.0.0.1 tcp 81 = allow: no policy selects it for ingress; \
         Log StagedGlobalNetworkPolicy a ingress[1]; Deny StagedGlobalNetworkPolicy a ingress[end of tier]",
    );
}

#[test]
fn staged_policies_never_make_a_tier_count_as_present() {
    let cluster = pods()
        .tier("first", 1.0, DefaultAction::Deny)
        .policy(staged("a").tier("first").ingress([pass().tcp("80")]))
        .policy(draft(PolicyKind::StagedKubernetes, "shop/b").ingress([]));
    cluster.says(
        "shop/db < 10.0.0.1 tcp 80 = allow: no policy selects it for ingress; Pass StagedGlobalNetworkPolicy a ingress[0]; \
         Deny StagedKubernetesNetworkPolicy shop/b ingress[end of tier]
         shop/db < 10.0.0.1 tcp 81 = allow: no policy selects it for ingress; \
         Deny StagedGlobalNetworkPolicy a ingress[end of tier]; \
         Deny StagedKubernetesNetworkPolicy shop/b ingress[end of tier]",
    );
}

#[test]
fn in_a_tier_of_staged_policies_alone_each_without_a_rule_that_decides_would_deny_at_its_end() {
    let cluster = pods()
        .policy(staged("a").order(1.0).ingress([deny().tcp("22"), log()]))
        .policy(staged("b").order(2.0).ingress([]).egress([allow().tcp("80")]))
        .policy(staged("c").order(3.0).ingress([allow().tcp("80"), pass().tcp("22")]));
    let ends = |names: &[&str]| {
        let end = |it| format!("Deny StagedGlobalNetworkPolicy {it}[end of tier]");
        names.iter().map(end).collect::<Vec<_>>().join("; ")
    };
    let no_policy = "allow: no policy selects it for";
    cluster.says(&format!(
        "shop/db < 10.0.0.1 tcp 80 = {no_policy} ingress; Log StagedGlobalNetworkPolicy a ingress[1]; {}; \
         Allow StagedGlobalNetworkPolicy c ingress[0]
         shop/db < 10.0.0.1 tcp 22 = {no_policy} ingress; Deny StagedGlobalNetworkPolicy a ingress[0]; {}; \
         Pass StagedGlobalNetworkPolicy c ingress[1]
         shop/db < 203.0.113.1 proto 50 = {no_policy} ingress; Log StagedGlobalNetworkPolicy a ingress[1]; {}
         shop/db > 10.0.0.1 tcp 80 = {no_policy} egress; Allow StagedGlobalNetworkPolicy b egress[0]
         shop/db > fd00::99 udp 80 = {no_policy} egress; {}",
        ends(&["a ingress", "b ingress"]),
        ends(&["b ingress"]),
        ends(&["a ingress", "b ingress", "c ingress"]),
        ends(&["b egress"]),
    ));
}

#[test]
fn beside_an_enforced_policy_or_where_the_tier_passes_a_staged_policys_isolation_would_change_nothing()
 {
    let enforced = pods()
        .policy(staged("a").order(1.0).ingress([]).egress([]))
        .policy(global("b").order(2.0).ingress([allow().tcp("80"), pass().tcp("81")]))
        .policy(staged("c").order(3.0).ingress([]));
    enforced.says(
        "shop/db < 10.0.0.1 tcp 80 = allow: GlobalNetworkPolicy b ingress[0]
         shop/db < 10.0.0.1 tcp 81 = allow: no policy selects it for ingress; Pass GlobalNetworkPolicy b ingress[1]
         shop/db < 10.0.0.1 tcp 82 = deny: isolated by GlobalNetworkPolicy b for ingress, no rule allows
         shop/db > 10.0.0.1 tcp 80 = allow: no policy selects it for egress; \
         Deny StagedGlobalNetworkPolicy a egress[end of tier]",
    );
    // Each endpoint is evaluated alone: the enforced policy does not select the other endpoint.
    let others = pods()
        .policy(staged("a").ingress([]))
        .policy(global("b").selects("app == 'db'").ingress([allow()]));
    others.says(
        "shop/db < 10.0.0.1 tcp 80 = allow: GlobalNetworkPolicy b ingress[0]
         shop/web < 10.0.0.2 tcp 80 = allow: no policy selects it for ingress; \
         Deny StagedGlobalNetworkPolicy a ingress[end of tier]",
    );
    let passing = pods()
        .tier("first", 1.0, DefaultAction::Pass)
        .policy(staged("a").tier("first").ingress([allow().tcp("80")]));
    passing.says(
        "shop/db < 10.0.0.1 tcp 80 = allow: no policy selects it for ingress; Allow StagedGlobalNetworkPolicy a ingress[0]
         shop/db < 10.0.0.1 tcp 81 = allow: no policy selects it for ingress",
    );
}

#[test]
fn a_staged_pass_does_not_skip_the_tier() {
    let cluster =
        pods().policy(staged("a").ingress([pass()])).policy(global("b").ingress([deny()]));
    cluster.says(
        "shop/db < 10.0.0.1 tcp 80 = deny: GlobalNetworkPolicy b ingress[0]; Pass StagedGlobalNetworkPolicy a ingress[0]",
    );
}

#[test]
fn a_policy_that_is_not_valid_denies_both_directions_ahead_of_all_tiers() {
    let cluster = pods()
        .policy(global("a").tier("kube-admin").ingress([allow()]).egress([allow()]))
        .policy(kubernetes("shop/odd").selects("app == 'db'").broken());
    cluster.says(
        "shop/db < 10.0.0.1 tcp 80 = deny: shop/odd is not valid and denies ingress
         shop/db > 10.0.0.1 tcp 80 = deny: shop/odd is not valid and denies egress
         shop/web < 10.0.0.2 tcp 80 = allow: GlobalNetworkPolicy a ingress[0]",
    );
}

#[test]
fn a_staged_policy_that_is_not_valid_denies_nothing() {
    let cluster = pods().policy(staged("odd").broken());
    cluster.says("shop/db < 10.0.0.1 tcp 80 = allow: no policy selects it for ingress");
}
