//! Host endpoints, and traffic between a node and its pods.

use super::cluster::{
    Cluster, ICMP, TCP, UDP, address, db, egress, from, in_tier, ingress, ip, lab, matching, node,
    pairs, rule, stranger, to, web,
};
use crate::{Crossing, Direction, Packet, Verdict, VerdictReason};
use manx_objects::Invalid;
use manx_objects::object::calico::Action::{Allow, Deny, Log, Pass};
use manx_objects::object::calico::{
    self, EndpointToHost, EntityRule, Failsafe, FelixConfiguration, HostEndpoint, Port, Profile,
    Rule,
};
use manx_objects::object::{Kind, Object};

fn host(labels: &[(&str, &str)]) -> HostEndpoint {
    HostEndpoint {
        labels: pairs(labels),
        node: "node-1".to_owned(),
        interface: Some("eth0".to_owned()),
        expected_ips: vec![ip("172.18.0.2")],
        profiles: vec![],
        ports: vec![],
    }
}

/// Returns a cluster with a host endpoint on eth0 of node-1.
fn one() -> Cluster {
    Cluster::new().host("h", host(&[("role", "host")]))
}

fn crossing(direction: Direction, forwarded: bool, port: u16) -> Crossing<'static> {
    let (own, other) = (ip("172.18.0.2"), ip("192.0.2.1"));
    let (source, destination) =
        if direction == Direction::Ingress { (other, own) } else { (own, other) };
    Crossing {
        node: "node-1",
        interface: "eth0",
        addresses: &[],
        direction,
        forwarded,
        source,
        destination,
        packet: Packet::to_port(TCP, Some(port)),
        original: None,
    }
}

/// Returns a packet to a process of the host.
fn local(port: u16) -> Crossing<'static> {
    crossing(Direction::Ingress, false, port)
}

fn forwarded(port: u16) -> Crossing<'static> {
    crossing(Direction::Ingress, true, port)
}

fn judge(cluster: &Cluster, crossing: &Crossing<'_>) -> Verdict {
    cluster.oracle().judge_host(crossing)
}

fn allows(cluster: &Cluster, crossing: &Crossing<'_>) -> bool {
    judge(cluster, crossing).allows()
}

/// Returns a policy for host endpoints, with the flags that `edit` sets.
fn hooked(policy: calico::Policy, edit: fn(&mut calico::Policy)) -> calico::Policy {
    let mut policy = policy;
    edit(&mut policy);
    policy
}

fn of_host(rules: Vec<Rule>) -> calico::Policy {
    ingress("role == 'host'", rules)
}

fn forward(rules: Vec<Rule>) -> calico::Policy {
    hooked(of_host(rules), |policy| policy.apply_on_forward = true)
}

fn pre_dnat(rules: Vec<Rule>) -> calico::Policy {
    hooked(forward(rules), |policy| policy.pre_dnat = true)
}

fn untracked(rules: Vec<Rule>) -> calico::Policy {
    hooked(forward(rules), |policy| policy.do_not_track = true)
}

fn to_port(action: calico::Action, port: u16) -> Rule {
    let destination = EntityRule { ports: vec![Port::Range(port, port)], ..EntityRule::default() };
    Rule { protocol: Some(TCP), ..to(action, destination) }
}

fn felix(cluster: Cluster, name: &str, felix: FelixConfiguration) -> Cluster {
    let object = Object::FelixConfiguration(Box::new(felix));
    cluster.with(Kind::FelixConfiguration, name, object)
}

#[test]
fn without_a_host_endpoint_nobody_asks() {
    assert_eq!(judge(&Cluster::new(), &local(80)).why, VerdictReason::NoHostEndpoint);
    let other = Crossing { interface: "eth1", ..local(80) };
    assert_eq!(judge(&one(), &other).why, VerdictReason::NoHostEndpoint);
    let other = Crossing { node: "node-2", ..local(80) };
    assert_eq!(judge(&one(), &other).why, VerdictReason::NoHostEndpoint);
}

