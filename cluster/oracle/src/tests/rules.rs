//! The matching of rules, in the terms of Calico's rules.

use std::net::IpAddr;

use super::cluster::{
    Cluster, ICMP, SCTP, TCP, UDP, address, db, egress, from, in_tier, ingress, ip, lab, matching,
    pairs, pod_at, rule, stranger, to, web,
};
use crate::{L4Header, Packet, Party};
use manx_objects::object::calico::Action::{Allow, Deny, Log, Pass};
use manx_objects::object::calico::{
    EntityRule, HostEndpoint, IcmpMatch, Port, Rule, ServiceAccountMatch, ServiceMatch, Subject,
};
use manx_objects::object::{EndpointPort, EndpointSlice, Kind, Object, Protocol};

/// Returns whether a global ingress policy for `db` with this one rule allows a packet to `db`.
fn takes(rule: &Rule, source: &Party, packet: Packet) -> bool {
    Cluster::new().policy("p", ingress("app == 'db'", vec![rule.clone()])).passes(
        source,
        &db(),
        packet,
    )
}

fn tcp(port: u16) -> Packet {
    Packet::to_port(TCP, Some(port))
}

fn nets(nets: &[&str]) -> Vec<ipnet::IpNet> {
    nets.iter().map(|net| net.parse().unwrap()).collect()
}

fn with_source(source: EntityRule) -> Rule {
    from(Allow, source)
}

fn with_ports(protocol: Option<u8>, ports: Vec<Port>) -> Rule {
    let destination = EntityRule { ports, ..EntityRule::default() };
    Rule { protocol, ..to(Allow, destination) }
}

#[test]
fn within_a_rule_everything_is_and() {
    let destination = EntityRule { ports: vec![Port::Range(80, 80)], ..EntityRule::default() };
    let both =
        Rule { source: matching("app == 'web'"), protocol: Some(TCP), ..to(Allow, destination) };
    assert!(takes(&both, &web(), tcp(80)));
    assert!(!takes(&both, &web(), tcp(81)));
    assert!(!takes(&both, &web(), Packet::to_port(UDP, Some(80))));
    assert!(!takes(&both, &stranger(), tcp(80)));
    let source = EntityRule { nets: nets(&["10.0.1.0/24"]), ..matching("app == 'web'") };
    assert!(takes(&with_source(source.clone()), &web(), tcp(80)));
    assert!(!takes(&with_source(source), &lab(), tcp(80)), "in the selector, not in the net");
}

#[test]
fn lists_inside_one_field_are_or() {
    let listed = with_source(EntityRule {
        nets: nets(&["192.0.2.0/24", "10.0.2.0/24"]),
        ..EntityRule::default()
    });
    assert!(takes(&listed, &stranger(), tcp(1)) && takes(&listed, &lab(), tcp(1)));
    assert!(!takes(&listed, &web(), tcp(1)));
}

#[test]
fn numeric_ports_or_named_ports() {
    let ports = vec![Port::Range(1, 2), Port::Name("http".to_owned())];
    let mixed = with_ports(Some(TCP), ports);
    for (port, expected) in [(1, true), (2, true), (3, false), (8080, true), (80, false)] {
        assert_eq!(takes(&mixed, &web(), tcp(port)), expected, "{port}");
    }
}

