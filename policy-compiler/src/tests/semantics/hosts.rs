//! Host endpoints: stages, failsafe ports, profiles.

use std::fmt::Write as _;

use crate::model::*;
use crate::resolve::Stage;
use crate::tests::build::*;

fn host() -> Cluster {
    Cluster::new().namespace("shop", "").pod("shop/web", "app=web", "10.0.0.1").host(
        "eth0",
        "role=node",
        "192.0.2.10 2001:db8::10",
        "",
    )
}

#[test]
fn without_policy_local_traffic_is_denied_and_forwarded_traffic_allowed() {
    host().says(
        "eth0@host < 203.0.113.1 tcp 80 = deny: no profile allows ingress
         eth0@host > 203.0.113.1 tcp 80 = deny: no profile allows egress
         eth0@forward < 203.0.113.1 tcp 80 = allow: no host policy for ingress
         eth0@prednat < 203.0.113.1 tcp 80 = allow: no host policy for ingress
         eth0@untracked > 203.0.113.1 tcp 80 = allow: no host policy for egress",
    );
}

#[test]
fn a_policy_without_apply_on_forward_leaves_forwarded_traffic_alone() {
    let cluster = host().policy(global("p").selects("role == 'node'").ingress([deny()]));
    cluster.says(
        "eth0@host < 203.0.113.1 tcp 80 = deny: GlobalNetworkPolicy p ingress[0]
         eth0@forward < 203.0.113.1 tcp 80 = allow: no host policy for ingress
         eth0@prednat < 203.0.113.1 tcp 80 = allow: no host policy for ingress
         eth0@untracked < 203.0.113.1 tcp 80 = allow: no host policy for ingress",
    );
}

#[test]
fn a_policy_that_applies_on_forward_sees_local_traffic_too() {
    let cluster = host().policy(
        global("p").selects("role == 'node'").hook(Hook::Forward).ingress([allow().tcp("80")]),
    );
    let end = "deny: isolated by GlobalNetworkPolicy p for ingress, no rule allows";
    cluster.says(&format!(
        "eth0@forward < 203.0.113.1 tcp 80 = allow: GlobalNetworkPolicy p ingress[0]
         eth0@forward < 203.0.113.1 tcp 81 = {end}
         eth0@host < 203.0.113.1 tcp 80 = allow: GlobalNetworkPolicy p ingress[0]
         eth0@host < 203.0.113.1 tcp 81 = {end}
         eth0@forward > 203.0.113.1 tcp 81 = allow: no host policy for egress"
    ));
}

#[test]
fn forwarded_traffic_that_no_policy_allows_is_denied_even_behind_tiers_that_pass() {
    let cluster = host().policy(
        global("p")
            .tier("kube-baseline")
            .selects("role == 'node'")
            .hook(Hook::Forward)
            .ingress([pass().tcp("80")]),
    );
    let end = "deny: isolated by GlobalNetworkPolicy p for ingress, no rule allows";
    cluster.says(&format!(
        "eth0@forward < 203.0.113.1 tcp 81 = {end}
         eth0@forward < 203.0.113.1 tcp 80 = {end}; Pass GlobalNetworkPolicy p ingress[0]"
    ));
}

#[test]
fn a_staged_policy_on_forward_makes_nothing_be_denied() {
    let cluster = host().policy(staged("p").hook(Hook::Forward).ingress([deny()]));
    cluster.says(
        "eth0@forward < 203.0.113.1 tcp 80 = allow: no host policy for ingress; Deny StagedGlobalNetworkPolicy p ingress[0]",
    );
}

#[test]
fn what_a_staged_policy_would_deny_by_isolation_is_noted_where_tiers_end() {
    let cluster = |hook| host().policy(staged("p").hook(hook).ingress([]));
    let noted = "Deny StagedGlobalNetworkPolicy p ingress[end of tier]";
    cluster(Hook::Forward).says(&format!(
        "eth0@forward < 203.0.113.1 tcp 80 = allow: no host policy for ingress; {noted}
         eth0@host < 203.0.113.1 tcp 80 = deny: no profile allows ingress; {noted}"
    ));
    cluster(Hook::PreDnat)
        .says("eth0@prednat < 203.0.113.1 tcp 80 = allow: no host policy for ingress");
    cluster(Hook::Untracked)
        .says("eth0@untracked < 203.0.113.1 tcp 80 = allow: no host policy for ingress");
}