#[test]
fn a_host_endpoint_with_no_policy_denies_local_traffic_and_allows_forwarded() {
    assert_eq!(judge(&one(), &local(80)).why, VerdictReason::NoProfile);
    assert!(!allows(&one(), &crossing(Direction::Egress, false, 80)));
    assert_eq!(judge(&one(), &forwarded(80)).why, VerdictReason::NoForwardPolicy);
    assert!(allows(&one(), &crossing(Direction::Egress, true, 80)));
}

#[test]
fn failsafe_ports_are_excepted() {
    for (direction, tcp, udp) in [
        (Direction::Ingress, &[22, 179, 2379, 2380, 5473, 6443, 6666, 6667][..], &[68][..]),
        (Direction::Egress, &[179, 2379, 2380, 5473, 6443, 6666, 6667], &[53, 67]),
    ] {
        for port in 0..8000 {
            for (protocol, listed) in [(TCP, tcp), (UDP, udp)] {
                let packet = Packet::to_port(protocol, Some(port));
                let crossing = Crossing { packet, ..crossing(direction, false, port) };
                if listed.contains(&port) || port % 1000 == 0 || port < 100 {
                    assert_eq!(
                        allows(&one(), &crossing),
                        listed.contains(&port),
                        "{direction} {packet}"
                    );
                }
            }
        }
    }
    let closed = one().policy("p", in_tier("kube-admin", 0.0, of_host(vec![rule(Deny)])));
    assert_eq!(judge(&closed, &local(22)).why, VerdictReason::Failsafe);
    let broken = closed.invalid(Kind::GlobalNetworkPolicy, "broken", Invalid::default());
    assert!(allows(&broken, &local(22)) && !allows(&broken, &local(80)));
}

#[test]
fn felix_configuration_sets_the_failsafe_ports_a_nodes_own_before_everybodys() {
    let safe = |port| FelixConfiguration {
        failsafe_inbound: Some(vec![Failsafe {
            protocol: TCP,
            port,
            net: Some("192.0.2.0/24".parse().unwrap()),
        }]),
        ..FelixConfiguration::default()
    };
    let cluster = felix(one(), "default", safe(1000));
    assert!(allows(&cluster, &local(1000)) && !allows(&cluster, &local(22)));
    let far = Crossing { source: ip("198.51.100.1"), ..local(1000) };
    assert!(!allows(&cluster, &far), "the net is the peer's");
    let cluster = felix(felix(cluster, "node.node-1", safe(2000)), "node.node-2", safe(3000));
    assert!(allows(&cluster, &local(2000)));
    assert!(!allows(&cluster, &local(1000)) && !allows(&cluster, &local(3000)));
    let none =
        FelixConfiguration { failsafe_inbound: Some(vec![]), ..FelixConfiguration::default() };
    assert!(!allows(&felix(one(), "default", none), &local(22)));
}

#[test]
fn normal_policies_judge_local_traffic_and_leave_forwarded_alone() {
    let cluster = one().policy("p", of_host(vec![to_port(Allow, 80)]));
    assert!(allows(&cluster, &local(80)) && !allows(&cluster, &local(81)));
    assert!(allows(&cluster, &forwarded(81)));
    assert!(!allows(&cluster, &crossing(Direction::Egress, false, 80)), "the other direction");
    // The policy applies to a pod that the selector matches, whatever the policy's flags for hosts
    // are.
    let both = one().policy("p", hooked(ingress("all()", vec![]), |p| p.apply_on_forward = true));
    assert!(!both.allows(&web(), &db(), 80));
}

#[test]
fn if_apply_on_forward_policies_exist_in_a_direction_and_none_allows_deny() {
    let cluster = one().policy("p", forward(vec![to_port(Allow, 80)]));
    assert!(allows(&cluster, &forwarded(80)) && !allows(&cluster, &forwarded(81)));
    assert!(allows(&cluster, &crossing(Direction::Egress, true, 81)), "none in this direction");
    assert!(allows(&cluster, &local(80)) && !allows(&cluster, &local(81)), "and local traffic");
    let passing = one().policy("p", in_tier("kube-admin", 1.0, forward(vec![rule(Pass)])));
    assert_eq!(judge(&passing, &forwarded(80)).why, VerdictReason::NotForwarded);
    assert!(!allows(&cluster, &forwarded(22)), "failsafe ports are for the host's own");
}

