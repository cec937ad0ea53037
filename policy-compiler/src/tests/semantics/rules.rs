//! Rule matching.

use crate::model::*;
use crate::tests::build::*;

/// The endpoint `shop/web`, with two peers and a network set.
fn shop() -> Cluster {
    Cluster::new()
        .namespace("shop", "team=a")
        .namespace("ops", "team=b")
        .pod_with("shop/web", "app=web", "10.0.0.1 fd00::1", "http=tcp/8080 dns=udp/53")
        .pod_with("shop/db", "app=db", "10.0.0.2 fd00::2", "sql=tcp/5432")
        .pod("ops/probe", "app=probe", "10.0.9.1")
}

/// Checks decisions in `shop` with one ingress policy for `shop/web`.
#[track_caller]
fn ingress<const N: usize>(rules: [Rule; N], table: &str) {
    let policy = global("p").selects("app == 'web'");
    says(&shop().policy(policy.ingress(rules)), "shop/web <", table);
}

/// The same for egress.
#[track_caller]
fn egress<const N: usize>(rules: [Rule; N], table: &str) {
    let policy = global("p").selects("app == 'web'");
    says(&shop().policy(policy.egress(rules)), "shop/web >", table);
}

/// Checks lines `PEER PACKET = RULE`. RULE is the index of the rule of `p` that allows, `!INDEX` of a rule that denies,
/// or `-` if none decides.
#[track_caller]
fn says(cluster: &Cluster, question: &str, table: &str) {
    let direction = if question.ends_with('<') { "ingress" } else { "egress" };
    let line = |line: &str| {
        let (packet, answer) = line.split_once(" = ").unwrap();
        let answer = match (answer, answer.strip_prefix('!')) {
            ("-", _) => {
                format!("deny: isolated by GlobalNetworkPolicy p for {direction}, no rule allows")
            }
            (_, Some(index)) => format!("deny: GlobalNetworkPolicy p {direction}[{index}]"),
            (index, None) => format!("allow: GlobalNetworkPolicy p {direction}[{index}]"),
        };
        format!("{question} {packet} = {answer}")
    };
    let lines = table.lines().map(str::trim).filter(|line| !line.is_empty());
    cluster.says(&lines.map(line).collect::<Vec<_>>().join("\n"));
}

#[test]
fn within_a_rule_everything_is_and() {
    ingress(
        [allow()
            .tcp("80")
            .from([who("app == 'db'").within("10.0.0.0/24")])
            .source_ports("1000-2000")],
        "10.0.0.2 tcp 1000-80 = 0
         10.0.0.2 tcp 999-80 = -
         10.0.0.2 tcp 1000-81 = -
         10.0.0.2 udp 1000-80 = -
         10.0.0.3 tcp 1000-80 = -
         fd00::2 tcp 1000-80 = -",
    );
}

#[test]
fn lists_inside_one_field_are_or() {
    ingress(
        [allow().from([nets("10.0.0.0/31 10.0.0.8/32"), who("app == 'probe'")]).tcp("80 90-91")],
        "10.0.0.0 tcp 80 = 0
         10.0.0.8 tcp 91 = 0
         10.0.9.1 tcp 90 = 0
         10.0.0.2 tcp 80 = -
         10.0.0.0 tcp 89 = -",
    );
}

#[test]
fn no_list_of_peers_is_everybody_and_an_empty_one_nobody() {
    ingress([allow()], "203.0.113.9 tcp 80 = 0");
    ingress([allow().from([])], "203.0.113.9 tcp 80 = -");
}

#[test]
fn numeric_or_named_ports() {
    ingress(
        [allow().ports("80 http dns")],
        "10.0.0.2 tcp 80 = 0
         10.0.0.2 udp 80 = 0
         10.0.0.2 tcp 8080 = 0
         10.0.0.2 udp 8080 = -
         10.0.0.2 udp 53 = 0
         10.0.0.2 tcp 53 = -",
    );
}

#[test]
fn every_not_field_is_one_more_negation_over_the_packet() {
    ingress(
        [allow().not_of(17).from([not_who("app == 'db'").but("10.0.0.8/32")])],
        "10.0.0.3 tcp 80 = 0
         10.0.0.3 udp 80 = -
         10.0.0.2 tcp 80 = -
         10.0.0.8 tcp 80 = -
         10.0.0.3 proto 50 = 0",
    );
}