#[test]
fn every_not_field_is_one_more_and_of_a_negation_over_the_packet() {
    let not_nets = EntityRule { not_nets: nets(&["10.0.2.0/24"]), ..EntityRule::default() };
    assert!(takes(&with_source(not_nets.clone()), &web(), tcp(1)));
    assert!(!takes(&with_source(not_nets), &lab(), tcp(1)));
    let both = EntityRule {
        nets: nets(&["10.0.0.0/8"]),
        not_nets: nets(&["10.0.2.0/24"]),
        ..EntityRule::default()
    };
    assert!(takes(&with_source(both.clone()), &web(), tcp(1)));
    assert!(!takes(&with_source(both), &stranger(), tcp(1)));
    let not_selector =
        EntityRule { not_selector: Some("app == 'web'".to_owned()), ..EntityRule::default() };
    assert!(takes(&with_source(not_selector.clone()), &stranger(), tcp(1)));
    assert!(!takes(&with_source(not_selector), &lab(), tcp(1)));
    let not_tcp = Rule { not_protocol: Some(TCP), ..rule(Allow) };
    assert!(!takes(&not_tcp, &web(), tcp(1)));
    assert!(takes(&not_tcp, &web(), Packet::to_port(UDP, Some(1))));
    let not_ports = EntityRule {
        not_ports: vec![Port::Range(1, 10), Port::Name("http".to_owned())],
        ..EntityRule::default()
    };
    let not_ports = Rule { protocol: Some(TCP), ..to(Allow, not_ports) };
    for (port, expected) in [(1, false), (10, false), (11, true), (8080, false), (80, true)] {
        assert_eq!(takes(&not_ports, &web(), tcp(port)), expected, "{port}");
    }
    assert!(!takes(&not_ports, &web(), Packet::bare(TCP)), "a later fragment may have any port");
    let not_ports = Rule { protocol: None, ..not_ports };
    assert!(takes(&not_ports, &web(), Packet::bare(ICMP)), "ICMP has no ports");
}

#[test]
fn an_absent_or_empty_rule_selector_is_no_criterion_and_all_takes_whoever_has_labels() {
    assert!(takes(&rule(Allow), &stranger(), tcp(1)));
    assert!(takes(&with_source(matching("")), &stranger(), tcp(1)));
    assert!(!takes(&with_source(matching("all()")), &stranger(), tcp(1)));
    assert!(takes(&with_source(matching("all()")), &lab(), tcp(1)));
}

#[test]
fn source_ports_are_the_senders() {
    let source = EntityRule { ports: vec![Port::Range(1000, 1010)], ..EntityRule::default() };
    let rule = Rule { protocol: Some(TCP), ..with_source(source) };
    let sent = |source| Packet { protocol: TCP, l4: L4Header::Ports { source, destination: 1005 } };
    assert!(takes(&rule, &web(), sent(1000)) && takes(&rule, &web(), sent(1010)));
    assert!(!takes(&rule, &web(), sent(999)) && !takes(&rule, &web(), sent(1011)));
    // A named port of the source belongs to the source itself.
    let named = EntityRule { ports: vec![Port::Name("http".to_owned())], ..EntityRule::default() };
    let rule = with_source(named);
    assert!(takes(&rule, &web(), sent(80)));
    assert!(!takes(&rule, &web(), sent(8080)) && !takes(&rule, &stranger(), sent(80)));
}

#[test]
fn a_namespace_selector_reads_the_namespaces_labels() {
    let there = |selector: &str| {
        with_source(EntityRule {
            namespace_selector: Some(selector.to_owned()),
            ..EntityRule::default()
        })
    };
    let named = there("kubernetes.io/metadata.name == 'lab'");
    assert!(takes(&named, &lab(), tcp(1)) && !takes(&named, &web(), tcp(1)));
    let by_name = there("projectcalico.org/name == 'lab'");
    assert!(takes(&by_name, &lab(), tcp(1)) && !takes(&by_name, &web(), tcp(1)));
    let team = there("team == 'a'");
    assert!(takes(&team, &web(), tcp(1)) && !takes(&team, &lab(), tcp(1)));
    assert!(!takes(&there("app == 'web'"), &web(), tcp(1)), "its own labels are not read");
}

#[test]
fn in_a_namespace_selector_all_means_has_one_and_global_has_none() {
    let takes = |selector: &str, source: &Party| {
        let source_rule =
            EntityRule { namespace_selector: Some(selector.to_owned()), ..EntityRule::default() };
        Cluster::new()
            .set("world", &[], &["192.0.2.0/24"])
            .set("shop/own", &[], &["198.51.100.0/24"])
            .policy("p", ingress("app == 'db'", vec![from(Allow, source_rule)]))
            .allows(source, &db(), 80)
    };
    for (selector, pod, own, world) in
        [("all()", true, true, false), ("global()", false, false, true)]
    {
        assert_eq!(takes(selector, &lab()), pod, "{selector}");
        assert_eq!(takes(selector, &address("198.51.100.1")), own, "{selector}");
        assert_eq!(takes(selector, &stranger()), world, "{selector}");
        assert!(
            !takes(selector, &address("203.0.113.1")),
            "{selector}: an address without an endpoint"
        );
    }
    // A label of a missing namespace is absent.
    assert!(takes("team != 'a'", &stranger()));
}