#[test]
fn pre_dnat_is_ingress_only_sees_the_original_destination_and_has_no_drop_at_a_tiers_end() {
    let rules = vec![to_port(Deny, 30080), to_port(Allow, 30081)];
    let cluster = one().policy("p", pre_dnat(rules));
    let nat = |port| Crossing {
        destination: ip("10.0.1.1"),
        original: Some((ip("172.18.0.2"), Packet::to_port(TCP, Some(port)))),
        ..forwarded(80)
    };
    assert!(!allows(&cluster, &nat(30080)) && allows(&cluster, &nat(30081)));
    assert!(allows(&cluster, &nat(30082)), "goes on, and nothing else speaks");
    assert!(!allows(&cluster, &local(80)), "goes on to where nothing allows");
    let closed = cluster.policy("q", forward(vec![to_port(Allow, 80)]));
    assert!(allows(&closed, &nat(30082)), "judged after translation");
    assert!(!allows(&closed, &Crossing { packet: Packet::to_port(TCP, Some(81)), ..nat(30082) }));
    assert!(
        allows(&closed, &Crossing { packet: Packet::to_port(TCP, Some(81)), ..nat(30081) }),
        "what it allows passes the interface"
    );
    let out = one().policy(
        "p",
        hooked(egress("role == 'host'", vec![rule(Deny)]), |policy| {
            policy.apply_on_forward = true;
            policy.pre_dnat = true;
        }),
    );
    assert!(allows(&out, &crossing(Direction::Egress, true, 80)));
    // Egress is judged after translation.
    let out = one().policy(
        "u",
        hooked(egress("role == 'host'", vec![to_port(Deny, 30080)]), |policy| {
            policy.apply_on_forward = true;
            policy.do_not_track = true;
        }),
    );
    let before = Some((ip("192.0.2.1"), Packet::to_port(TCP, Some(30080))));
    assert!(allows(&out, &Crossing { original: before, ..crossing(Direction::Egress, true, 80) }));
    assert!(!allows(&out, &crossing(Direction::Egress, true, 30080)));
    let pods = Cluster::new().policy(
        "p",
        hooked(ingress("all()", vec![rule(Deny)]), |policy| {
            policy.apply_on_forward = true;
            policy.pre_dnat = true;
        }),
    );
    assert!(pods.allows(&web(), &db(), 80), "pods are not asked");
}

#[test]
fn do_not_track_comes_first_and_neither_denies_at_a_tiers_end_nor_falls_to_profiles() {
    let first = untracked(vec![to_port(Allow, 80), to_port(Deny, 81), rule(Log)]);
    let cluster = one().policy("u", first).policy("d", pre_dnat(vec![to_port(Deny, 80)]));
    assert!(allows(&cluster, &local(80)) && allows(&cluster, &forwarded(80)));
    assert!(!allows(&cluster, &local(81)) && !allows(&cluster, &forwarded(81)));
    assert!(allows(&cluster, &forwarded(82)) && !allows(&cluster, &local(82)));
    assert_eq!(judge(&cluster, &forwarded(82)).through.len(), 1, "the Log of the first hook");
    let open = Profile { labels: pairs(&[]), ingress: vec![rule(Allow)], egress: vec![] };
    let object = Object::Profile(Box::new(open));
    let with = HostEndpoint { profiles: vec!["open".to_owned()], ..host(&[("role", "host")]) };
    let cluster = cluster.with(Kind::Profile, "open", object).host("h", with);
    assert!(allows(&cluster, &local(82)), "the profile answers for the last hook");
    let pods = Cluster::new().policy(
        "u",
        hooked(ingress("all()", vec![rule(Deny)]), |policy| policy.do_not_track = true),
    );
    assert!(pods.allows(&web(), &db(), 80), "pods are not asked");
}