#[test]
fn not_ports_need_a_packet_that_shows_its_port_where_its_protocol_has_ports() {
    ingress(
        [allow().not_ports("80 http").not_source_ports("1-10")],
        "10.0.0.2 tcp 81 = 0
         10.0.0.2 tcp 80 = -
         10.0.0.2 tcp 8080 = -
         10.0.0.2 tcp 10-81 = -
         10.0.0.2 tcp 11-81 = 0
         10.0.0.2 tcp = -
         10.0.0.2 icmp 8/0 = 0",
    );
}

#[test]
fn source_ports_are_those_of_the_sender_in_both_directions() {
    ingress(
        [allow().of(17).source_ports("53")],
        "10.0.0.2 udp 53-9 = 0
         10.0.0.2 udp 9-53 = -",
    );
    egress(
        [allow().of(17).source_ports("dns")],
        "10.0.0.2 udp 53-9 = 0
         10.0.0.2 udp 9-53 = -",
    );
}

#[test]
fn a_rule_that_matches_by_source_port_leaves_the_others_to_the_next_rule() {
    ingress(
        [deny().tcp("80").source_ports("1-1023"), allow().tcp("80-81")],
        "10.0.0.2 tcp 1023-80 = !0
         10.0.0.2 tcp 1024-80 = 1
         10.0.0.2 tcp 1023-81 = 1",
    );
}

#[test]
fn with_the_label_absent_the_negations_hold_and_nothing_else_does() {
    ingress(
        [allow().tcp("1").from([who("role != 'x'")]), allow().tcp("2").from([who("role == 'x'")])],
        "10.0.0.2 tcp 1 = 0
         10.0.0.2 tcp 2 = -",
    );
}

#[test]
fn a_selector_matches_members_only_and_the_negation_everybody_else() {
    ingress(
        [allow().tcp("1").from([who("all()")]), allow().tcp("2").from([not_who("all()")])],
        "10.0.0.2 tcp 1 = 0
         10.0.0.2 tcp 2 = -
         203.0.113.1 tcp 1 = -
         203.0.113.1 tcp 2 = 1",
    );
}

#[test]
fn keys_with_the_namespaces_prefix_read_its_labels() {
    ingress(
        [allow().from([who("pcns.team == 'b'")])],
        "10.0.9.1 tcp 1 = 0
         10.0.0.2 tcp 1 = -
         203.0.113.1 tcp 1 = -",
    );
    let by_name = who("pcns.projectcalico.org/name == 'shop'");
    ingress(
        [allow().from([by_name])],
        "10.0.9.1 tcp 1 = -
         10.0.0.2 tcp 1 = 0",
    );
}

#[test]
fn a_label_of_ones_own_under_a_reserved_key_is_not_seen() {
    let cluster = shop()
        .pod("ops/liar", "pcns.team=a projectcalico.org/namespace=shop app=liar", "10.0.9.2")
        .policy(global("p").selects("app == 'web'").ingress([
            allow().tcp("1").from([who("pcns.team == 'a'")]),
            allow().tcp("2").from([who("projectcalico.org/namespace == 'shop'")]),
        ]));
    says(
        &cluster,
        "shop/web <",
        "10.0.9.2 tcp 1 = -
         10.0.9.2 tcp 2 = -
         10.0.0.2 tcp 1 = 0
         10.0.0.2 tcp 2 = 1",
    );
}

#[test]
fn service_accounts_match_by_name_and_by_label() {
    let cluster = shop().account("ops/probe", "robot", "kind=machine").policy(
        global("p").selects("app == 'web'").ingress([
            allow().tcp("1").from([who("projectcalico.org/serviceaccount == 'robot'")]),
            allow().tcp("2").from([who("pcsa.kind == 'machine'")]),
        ]),
    );
    says(
        &cluster,
        "shop/web <",
        "10.0.9.1 tcp 1 = 0
         10.0.9.1 tcp 2 = 1
         10.0.0.2 tcp 1 = -
         10.0.0.2 tcp 2 = -",
    );
}