/// Returns a cluster with a namespaced policy in shop that allows this source to `db`.
fn in_shop(source: EntityRule) -> Cluster {
    Cluster::new()
        .set("world", &[("app", "web")], &["192.0.2.0/24"])
        .policy("shop/p", ingress("app == 'db'", vec![from(Allow, source)]))
}

#[test]
fn in_a_namespaced_policy_a_rules_selectors_keep_to_its_namespace() {
    let cluster = in_shop(matching("app == 'web'"));
    assert!(cluster.allows(&web(), &db(), 80));
    assert!(!cluster.allows(&lab(), &db(), 80) && !cluster.allows(&stranger(), &db(), 80));
    let names = ServiceAccountMatch {
        names: vec!["default".to_owned(), "runner".to_owned()],
        selector: None,
    };
    let cluster = in_shop(EntityRule { service_accounts: Some(names), ..EntityRule::default() });
    assert!(cluster.allows(&web(), &db(), 80) && !cluster.allows(&lab(), &db(), 80));
    assert!(in_shop(EntityRule::default()).allows(&lab(), &db(), 80), "nothing selects");
}

#[test]
fn unless_a_namespace_selector_says_otherwise() {
    let anywhere =
        EntityRule { namespace_selector: Some("all()".to_owned()), ..matching("app == 'web'") };
    let cluster = in_shop(anywhere);
    assert!(cluster.allows(&lab(), &db(), 80) && cluster.allows(&web(), &db(), 80));
    assert!(!cluster.allows(&stranger(), &db(), 80));
    let global =
        EntityRule { namespace_selector: Some("global()".to_owned()), ..matching("app == 'web'") };
    let cluster = in_shop(global);
    assert!(!cluster.allows(&web(), &db(), 80) && cluster.allows(&stranger(), &db(), 80));
}

#[test]
fn a_not_selector_keeps_to_the_namespace_and_excludes_from_anywhere() {
    let not = |selector: &str| EntityRule {
        not_selector: Some(selector.to_owned()),
        ..EntityRule::default()
    };
    let cluster = in_shop(not("app == 'nobody'"));
    assert!(cluster.allows(&web(), &db(), 80));
    assert!(
        !cluster.allows(&lab(), &db(), 80) && !cluster.allows(&address("203.0.113.1"), &db(), 80)
    );
    // A global network set with shop/web's address excludes this address again.
    let cluster = in_shop(not("kind == 'odd'"));
    assert!(cluster.allows(&web(), &db(), 80));
    assert!(!cluster.set("odd", &[("kind", "odd")], &["10.0.1.1/32"]).allows(&web(), &db(), 80));
}

#[test]
fn service_accounts_match_by_name_and_by_the_accounts_labels() {
    let by = |names: &[&str], selector: Option<&str>| {
        let accounts = ServiceAccountMatch {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            selector: selector.map(str::to_owned),
        };
        with_source(EntityRule { service_accounts: Some(accounts), ..EntityRule::default() })
    };
    let allows = |rule: Rule, source: &Party| {
        Cluster::new()
            .account("shop/runner", &[("role", "front")])
            .policy("p", ingress("app == 'db'", vec![rule]))
            .allows(source, &db(), 80)
    };
    assert!(allows(by(&["runner"], None), &web()));
    assert!(!allows(by(&["runner"], None), &lab()));
    assert!(allows(by(&["default"], None), &lab()), "an absent one is `default`");
    assert!(allows(by(&[], Some("role == 'front'")), &web()));
    assert!(!allows(by(&[], Some("role == 'front'")), &lab()));
    assert!(!allows(by(&["default"], Some("role == 'front'")), &web()), "both must hold");
    assert!(!allows(by(&[], Some("all()")), &stranger()), "no endpoint has the address");
    assert!(allows(by(&[], None), &stranger()), "nothing is asked");
    // A network set has no account. It matches all() and every negation about accounts.
    let set = |selector: &str| {
        Cluster::new()
            .set("world", &[], &["192.0.2.0/24"])
            .policy("p", ingress("app == 'db'", vec![by(&[], Some(selector))]))
            .allows(&stranger(), &db(), 80)
    };
    assert!(set("all()") && set("role != 'front'") && !set("!all()") && !set("has(role)"));
}