#[test]
fn profiles_speak_where_no_policy_decides_and_pass_in_one_is_deny() {
    let with = |profiles: &[&str], rules: Vec<Rule>| {
        let profile = Profile { labels: pairs(&[]), ingress: rules, egress: vec![] };
        let profiles = profiles.iter().map(|name| (*name).to_owned()).collect();
        Cluster::new().host("h", HostEndpoint { profiles, ..host(&[("role", "host")]) }).with(
            Kind::Profile,
            "mine",
            Object::Profile(Box::new(profile)),
        )
    };
    assert!(allows(&with(&["mine"], vec![rule(Log), to_port(Allow, 80)]), &local(80)));
    assert!(!allows(&with(&["mine"], vec![to_port(Allow, 80)]), &local(81)));
    assert!(!allows(&with(&["mine"], vec![rule(Pass), rule(Allow)]), &local(80)));
    assert!(allows(&with(&["projectcalico-default-allow"], vec![]), &local(80)));
    assert!(allows(&with(&["kns.shop"], vec![]), &local(80)));
    assert!(!allows(&with(&["kns.nowhere"], vec![]), &local(80)));
    assert!(!allows(&with(&["ksa.shop.runner"], vec![]), &local(80)), "it has no rules");
    assert!(allows(&with(&["ksa.shop.runner", "mine"], vec![rule(Allow)]), &local(80)));
    let denying = with(&["mine"], vec![rule(Allow)]).policy("p", of_host(vec![rule(Deny)]));
    assert!(!allows(&denying, &local(80)), "policies come first");
}

#[test]
fn a_reference_to_a_missing_or_invalid_profile_is_deny() {
    let with = |profiles: &[&str]| {
        let profiles = profiles.iter().map(|name| (*name).to_owned()).collect();
        Cluster::new().host("h", HostEndpoint { profiles, ..host(&[]) })
    };
    let missing = VerdictReason::MissingProfile("gone".to_owned());
    let two = with(&["gone", "projectcalico-default-allow"]);
    assert_eq!(judge(&two, &local(80)).why, missing);
    let invalid = two.invalid(Kind::Profile, "gone", Invalid::default());
    assert_eq!(judge(&invalid, &local(80)).why, missing);
    assert!(allows(&with(&["projectcalico-default-allow", "gone"]), &local(80)));
    // A profile with a rule that cannot be evaluated gives the same result.
    let rules = vec![from(Allow, matching("zone == 'x'")), rule(Allow)];
    let profile = Profile { labels: pairs(&[]), ingress: rules, egress: vec![] };
    let cluster = with(&["mine"]).with(Kind::Profile, "mine", Object::Profile(Box::new(profile)));
    assert!(allows(&cluster, &local(80)));
    let broken = cluster.invalid(Kind::GlobalNetworkSet, "s", Invalid::default());
    assert!(!allows(&broken, &local(80)));
}

#[test]
fn host_endpoints_have_their_own_labels_and_those_of_their_profiles() {
    let labels = pairs(&[("role", "host"), ("zone", "profile")]);
    let profile = Profile { labels, ingress: vec![], egress: vec![] };
    let with = HostEndpoint { profiles: vec!["mine".to_owned()], ..host(&[("zone", "own")]) };
    let cluster = Cluster::new().host("h", with).with(
        Kind::Profile,
        "mine",
        Object::Profile(Box::new(profile)),
    );
    let selects = |selector: &str| {
        let policy = ingress(selector, vec![rule(Allow)]);
        allows(&cluster.clone().policy("p", policy), &local(80))
    };
    assert!(selects("role == 'host'") && selects("zone == 'own'"));
    assert!(!selects("zone == 'profile'") && !selects("has(projectcalico.org/orchestrator)"));
    // As a peer, a host endpoint is identified by its expected IPs.
    let from_host = ingress("app == 'db'", vec![from(Allow, matching("role == 'host'"))]);
    let cluster = cluster.policy("p", from_host);
    assert!(cluster.allows(&address("172.18.0.2"), &db(), 80));
    assert!(!cluster.allows(&address("172.18.0.3"), &db(), 80));
}