#[test]
fn a_host_endpoint_that_is_not_valid_denies_local_traffic_and_what_some_policy_may_deny_of_forwarded()
 {
    let broken = || Cluster::new().broken_host("eth0").failsafe("tcp/22", "");
    let local =
        "eth0@host < 203.0.113.1 tcp 80 = deny: host endpoint eth0 is not valid and denies ingress
         eth0@host < 203.0.113.1 tcp 22 = allow: failsafe port, ingress
         eth0@prednat < 203.0.113.1 tcp 80 = allow: no host policy for ingress
         eth0@untracked < 203.0.113.1 tcp 80 = allow: no host policy for ingress
         eth0@forward > 203.0.113.1 tcp 80 = allow: no host policy for egress\n";
    let pass = "eth0@forward < 203.0.113.1 tcp 80 = allow: no host policy for ingress";
    let silent = broken()
        .policy(global("p").ingress([deny()]))
        .policy(staged("p").hook(Hook::Forward).ingress([deny()]))
        .policy(draft(PolicyKind::Calico, "shop/p").hook(Hook::Forward).ingress([deny()]));
    silent.says(&format!("{local}{pass}"));
    let deny = "eth0@forward < 203.0.113.1 tcp 22 = deny: host endpoint eth0 is not valid and denies ingress";
    for hook in [Hook::Forward, Hook::PreDnat, Hook::Untracked] {
        let selective = global("p").selects("role == 'other'").hook(hook).ingress([allow()]);
        broken().policy(selective).says(&format!("{local}{deny}"));
    }
}

#[test]
fn workload_policy_still_applies_to_what_a_host_endpoint_forwards() {
    let cluster = host()
        .policy(global("p").selects("role == 'node'").hook(Hook::Forward).ingress([allow()]))
        .policy(kubernetes("shop/web").ingress([]));
    cluster.says(
        "eth0@forward < 203.0.113.1 tcp 80 = allow: GlobalNetworkPolicy p ingress[0]
         shop/web < 203.0.113.1 tcp 80 = deny: isolated by shop/web for ingress, no rule allows",
    );
}

#[test]
fn a_policy_on_forward_speaks_at_pods_like_any_other() {
    let cluster =
        host().policy(global("p").selects("app == 'web'").hook(Hook::Forward).ingress([deny()]));
    cluster.says("shop/web < 203.0.113.1 tcp 80 = deny: GlobalNetworkPolicy p ingress[0]");
}

#[test]
fn before_nat_is_ingress_only_and_has_no_end_of_tier_drop() {
    let cluster = host().policy(
        global("p")
            .selects("role == 'node'")
            .hook(Hook::PreDnat)
            .ingress([deny().tcp("80")])
            .egress([deny()]),
    );
    cluster.says(
        "eth0@prednat < 203.0.113.1 tcp 80 = deny: GlobalNetworkPolicy p ingress[0]
         eth0@prednat < 203.0.113.1 tcp 81 = allow: no host policy for ingress
         eth0@prednat > 203.0.113.1 tcp 80 = allow: no host policy for egress
         eth0@forward < 203.0.113.1 tcp 80 = allow: no host policy for ingress
         eth0@host < 203.0.113.1 tcp 80 = deny: no profile allows ingress",
    );
}

#[test]
fn without_tracking_has_both_directions_no_end_of_tier_drop_and_no_profiles() {
    let cluster = host().policy(
        global("p")
            .selects("role == 'node'")
            .hook(Hook::Untracked)
            .ingress([deny().udp("53")])
            .egress([pass().udp("54"), deny().udp("53")]),
    );
    cluster.says(
        "eth0@untracked < 203.0.113.1 udp 53 = deny: GlobalNetworkPolicy p ingress[0]
         eth0@untracked < 203.0.113.1 udp 54 = allow: no host policy for ingress
         eth0@untracked > 203.0.113.1 udp 53 = deny: GlobalNetworkPolicy p egress[1]
         eth0@untracked > 203.0.113.1 udp 54 = allow: no host policy for egress; Pass GlobalNetworkPolicy p egress[0]
         eth0@prednat < 203.0.113.1 udp 53 = allow: no host policy for ingress",
    );
}