#[test]
fn an_account_has_its_name_as_a_label_if_it_exists() {
    let named = |cluster: Cluster, name: &str, source: &Party| {
        let selector = Some(format!("projectcalico.org/name == '{name}'"));
        let accounts = Some(ServiceAccountMatch { names: vec![], selector });
        let rule = with_source(EntityRule { service_accounts: accounts, ..EntityRule::default() });
        cluster.policy("p", ingress("app == 'db'", vec![rule])).allows(source, &db(), 80)
    };
    assert!(!named(Cluster::new(), "runner", &web()));
    assert!(named(Cluster::new().account("shop/runner", &[]), "runner", &web()));
    assert!(!named(Cluster::new().account("lab/runner", &[]), "runner", &web()));
    assert!(named(Cluster::new(), "default", &lab()), "Kubernetes makes it everywhere");
}

#[test]
fn a_list_of_nets_negated_or_not_without_the_packets_family_makes_the_rule_vanish() {
    let v6 = (pod_at("shop", "web", "fd00::1"), pod_at("shop", "db", "fd00::2"));
    let allows6 = |rule: Rule| {
        Cluster::new().policy("p", ingress("app == 'db'", vec![rule])).allows(&v6.0, &v6.1, 80)
    };
    let not = EntityRule { not_nets: nets(&["10.0.0.0/8"]), ..EntityRule::default() };
    assert!(!allows6(with_source(not.clone())), "notNets of IPv4 never match IPv6");
    assert!(!allows6(to(Allow, not)));
    let not6 = EntityRule { not_nets: nets(&["2001:db8::/32"]), ..EntityRule::default() };
    assert!(allows6(with_source(not6.clone())));
    assert!(!takes(&with_source(not6), &web(), tcp(80)));
    let v4 = EntityRule { nets: nets(&["0.0.0.0/0"]), ..EntityRule::default() };
    assert!(!allows6(with_source(v4)));
}

#[test]
fn ip_version_holds_for_one_family() {
    let only = |version| Rule { ip_version: Some(version), ..rule(Allow) };
    assert!(takes(&only(4), &web(), tcp(80)) && !takes(&only(6), &web(), tcp(80)));
}

#[test]
fn a_named_port_resolves_only_among_ports_of_the_packets_protocol_and_needs_no_protocol() {
    let cluster = |rule: Rule| Cluster::new().policy("p", ingress("app == 'web'", vec![rule]));
    let dns = || vec![Port::Name("dns".to_owned())];
    let udp = Packet::to_port(UDP, Some(53));
    assert!(cluster(with_ports(None, dns())).passes(&db(), &web(), udp), "an init container's");
    assert!(cluster(with_ports(Some(UDP), dns())).passes(&db(), &web(), udp));
    assert!(!cluster(with_ports(None, dns())).passes(&db(), &web(), tcp(53)));
    assert!(!cluster(with_ports(Some(TCP), dns())).passes(&db(), &web(), tcp(53)));
}

#[test]
fn in_egress_a_named_port_is_each_destinations_own() {
    let destination =
        EntityRule { ports: vec![Port::Name("http".to_owned())], ..EntityRule::default() };
    let cluster = Cluster::new().policy("p", egress("all()", vec![to(Allow, destination)]));
    assert!(cluster.allows(&web(), &db(), 8080) && !cluster.allows(&web(), &db(), 80));
    assert!(cluster.allows(&db(), &web(), 80) && !cluster.allows(&db(), &web(), 8080));
    assert!(!cluster.allows(&db(), &lab(), 80));
}