#[test]
fn the_orchestrator_label_leaves_out_host_endpoints_and_network_sets() {
    let cluster = shop()
        .network_set("far", "app=far", "192.0.2.0/24")
        .host("h", "", "10.0.9.9", "")
        .policy(global("p").selects("app == 'web'").ingress([
            allow().tcp("1").from([who("projectcalico.org/orchestrator == 'k8s'")]),
            allow().from([who("all()")]),
        ]));
    says(
        &cluster,
        "shop/web <",
        "10.0.0.2 tcp 1 = 0
         192.0.2.1 tcp 1 = 1
         10.0.9.9 tcp 1 = 1
         203.0.113.1 tcp 1 = -",
    );
}

#[test]
fn nets_without_an_entry_of_the_packets_family_make_the_rule_vanish_for_it() {
    ingress(
        [allow().from([nets("10.0.0.0/8")])],
        "10.0.0.2 tcp 1 = 0
         fd00::2 tcp 1 = -",
    );
    let but = Entity::default().but("10.0.0.0/8");
    ingress(
        [allow().from([but])],
        "203.0.113.1 tcp 1 = 0
         10.0.0.2 tcp 1 = -
         fd00::2 tcp 1 = -",
    );
    ingress(
        [allow().from([nets("10.0.0.0/8 fd00::/64")])],
        "10.0.0.2 tcp 1 = 0
         fd00::2 tcp 1 = 0
         fd01::2 tcp 1 = -",
    );
}

#[test]
fn nets_of_the_local_end_count_too() {
    ingress(
        [allow().to([nets("10.0.0.0/31")]), deny().to([nets("fd00::1/128")])],
        "10.0.0.2 tcp 1 = 0
         fd00::2 tcp 1 = !1",
    );
}

#[test]
fn a_block_with_exceptions_matches_pods_inside_too() {
    ingress(
        [allow().from([nets("10.0.0.0/24").but("10.0.0.2/32 10.0.0.128/25")])],
        "10.0.0.1 tcp 1 = 0
         10.0.0.2 tcp 1 = -
         10.0.0.127 tcp 1 = 0
         10.0.0.128 tcp 1 = -
         10.0.1.0 tcp 1 = -",
    );
}

#[test]
fn the_longest_of_nested_nets_does_not_hide_the_others() {
    ingress(
        [allow().tcp("1").from([nets("10.0.0.0/8")]), allow().tcp("2").from([nets("10.0.0.0/30")])],
        "10.0.0.2 tcp 1 = 0
         10.0.0.2 tcp 2 = 1
         10.9.0.2 tcp 1 = 0
         10.9.0.2 tcp 2 = -",
    );
}

#[test]
fn network_sets_nest_and_overlap_with_pods() {
    let cluster = shop()
        .network_set("outer", "zone=outer", "10.0.0.0/8 2001:db8::/32")
        .network_set("ops/inner", "zone=inner", "10.0.9.0/24")
        .policy(global("p").selects("app == 'web'").ingress([
            allow().tcp("1").from([who("zone == 'outer'")]),
            allow().tcp("2").from([who("zone == 'inner'")]),
            allow().tcp("3").from([who("pcns.team == 'b' && has(zone)")]),
            allow().tcp("4").from([not_who("zone == 'outer'")]),
        ]));
    says(
        &cluster,
        "shop/web <",
        "10.0.9.1 tcp 1 = 0
         10.0.9.1 tcp 2 = 1
         10.0.9.1 tcp 3 = 2
         10.0.9.1 tcp 4 = -
         10.0.0.2 tcp 1 = 0
         10.0.0.2 tcp 2 = -
         10.0.0.2 tcp 3 = -
         2001:db8::1 tcp 1 = 0
         203.0.113.1 tcp 4 = 3",
    );
}

#[test]
fn a_port_without_protocol_is_of_tcp_udp_and_sctp() {
    ingress(
        [allow().ports("80")],
        "10.0.0.2 tcp 80 = 0
         10.0.0.2 udp 80 = 0
         10.0.0.2 sctp 80 = 0
         10.0.0.2 proto 50 = -",
    );
}