#[test]
fn policies_before_nat_and_without_tracking_do_not_speak_at_pods() {
    let cluster = host()
        .policy(global("p").hook(Hook::PreDnat).ingress([deny()]))
        .policy(global("q").hook(Hook::Untracked).ingress([deny()]));
    cluster.says("shop/web < 203.0.113.1 tcp 80 = allow: no policy selects it for ingress");
}

#[test]
fn failsafe_ports_come_before_every_policy_but_not_for_forwarded_traffic() {
    let base = || host().failsafe("tcp/22", "udp/53");
    let all = |hook| {
        base().policy(
            global("p").selects("role == 'node'").hook(hook).ingress([deny()]).egress([deny()]),
        )
    };
    all(Hook::Forward).says(
        "eth0@host < 203.0.113.1 tcp 22 = allow: failsafe port, ingress
         eth0@host < 203.0.113.1 tcp 22-23 = deny: GlobalNetworkPolicy p ingress[0]
         eth0@host < 203.0.113.1 udp 22 = deny: GlobalNetworkPolicy p ingress[0]
         eth0@host < 203.0.113.1 tcp = deny: GlobalNetworkPolicy p ingress[0]
         eth0@host > 203.0.113.1 udp 53 = allow: failsafe port, egress
         eth0@host > 203.0.113.1 tcp 22 = deny: GlobalNetworkPolicy p egress[0]
         eth0@forward < 203.0.113.1 tcp 22 = deny: GlobalNetworkPolicy p ingress[0]",
    );
    all(Hook::PreDnat).says(
        "eth0@prednat < 203.0.113.1 tcp 22 = allow: failsafe port, ingress
         eth0@prednat < 203.0.113.1 tcp 23 = deny: GlobalNetworkPolicy p ingress[0]",
    );
    all(Hook::Untracked).says(
        "eth0@untracked < 203.0.113.1 tcp 22 = allow: failsafe port, ingress
         eth0@untracked > 203.0.113.1 udp 53 = allow: failsafe port, egress
         eth0@untracked > 203.0.113.1 udp 54 = deny: GlobalNetworkPolicy p egress[0]",
    );
}

#[test]
fn a_failsafe_port_may_be_for_some_peers_only() {
    host().failsafe("tcp/22@203.0.113.0/24", "").says(
        "eth0@host < 203.0.113.9 tcp 22 = allow: failsafe port, ingress
         eth0@host < 203.0.114.9 tcp 22 = deny: no profile allows ingress
         eth0@host < 2001:db8::9 tcp 22 = deny: no profile allows ingress",
    );
}

#[test]
fn failsafe_ports_come_before_a_policy_that_is_not_valid() {
    let cluster = host().failsafe("tcp/22", "").policy(global("odd").selects("has(role)").broken());
    cluster.says(
        "eth0@host < 203.0.113.9 tcp 22 = allow: failsafe port, ingress
         eth0@host < 203.0.113.9 tcp 23 = deny: GlobalNetworkPolicy odd is not valid and denies ingress",
    );
}

#[test]
fn failsafe_ports_mean_nothing_at_pods() {
    let cluster = host().failsafe("tcp/22", "").policy(kubernetes("shop/web").ingress([]));
    cluster.says(
        "shop/web < 203.0.113.9 tcp 22 = deny: isolated by shop/web for ingress, no rule allows",
    );
}

#[test]
fn the_failsafe_ports_are_calicos_lists() {
    let mut cluster = host();
    cluster.model.failsafe = Failsafe::default();
    let open = |direction: &str, list: &[(&str, u16)]| {
        let mut table = String::new();
        for protocol in ["tcp", "udp"] {
            for port in [22, 53, 67, 68, 179, 2379, 2380, 5473, 6443, 6666, 6667] {
                let (sign, word) =
                    if direction == "in" { ("<", "ingress") } else { (">", "egress") };
                let answer = if list.contains(&(protocol, port)) {
                    format!("allow: failsafe port, {word}")
                } else {
                    format!("deny: no profile allows {word}")
                };
                writeln!(table, "eth0@host {sign} 203.0.113.1 {protocol} {port} = {answer}")
                    .unwrap();
            }
        }
        table
    };
    let tcp = [179, 2379, 2380, 5473, 6443, 6666, 6667].map(|port| ("tcp", port));
    let ingress = [&tcp[..], &[("tcp", 22), ("udp", 68)]].concat();
    let egress = [&tcp[..], &[("udp", 53), ("udp", 67)]].concat();
    cluster.says(&(open("in", &ingress) + &open("out", &egress)));
}