/// A host endpoint that also has shop/web's address. It has other labels, and uses the name http for other ports.
const TWIN: &str = "
apiVersion: projectcalico.org/v3
kind: HostEndpoint
metadata: {name: twin, labels: {app: twin}}
spec: {node: node-9, interfaceName: eth0, expectedIPs: [10.0.1.1], ports: [{name: http, protocol: TCP, port: 9000}]}
";

#[test]
fn a_selector_holds_of_an_address_if_one_holder_fits_all_of_it() {
    let cluster = |destination: EntityRule| {
        Cluster::new().text(TWIN).policy("p", egress("app == 'db'", vec![to(Allow, destination)]))
    };
    assert!(cluster(matching("app == 'web'")).allows(&db(), &web(), 1));
    assert!(cluster(matching("app == 'twin'")).allows(&db(), &web(), 1));
    assert!(!cluster(matching("app == 'web' && app == 'twin'")).allows(&db(), &web(), 1));
    // The named port belongs to the holder that the selector matches.
    let ports = vec![Port::Name("http".to_owned())];
    let named = EntityRule { ports, ..matching("app == 'twin'") };
    assert!(cluster(named.clone()).allows(&db(), &web(), 9000));
    assert!(!cluster(named).allows(&db(), &web(), 80));
    // A port is excluded if any holder gives it this name.
    let not_ports = vec![Port::Name("http".to_owned())];
    let not_named = EntityRule { not_ports, ..matching("app == 'twin'") };
    assert!(!cluster(not_named.clone()).allows(&db(), &web(), 80));
    assert!(cluster(not_named).allows(&db(), &web(), 81));
}

#[test]
fn at_its_own_end_a_pod_is_itself_and_not_another_that_has_its_address() {
    let cluster = |destination: EntityRule| {
        Cluster::new().text(TWIN).policy("p", ingress("has(app)", vec![to(Allow, destination)]))
    };
    assert!(cluster(matching("app == 'web'")).allows(&db(), &web(), 1));
    assert!(!cluster(matching("app == 'twin'")).allows(&db(), &web(), 1));
    let set = cluster(matching("zone == 'x'")).set("s", &[("zone", "x")], &["10.0.1.0/24"]);
    assert!(set.allows(&db(), &web(), 1), "sets that contain its address count");
}

#[test]
fn a_not_selector_holds_of_an_address_if_no_holder_fits_it() {
    let not = |selector: &str| EntityRule {
        not_selector: Some(selector.to_owned()),
        ..EntityRule::default()
    };
    let cluster = |selector: &str| {
        Cluster::new().text(TWIN).policy("p", egress("app == 'db'", vec![to(Allow, not(selector))]))
    };
    assert!(!cluster("app == 'web'").allows(&db(), &web(), 1));
    assert!(!cluster("app == 'twin'").allows(&db(), &web(), 1));
    assert!(cluster("app == 'web' && app == 'twin'").allows(&db(), &web(), 1));
}

#[test]
fn a_network_sets_members_match_selectors_by_its_labels() {
    let cluster = Cluster::new()
        .set("world", &[("zone", "out")], &["192.0.2.0/24", "2001:db8::/32"])
        .set("lab/own", &[("zone", "own")], &["198.51.100.7/32"]);
    let allows = |selector: &str, source: &str| {
        let policy = ingress("app == 'db'", vec![with_source(matching(selector))]);
        cluster.clone().policy("p", policy).allows(&address(source), &db(), 80)
    };
    assert!(allows("zone == 'out'", "192.0.2.255") && !allows("zone == 'out'", "192.0.3.0"));
    assert!(allows("zone == 'own'", "198.51.100.7") && !allows("zone == 'own'", "198.51.100.8"));
    assert!(allows("projectcalico.org/namespace == 'lab'", "198.51.100.7"));
    assert!(allows("pcns.projectcalico.org/name == 'lab'", "198.51.100.7"));
    assert!(!allows("has(projectcalico.org/namespace)", "192.0.2.1"));
    assert!(!allows("has(projectcalico.org/orchestrator)", "198.51.100.7"));
    // A pod's address in a set also has the set's labels.
    let cluster = cluster.set("pods", &[("zone", "pods")], &["10.0.2.0/24"]);
    let policy = ingress("app == 'db'", vec![with_source(matching("zone == 'pods'"))]);
    assert!(cluster.policy("p", policy).allows(&lab(), &db(), 80));
}