#[test]
fn a_protocol_without_ports_is_all_of_it() {
    ingress(
        [allow().of(132)],
        "10.0.0.2 sctp 80 = 0
         10.0.0.2 sctp = 0
         10.0.0.2 tcp 80 = -",
    );
}

#[test]
fn both_ends_of_a_port_range_are_in_it() {
    ingress(
        [allow().tcp("0-9 100-200 65535")],
        "10.0.0.2 tcp 0 = 0
         10.0.0.2 tcp 9 = 0
         10.0.0.2 tcp 10 = -
         10.0.0.2 tcp 99 = -
         10.0.0.2 tcp 100 = 0
         10.0.0.2 tcp 200 = 0
         10.0.0.2 tcp 201 = -
         10.0.0.2 tcp 65534 = -
         10.0.0.2 tcp 65535 = 0",
    );
}

#[test]
fn a_rule_without_ports_matches_every_protocol() {
    ingress(
        [allow().from([who("app == 'db'")])],
        "10.0.0.2 tcp = 0
         10.0.0.2 sctp 9 = 0
         10.0.0.2 icmp 8/0 = 0
         fd00::2 icmp6 128/0 = 0
         10.0.0.2 proto 0 = 0
         10.0.0.2 proto 255 = 0",
    );
}

#[test]
fn a_named_port_resolves_only_among_ports_of_its_own_protocol() {
    ingress(
        [allow().tcp("http dns")],
        "10.0.0.2 tcp 8080 = 0
         10.0.0.2 udp 8080 = -
         10.0.0.2 tcp 53 = -
         10.0.0.2 udp 53 = -",
    );
}

#[test]
fn a_port_name_that_nobody_has_matches_nothing() {
    ingress([allow().tcp("nobody")], "10.0.0.2 tcp 80 = -");
    egress([allow().tcp("nobody")], "10.0.0.2 tcp 80 = -");
}

#[test]
fn a_named_port_of_ingress_is_the_selected_pods() {
    let cluster = shop()
        .pod_with("shop/old", "app=web", "10.0.0.5", "http=tcp/80")
        .policy(global("p").selects("app == 'web'").ingress([allow().tcp("http")]));
    says(&cluster, "shop/web <", "10.0.0.5 tcp 8080 = 0\n10.0.0.5 tcp 80 = -");
    says(&cluster, "shop/old <", "10.0.0.1 tcp 8080 = -\n10.0.0.1 tcp 80 = 0");
}

#[test]
fn a_named_port_of_egress_is_each_destinations() {
    let cluster = shop()
        .pod_with("ops/other", "app=other", "10.0.9.2", "sql=tcp/3306")
        .policy(global("p").selects("app == 'web'").egress([allow().tcp("sql")]));
    says(
        &cluster,
        "shop/web >",
        "10.0.0.2 tcp 5432 = 0
         10.0.0.2 tcp 3306 = -
         10.0.9.2 tcp 3306 = 0
         10.0.9.2 tcp 5432 = -
         10.0.9.1 tcp 5432 = -
         203.0.113.1 tcp 5432 = -",
    );
}

#[test]
fn a_member_that_the_selector_does_not_match_lends_its_named_ports_to_nobody() {
    let cluster = shop().pod_with("ops/shadow", "app=shadow", "10.0.0.2", "sql=tcp/1").policy(
        global("p").selects("app == 'web'").egress([
            allow().tcp("sql").to([who("app == 'db'")]),
            allow().of(6).to([who("app == 'db'")]).not_ports("sql"),
        ]),
    );
    says(
        &cluster,
        "shop/web >",
        "10.0.0.2 tcp 5432 = 0
         10.0.0.2 tcp 1 = -
         10.0.0.2 tcp 2 = 1",
    );
}

#[test]
fn a_service_in_egress_is_its_endpoints_with_their_ports() {
    let cluster = shop()
        .service("shop/sql", "10.0.0.2 10.0.9.1", "tcp/5432 udp/9")
        .service("shop/sql", "10.0.9.1 203.0.113.7", "tcp/3306")
        .policy(global("p").selects("app == 'web'").egress([allow().to([serving("shop/sql")])]));
    says(
        &cluster,
        "shop/web >",
        "10.0.0.2 tcp 5432 = 0
         10.0.0.2 tcp 3306 = -
         10.0.0.2 udp 9 = 0
         10.0.0.2 udp 10 = -
         10.0.0.2 udp = -
         10.0.9.1 tcp 5432 = 0
         10.0.9.1 tcp 3306 = 0
         203.0.113.7 tcp 3306 = 0
         203.0.113.7 tcp 5432 = -
         fd00::2 tcp 5432 = -
         10.0.0.2 icmp 8/0 = -",
    );
}