#[test]
fn profiles_decide_in_order_where_no_policy_does() {
    let mut cluster = host()
        .profile("first", "", [log(), allow().tcp("80")], [])
        .profile(
            "second",
            "",
            [deny().tcp("80-81"), pass().tcp("82"), allow().tcp("82-83")],
            [allow()],
        )
        .policy(
            global("p")
                .tier("kube-baseline")
                .selects("has(role)")
                .ingress([deny().tcp("83"), pass()]),
        );
    cluster = cluster.host("eth0", "role=node", "192.0.2.10", "first second");
    cluster.says(
        "eth0@host < 203.0.113.1 tcp 80 = allow: profile first ingress[1]; Pass GlobalNetworkPolicy p ingress[1]
         eth0@host < 203.0.113.1 tcp 81 = deny: profile second ingress[0]; Pass GlobalNetworkPolicy p ingress[1]
         eth0@host < 203.0.113.1 tcp 82 = deny: profile second ingress[1]; Pass GlobalNetworkPolicy p ingress[1]
         eth0@host < 203.0.113.1 tcp 83 = deny: GlobalNetworkPolicy p ingress[0]
         eth0@host < 203.0.113.1 tcp 84 = deny: no profile allows ingress; Pass GlobalNetworkPolicy p ingress[1]
         eth0@host > 203.0.113.1 tcp 84 = allow: profile second egress[0]",
    );
}

#[test]
fn a_profile_that_is_missing_denies_where_it_stands() {
    let cluster = host()
        .profile("open", "", [allow().tcp("80")], [])
        .profile("late", "", [allow()], [allow()])
        .host("eth0", "role=node", "192.0.2.10", "open ghost late");
    cluster.says(
        "eth0@host < 203.0.113.1 tcp 80 = allow: profile open ingress[0]
         eth0@host < 203.0.113.1 tcp 81 = deny: profile ghost does not exist, ingress
         eth0@host > 203.0.113.1 tcp 81 = deny: profile ghost does not exist, egress",
    );
}

#[test]
fn a_tier_that_denies_leaves_nothing_to_the_profiles() {
    let cluster = host()
        .profile("open", "", [allow()], [allow()])
        .host("eth0", "role=node", "192.0.2.10", "open")
        .policy(global("p").selects("has(role)").ingress([]));
    cluster.says(
        "eth0@host < 203.0.113.1 tcp 80 = deny: isolated by GlobalNetworkPolicy p for ingress, no rule allows
         eth0@host > 203.0.113.1 tcp 80 = allow: profile open egress[0]",
    );
}

#[test]
fn host_endpoints_inherit_the_labels_of_their_profiles_an_earlier_ones_first() {
    let cluster = host()
        .profile("one", "zone=x", [], [])
        .profile("two", "zone=y kind=z", [], [])
        .host("eth0", "role=node", "192.0.2.10", "one two")
        .policy(
            global("p").selects("zone == 'x' && kind == 'z' && role == 'node'").ingress([allow()]),
        )
        .policy(
            kubernetes("shop/web").ingress([allow().from([who("zone == 'x' && role == 'node'")])]),
        );
    cluster.says(
        "eth0@host < 203.0.113.1 tcp 80 = allow: GlobalNetworkPolicy p ingress[0]
         shop/web < 192.0.2.10 tcp 80 = allow: shop/web ingress[0]
         shop/web < 192.0.2.11 tcp 80 = deny: isolated by shop/web for ingress, no rule allows",
    );
}

#[test]
fn a_policy_selects_once_what_has_one_of_its_values_itself_and_another_by_a_profile() {
    let cluster = host()
        .profile("one", "zone=x", [], [])
        .host("eth0", "zone=y", "192.0.2.10", "one")
        .policy(global("p").selects("zone in {'x', 'y'}").ingress([allow()]));
    let image = cluster.image();
    let chain = image.chain_at(&name("/eth0"), Stage::Host, Direction::Ingress).unwrap();
    assert_eq!(image.describe(chain).unwrap().list.policies.len(), 1);
}

#[test]
fn namespaced_policies_do_not_select_host_endpoints() {
    let cluster = host().policy(kubernetes("shop/all").ingress([allow()]));
    cluster.says("eth0@host < 203.0.113.1 tcp 80 = deny: no profile allows ingress");
}