#[test]
fn what_the_cluster_says_of_a_pod_the_pod_cannot_say() {
    let forger = "
apiVersion: v1
kind: Pod
metadata:
  name: forger
  namespace: lab
  labels: {projectcalico.org/namespace: shop, projectcalico.org/serviceaccount: runner, pcns.team: a, pcsa.role: x}
spec: {nodeName: node-1}
status: {podIP: 10.0.2.9}
";
    let forger_pod = pod_at("lab", "forger", "10.0.2.9");
    let allows = |selector: &str, source: &Party| {
        Cluster::new()
            .text(forger)
            .account("shop/runner", &[("role", "x")])
            .policy("p", ingress("app == 'db'", vec![with_source(matching(selector))]))
            .allows(source, &db(), 80)
    };
    for selector in [
        "projectcalico.org/namespace == 'shop'",
        "projectcalico.org/serviceaccount == 'runner'",
        "pcns.team == 'a'",
        "pcsa.role == 'x'",
    ] {
        assert!(!allows(selector, &forger_pod), "{selector}");
        assert!(allows(selector, &web()), "{selector}");
    }
    assert!(allows("projectcalico.org/orchestrator == 'k8s'", &web()));
}

#[test]
fn pod_selectors_of_kubernetes_policies_never_match_host_endpoints_or_network_sets() {
    let host = HostEndpoint {
        labels: pairs(&[("app", "web")]),
        node: "node-1".to_owned(),
        interface: Some("eth0".to_owned()),
        expected_ips: vec![ip("172.18.0.2")],
        profiles: vec![],
        ports: vec![],
    };
    let kubernetes = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
        metadata: {name: p, namespace: shop}\n\
        spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {}}, {podSelector: {}}]}]}\n";
    let cluster =
        Cluster::new().set("shop/s", &[("app", "web")], &["192.0.2.0/24"]).host("h", host);
    let closed = cluster.clone().text(kubernetes);
    assert!(!closed.allows(&stranger(), &db(), 80));
    assert!(!closed.allows(&address("172.18.0.2"), &db(), 80));
    // Calico's policies match these addresses.
    let open = cluster.policy("p", ingress("all()", vec![with_source(matching("app == 'web'"))]));
    assert!(open.allows(&stranger(), &db(), 80) && open.allows(&address("172.18.0.2"), &db(), 80));
}

fn slice(addresses: &[&str], ports: &[(Protocol, u16)]) -> Object {
    let addresses = addresses.iter().map(|address| ip(address)).collect();
    Object::EndpointSlice(Box::new(EndpointSlice {
        service: Some("db".to_owned()),
        addresses,
        endpoints: Box::default(),
        ports: ports
            .iter()
            .map(|&(protocol, port)| EndpointPort { name: None, protocol, port })
            .collect(),
    }))
}

fn of_service(name: &str, namespace: Option<&str>) -> EntityRule {
    let service = ServiceMatch { name: name.to_owned(), namespace: namespace.map(str::to_owned) };
    EntityRule { service: Some(service), ..EntityRule::default() }
}

#[test]
fn services_match_in_egress_address_and_port_and_in_ingress_the_address_only() {
    let cluster = Cluster::new().with(
        Kind::EndpointSlice,
        "shop/db-1",
        slice(&["10.0.1.2"], &[(Protocol::Tcp, 8080), (Protocol::Sctp, 1)]),
    );
    let out = |rule: EntityRule| {
        cluster.clone().policy("shop/p", egress("app == 'web'", vec![to(Allow, rule)]))
    };
    let own = out(of_service("db", None));
    assert!(own.allows(&web(), &db(), 8080) && !own.allows(&web(), &db(), 80));
    assert!(!own.passes(&web(), &db(), Packet::to_port(UDP, Some(8080))));
    assert!(own.passes(&web(), &db(), Packet::to_port(SCTP, Some(1))));
    assert!(!own.passes(&web(), &db(), Packet::to_port(SCTP, Some(2))));
    assert!(!own.allows(&web(), &lab(), 8080));
    assert!(out(of_service("db", Some("shop"))).allows(&web(), &db(), 8080));
    assert!(!out(of_service("db", Some("lab"))).allows(&web(), &db(), 8080));
    assert!(!out(of_service("none", None)).allows(&web(), &db(), 8080));
    let here = ingress("app == 'db'", vec![to(Allow, of_service("db", None))]);
    assert!(cluster.clone().policy("shop/p", here).allows(&web(), &db(), 1), "ingress rules");
    let into = cluster
        .clone()
        .policy("shop/p", ingress("app == 'web'", vec![with_source(of_service("db", None))]));
    assert!(into.allows(&db(), &web(), 1) && !into.allows(&lab(), &web(), 8080));
}