#[test]
fn a_service_in_ingress_is_its_addresses_only() {
    let cluster = shop()
        .service("shop/sql", "10.0.0.2", "tcp/5432")
        .policy(global("p").selects("app == 'web'").ingress([allow().from([serving("shop/sql")])]));
    says(
        &cluster,
        "shop/web <",
        "10.0.0.2 tcp 1-2 = 0
         10.0.0.2 icmp 8/0 = 0
         10.0.9.1 tcp 5432-5432 = -",
    );
}

#[test]
fn a_service_that_is_missing_or_has_no_ports_matches_nothing() {
    let cluster = shop().service("shop/headless", "10.0.0.2", "").policy(
        global("p")
            .selects("app == 'web'")
            .egress([allow().to([serving("shop/ghost")]), allow().to([serving("shop/headless")])]),
    );
    says(&cluster, "shop/web >", "10.0.0.2 tcp 80 = -");
}

#[test]
fn icmp_by_type_and_code() {
    ingress(
        [
            allow().icmp(ICMP, Some(8), Some(0)),
            allow().icmp(ICMP, Some(3), None),
            allow().icmp(ICMPV6, Some(128), None),
        ],
        "10.0.0.2 icmp 8/0 = 0
         10.0.0.2 icmp 8/1 = -
         10.0.0.2 icmp 3/255 = 1
         10.0.0.2 icmp 4/0 = -
         10.0.0.2 icmp = -
         fd00::2 icmp6 128/7 = 2
         fd00::2 icmp6 129/0 = -
         10.0.0.2 tcp 8 = -",
    );
}

#[test]
fn icmp_without_type_is_every_icmp_packet() {
    ingress(
        [allow().icmp(ICMP, None, None)],
        "10.0.0.2 icmp 8/0 = 0
         10.0.0.2 icmp = 0
         fd00::2 icmp6 128/0 = -",
    );
}

#[test]
fn not_icmp_negates_the_pair_as_one() {
    ingress(
        [allow().of(ICMP).not_icmp(8, Some(1))],
        "10.0.0.2 icmp 8/1 = -
         10.0.0.2 icmp 8/0 = 0
         10.0.0.2 icmp 3/1 = 0
         10.0.0.2 icmp = -",
    );
    ingress(
        [allow().of(ICMP).not_icmp(8, None)],
        "10.0.0.2 icmp 8/1 = -
         10.0.0.2 icmp 9/0 = 0",
    );
}

#[test]
fn icmp_is_of_ipv4_and_icmpv6_of_ipv6() {
    ingress(
        [allow().of(ICMP), deny().of(ICMPV6)],
        "10.0.0.2 icmp 8/0 = 0
         10.0.0.2 icmp6 128/0 = -
         fd00::2 icmp 8/0 = -
         fd00::2 icmp6 128/0 = !1",
    );
}

#[test]
fn a_rule_of_one_ip_version_leaves_the_other_alone() {
    ingress(
        [allow().family(Family::V6)],
        "10.0.0.2 tcp 80 = -
         fd00::2 tcp 80 = 0",
    );
}

#[test]
fn a_rule_with_ports_never_matches_icmp_or_what_shows_no_ports() {
    ingress(
        [allow().ports("0-65535")],
        "10.0.0.2 tcp 0 = 0
         10.0.0.2 tcp = -
         10.0.0.2 udp = -
         10.0.0.2 icmp 8/0 = -
         10.0.0.2 proto 50 = -",
    );
}

#[test]
fn protocols_by_number() {
    ingress(
        [allow().of(50), allow().not_of(4)],
        "10.0.0.2 proto 50 = 0
         10.0.0.2 proto 4 = -
         10.0.0.2 proto 255 = 1
         10.0.0.2 tcp 80 = 1",
    );
}