#[test]
fn a_host_endpoint_is_found_by_name_then_by_address_then_for_all_interfaces() {
    let at = |interface: Option<&str>, role: &str| HostEndpoint {
        interface: interface.map(str::to_owned),
        ..host(&[("at", role)])
    };
    let cluster = Cluster::new()
        .host("a", at(Some("*"), "all"))
        .host("b", at(None, "address"))
        .host("c", at(Some("eth0"), "name"));
    let found = |crossing: &Crossing<'_>| {
        ["all", "address", "name"].into_iter().find(|role| {
            let policy = ingress(&format!("at == '{role}'"), vec![rule(Allow)]);
            allows(&cluster.clone().policy("p", policy), crossing)
        })
    };
    assert_eq!(found(&local(80)), Some("name"));
    let addresses = [ip("172.18.0.2")];
    let other = Crossing { interface: "eth1", addresses: &addresses, ..local(80) };
    assert_eq!(found(&other), Some("address"));
    assert_eq!(found(&Crossing { interface: "eth1", ..local(80) }), Some("all"));
}

#[test]
fn a_host_endpoints_port_names_are_its_own() {
    let with =
        HostEndpoint { ports: vec![("api".to_owned(), TCP, 443)], ..host(&[("role", "host")]) };
    let named = EntityRule { ports: vec![Port::Name("api".to_owned())], ..EntityRule::default() };
    let cluster = Cluster::new().host("h", with).policy("p", of_host(vec![to(Allow, named)]));
    assert!(allows(&cluster, &local(443)) && !allows(&cluster, &local(444)));
}

#[test]
fn while_a_host_endpoint_is_invalid_nobody_knows_whose_interface_is_its() {
    let broken = Cluster::new().invalid(Kind::HostEndpoint, "h", Invalid::default());
    assert!(!allows(&broken, &local(80)) && allows(&broken, &local(22)));
    assert!(allows(&broken, &forwarded(80)), "as without policies");
    let closed = broken.policy("p", forward(vec![rule(Allow)]));
    assert!(!allows(&closed, &forwarded(80)));
    assert!(allows(&closed, &crossing(Direction::Egress, true, 80)));
}

#[test]
fn a_pods_packets_to_its_node_are_judged_by_its_egress_and_by_the_node() {
    let cluster = one();
    assert!(cluster.allows(&web(), &node("node-1"), 80), "Accept by default, and no host policy");
    let set = |action| FelixConfiguration {
        endpoint_to_host: Some(action),
        ..FelixConfiguration::default()
    };
    let with = |action| felix(one(), "default", set(action));
    assert!(!with(EndpointToHost::Drop).allows(&web(), &node("node-1"), 80));
    assert!(with(EndpointToHost::Return).allows(&web(), &node("node-1"), 80));
    assert!(with(EndpointToHost::Drop).allows(&db(), &node("node-1"), 80), "another's node");
    let own = felix(with(EndpointToHost::Drop), "node.node-1", set(EndpointToHost::Accept));
    assert!(own.allows(&web(), &node("node-1"), 80));
    let judged = one().policy("p", egress("app == 'web'", vec![rule(Deny)]));
    assert!(!judged.allows(&web(), &node("node-1"), 80));
    let unknown = one().invalid(Kind::FelixConfiguration, "default", Invalid::default());
    assert!(!unknown.allows(&web(), &node("node-1"), 80));
}

#[test]
fn a_node_reaches_its_own_pods_and_a_pod_itself_whatever_policies_say() {
    let cluster = one()
        .policy("p", in_tier("kube-admin", 0.0, ingress("all()", vec![rule(Deny)])))
        .policy("q", in_tier("kube-admin", 0.0, egress("all()", vec![rule(Deny)])))
        .invalid(Kind::GlobalNetworkPolicy, "broken", Invalid::default());
    assert!(cluster.allows(&node("node-1"), &web(), 80));
    assert!(!cluster.allows(&node("node-1"), &db(), 80));
    assert!(cluster.allows(&web(), &web(), 80));
    assert!(!cluster.allows(&web(), &lab(), 80));
}

#[test]
fn what_is_no_port_is_no_failsafe() {
    let echo = Crossing { packet: Packet::echo(true), ..local(22) };
    assert!(!allows(&one(), &echo));
    let odd = Crossing { packet: Packet::to_port(ICMP, Some(22)), ..local(22) };
    assert!(!allows(&one(), &odd));
    assert!(!allows(&one(), &Crossing { source: stranger().address(), ..local(23) }));
}