#[test]
fn icmp_matches_by_type_and_code_and_not_icmp_negates_the_pair_as_one() {
    let icmp = |kind, code| Rule {
        icmp: Some(IcmpMatch { kind, code }),
        protocol: Some(ICMP),
        ..rule(Allow)
    };
    let not = |kind, code| Rule { not_icmp: Some(IcmpMatch { kind, code }), ..rule(Allow) };
    let sent = |kind, code| Packet::icmp(ICMP, kind, code);
    for (rule, packet, expected) in [
        (icmp(Some(8), None), sent(8, 0), true),
        (icmp(Some(8), None), sent(8, 5), true),
        (icmp(Some(8), Some(0)), sent(8, 0), true),
        (icmp(Some(8), Some(0)), sent(8, 1), false),
        (icmp(Some(8), None), sent(0, 0), false),
        (icmp(None, None), sent(3, 1), true),
        (icmp(None, None), tcp(1), false),
        (icmp(None, None), Packet::bare(ICMP), true),
        (icmp(Some(8), None), Packet::bare(ICMP), false),
        (not(Some(8), Some(0)), sent(8, 0), false),
        (not(Some(8), Some(0)), sent(8, 1), true),
        (not(Some(8), Some(0)), sent(0, 0), true),
        (not(Some(8), Some(0)), tcp(1), true),
        (not(Some(8), None), sent(8, 9), false),
        (not(None, None), sent(1, 1), false),
        (not(Some(8), None), Packet::bare(ICMP), false),
    ] {
        assert_eq!(takes(&rule, &web(), packet), expected, "{rule:?} {packet}");
    }
}

#[test]
fn ipv4_has_icmp_and_ipv6_has_icmpv6() {
    let icmp = Rule { icmp: Some(IcmpMatch { kind: Some(128), code: None }), ..rule(Allow) };
    let allows = |rule: &Rule, from: &str, to: &str, packet| {
        Cluster::new().policy("p", ingress("app == 'db'", vec![rule.clone()])).passes(
            &pod_at("shop", "web", from),
            &pod_at("shop", "db", to),
            packet,
        )
    };
    let v4 = ("10.0.1.1", "10.0.1.2");
    let v6 = ("fd00::1", "fd00::2");
    assert!(allows(&icmp, v6.0, v6.1, Packet::icmp(58, 128, 0)));
    assert!(!allows(&icmp, v6.0, v6.1, Packet::icmp(1, 128, 0)));
    assert!(!allows(&icmp, v4.0, v4.1, Packet::icmp(58, 128, 0)));
    assert!(allows(&icmp, v4.0, v4.1, Packet::icmp(1, 128, 0)));
    let named = Rule { protocol: Some(ICMP), ..rule(Allow) };
    assert!(allows(&named, v4.0, v4.1, Packet::echo(true)));
    assert!(!allows(&named, v6.0, v6.1, Packet::bare(1)), "IPv6 has no ICMP of number 1");
    let six = Rule { protocol: Some(58), ..rule(Allow) };
    assert!(
        allows(&six, v6.0, v6.1, Packet::echo(false))
            && !allows(&six, v4.0, v4.1, Packet::bare(58))
    );
}

#[test]
fn a_rule_with_ports_never_matches_icmp_nor_a_later_fragment() {
    let any = with_ports(None, vec![Port::Range(0, 65535)]);
    for packet in [Packet::echo(true), Packet::bare(TCP), Packet::bare(UDP)] {
        assert!(!takes(&any, &web(), packet), "{packet}");
    }
    for protocol in [TCP, UDP, SCTP] {
        assert!(takes(&any, &web(), Packet::to_port(protocol, Some(0))), "{protocol}");
    }
    let odd = Packet { protocol: 47, l4: L4Header::Ports { source: 1, destination: 1 } };
    assert!(!takes(&any, &web(), odd), "GRE has no ports");
}

#[test]
fn an_http_match_is_not_matching_in_an_allow_and_matching_in_a_deny() {
    let http = |action| Rule { http: true, ..rule(action) };
    assert!(!takes(&http(Allow), &web(), tcp(80)));
    let with =
        |first| {
            Cluster::new()
                .policy("p", ingress("app == 'db'", vec![http(first), rule(Allow)]))
                .allows(&web(), &db(), 80)
        };
    assert!(!with(Deny) && with(Pass) && with(Log) && with(Allow));
    let passed = ingress("app == 'db'", vec![http(Pass), http(Log), rule(Deny)]);
    assert_eq!(
        Cluster::new()
            .policy("p", passed)
            .oracle()
            .judge(&web(), &db(), tcp(80))
            .ingress
            .to_string(),
        "denied by GlobalNetworkPolicy p ingress[2]"
    );
    let other = Rule { http: true, ..from(Deny, matching("app == 'x'")) };
    let cluster = Cluster::new().policy("p", ingress("app == 'db'", vec![other, rule(Allow)]));
    assert!(cluster.allows(&web(), &db(), 80), "the other terms still count");
}

#[test]
fn rules_may_ask_of_the_local_end_too() {
    let own = |entity: EntityRule| {
        Cluster::new().policy("p", ingress("has(app)", vec![to(Allow, entity)]))
    };
    let cluster = own(matching("app == 'db'"));
    assert!(cluster.allows(&lab(), &db(), 1) && !cluster.allows(&lab(), &web(), 1));
    let cluster = own(EntityRule { nets: nets(&["10.0.1.2/32"]), ..EntityRule::default() });
    assert!(cluster.allows(&lab(), &db(), 1) && !cluster.allows(&lab(), &web(), 1));
}

#[test]
fn a_policys_subject_is_its_selector_namespaces_and_accounts_together() {
    let closed = |edit: &dyn Fn(&mut Subject)| {
        let mut policy = in_tier("default", 1.0, ingress("app == 'web'", vec![]));
        edit(&mut policy.subject);
        let cluster =
            Cluster::new().account("shop/runner", &[("role", "front")]).policy("p", policy);
        (!cluster.allows(&db(), &web(), 80), !cluster.allows(&db(), &lab(), 80))
    };
    assert_eq!(closed(&|_| ()), (true, true));
    let spaces = |text: &str| closed(&|subject| subject.namespace_selector = Some(text.to_owned()));
    assert_eq!(spaces("team == 'a'"), (true, false));
    assert_eq!(spaces("team != 'a'"), (false, true));
    assert_eq!(spaces("all()"), (true, true));
    assert_eq!(spaces("global()"), (false, false));
    let accounts =
        |text: &str| closed(&|subject| subject.service_account_selector = Some(text.to_owned()));
    assert_eq!(accounts("role == 'front'"), (true, false));
    assert_eq!(accounts("projectcalico.org/name == 'default'"), (false, true));
    assert_eq!(closed(&|subject| subject.selector = None), (true, true));
}

#[test]
fn a_namespaced_policy_selects_in_its_namespace_only() {
    let cluster = Cluster::new().policy("shop/p", ingress("", vec![]));
    assert!(!cluster.allows(&lab(), &web(), 80) && cluster.allows(&web(), &lab(), 80));
}

#[test]
fn addresses_have_their_holders_whoever_asks() {
    // A judgement by address gives the same result as a judgement by pod.
    let cluster = Cluster::new()
        .policy("p", ingress("app == 'db'", vec![with_source(matching("app == 'web'"))]));
    let plain: IpAddr = web().address();
    assert!(cluster.allows(&Party::Address(plain), &db(), 80));
}
