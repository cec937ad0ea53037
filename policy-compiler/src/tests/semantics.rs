//! Each line of Kubernetes' NetworkPolicy semantics, by name. Every question is answered by the compiled tables of the
//! whole cluster, which are proved equal to the reference first.

use super::build::*;
use crate::model::*;
use Protocol::{Sctp, Tcp, Udp};

/// `web` and `db` in namespace `shop`, `web` in namespace `lab`, and addresses of no pod.
fn cluster() -> Cluster {
    Cluster::default()
        .namespace("shop", &[("team", "a")])
        .namespace("lab", &[("team", "b")])
        .pod("shop/web", &[("app", "web")], &["10.0.0.1", "fd00::1"])
        .pod("shop/db", &[("app", "db")], &["10.0.0.2", "fd00::2"])
        .pod("lab/web", &[("app", "web")], &["10.0.1.1", "fd00::1:1"])
}

#[test]
fn without_a_policy_everything_is_allowed_in_both_directions() {
    let cluster = cluster();
    for transport in [tcp(0), udp(65_535), sctp(9), portless(6), portless(1), portless(50)] {
        for peer in ["10.0.0.2", "192.0.2.1", "fd00::2", "2001:db8::1"] {
            for direction in Direction::ALL {
                let reason = cluster.reason("shop/web", direction, peer, transport);
                assert_eq!(reason, Reason::NotIsolated(direction));
            }
        }
    }
}

#[test]
fn a_policy_isolates_only_the_direction_it_speaks_of() {
    let cluster = cluster().ingress("shop/deny", &[], vec![]);
    assert_eq!(
        cluster.reason("shop/db", Direction::Ingress, "10.0.0.1", tcp(80)),
        Reason::Isolated(Direction::Ingress, name("shop/deny"))
    );
    assert!(cluster.allows_out("shop/db", "10.0.0.1", tcp(80)));
    let cluster = self::cluster().egress("shop/deny", &[], vec![]);
    assert!(cluster.allows_in("shop/db", "10.0.0.1", tcp(80)));
    assert!(!cluster.allows_out("shop/db", "10.0.0.1", tcp(80)));
}

#[test]
fn a_policy_selects_pods_of_its_own_namespace_only() {
    let cluster = cluster().ingress("shop/deny", &[("app", "web")], vec![]);
    assert!(!cluster.allows_in("shop/web", "10.0.0.2", tcp(80)));
    assert!(cluster.allows_in("shop/db", "10.0.0.1", tcp(80)));
    assert!(cluster.allows_in("lab/web", "10.0.0.1", tcp(80)));
}

#[test]
fn policies_add_up_and_the_first_by_name_is_the_reason() {
    let allow_web = || vec![rule(&[here(&[("app", "web")])], &[port(80)])];
    let cluster = cluster()
        .ingress("shop/b", &[], allow_web())
        .ingress(
            "shop/a",
            &[("app", "db")],
            vec![on(&[port(443)]), rule(&[here(&[])], &[port(80)])],
        )
        .ingress("shop/c", &[], vec![on(&[port(22)])]);
    let reason = |transport| cluster.reason("shop/db", Direction::Ingress, "10.0.0.1", transport);
    let by = |policy, index| {
        Reason::Rule(RuleName { policy: name(policy), direction: Direction::Ingress, index })
    };
    assert_eq!(reason(tcp(80)), by("shop/a", 1));
    assert_eq!(reason(tcp(22)), by("shop/c", 0));
    assert_eq!(reason(tcp(23)), Reason::Isolated(Direction::Ingress, name("shop/a")));
    assert_eq!(
        cluster.reason("shop/web", Direction::Ingress, "10.0.0.1", tcp(80)),
        by("shop/b", 0)
    );
}

#[test]
fn an_invalid_policy_isolates_in_both_directions_and_allows_nothing() {
    let cluster = cluster().invalid("shop/broken", select(&[("app", "db")]));
    for direction in Direction::ALL {
        assert_eq!(
            cluster.reason("shop/db", direction, "10.0.0.1", tcp(80)),
            Reason::Isolated(direction, name("shop/broken"))
        );
        assert_eq!(
            cluster.reason("shop/web", direction, "10.0.0.2", tcp(80)),
            Reason::NotIsolated(direction)
        );
    }
    let cluster = cluster.ingress("shop/good", &[], vec![on(&[port(80)])]);
    assert!(cluster.allows_in("shop/db", "10.0.0.1", tcp(80)), "other policies still allow");
}

#[test]
fn a_rule_without_peers_matches_everybody_and_one_with_an_empty_list_nobody() {
    let cluster = cluster().ingress("shop/all", &[("app", "db")], vec![on(&[port(80)])]);
    for peer in ["10.0.0.1", "10.0.1.1", "192.0.2.1", "fd00::1", "2001:db8::1"] {
        assert!(cluster.allows_in("shop/db", peer, tcp(80)));
        assert!(!cluster.allows_in("shop/db", peer, tcp(81)));
    }
    let cluster = self::cluster().ingress("shop/none", &[("app", "db")], vec![from(&[])]);
    assert!(!cluster.allows_in("shop/db", "10.0.0.1", tcp(80)));
}

#[test]
fn a_rule_without_ports_matches_every_protocol_sctp_too() {
    let cluster = cluster().ingress("shop/p", &[], vec![from(&[here(&[])])]);
    for transport in
        [tcp(1), udp(1), sctp(1), portless(6), portless(132), portless(1), portless(47)]
    {
        assert!(cluster.allows_in("shop/db", "10.0.0.1", transport));
    }
    assert!(!cluster.allows_in("shop/db", "10.0.1.1", tcp(1)));
}

#[test]
fn a_rule_with_ports_never_matches_icmp_nor_a_packet_without_visible_port() {
    let services =
        [port(80), service(Udp, PortMatch::Range { first: 0, last: 65_535 }), named("http")];
    let cluster = cluster().ingress("shop/p", &[], vec![on(&services)]);
    for protocol in [6, 17, 132, 1, 58] {
        assert!(!cluster.allows_in("shop/db", "10.0.0.1", portless(protocol)));
    }
    assert!(!cluster.allows_in("shop/db", "10.0.0.1", Transport { protocol: 1, port: Some(80) }));
}

#[test]
fn an_absent_port_is_every_packet_of_that_protocol_alone() {
    let cluster = cluster().ingress("shop/p", &[], vec![on(&[service(Udp, PortMatch::All)])]);
    for transport in [udp(0), udp(65_535), portless(17)] {
        assert!(cluster.allows_in("shop/db", "10.0.0.1", transport));
    }
    for transport in [tcp(0), portless(6), sctp(1), portless(1)] {
        assert!(!cluster.allows_in("shop/db", "10.0.0.1", transport));
    }
}

#[test]
fn end_port_includes_both_ends() {
    let range = service(Tcp, PortMatch::Range { first: 8000, last: 8010 });
    let cluster = cluster().ingress("shop/p", &[], vec![on(&[range])]);
    for (number, allowed) in [(7999, false), (8000, true), (8010, true), (8011, false)] {
        assert_eq!(cluster.allows_in("shop/db", "10.0.0.1", tcp(number)), allowed, "{number}");
        assert!(!cluster.allows_in("shop/db", "10.0.0.1", udp(number)));
    }
}

#[test]
fn a_pod_selector_alone_means_the_policys_own_namespace() {
    let cluster =
        cluster().ingress("shop/p", &[("app", "db")], vec![from(&[here(&[("app", "web")])])]);
    assert!(cluster.allows_in("shop/db", "10.0.0.1", tcp(80)));
    assert!(!cluster.allows_in("shop/db", "10.0.1.1", tcp(80)), "web of another namespace");
    assert!(!cluster.allows_in("shop/db", "10.0.0.9", tcp(80)), "no pod");
}

#[test]
fn a_namespace_selector_and_a_pod_selector_in_one_peer_are_both_required() {
    let both = vec![from(&[across(&[("team", "b")], &[("app", "web")])])];
    let cluster = cluster().pod("lab/db", &[("app", "db")], &["10.0.1.2"]).ingress(
        "shop/p",
        &[("app", "db")],
        both,
    );
    assert!(cluster.allows_in("shop/db", "10.0.1.1", tcp(80)));
    assert!(!cluster.allows_in("shop/db", "10.0.1.2", tcp(80)));
    assert!(!cluster.allows_in("shop/db", "10.0.0.1", tcp(80)));
}

#[test]
fn peers_of_one_rule_are_alternatives() {
    let either = vec![from(&[across(&[("team", "b")], &[]), here(&[("app", "web")])])];
    let cluster = cluster().pod("lab/db", &[("app", "db")], &["10.0.1.2"]).ingress(
        "shop/p",
        &[("app", "db")],
        either,
    );
    for (peer, allowed) in
        [("10.0.1.1", true), ("10.0.1.2", true), ("10.0.0.1", true), ("10.0.0.2", false)]
    {
        assert_eq!(cluster.allows_in("shop/db", peer, tcp(80)), allowed, "{peer}");
    }
}

#[test]
fn an_empty_namespace_selector_means_every_namespace() {
    let cluster = cluster().ingress("shop/p", &[("app", "db")], vec![from(&[across(&[], &[])])]);
    assert!(cluster.allows_in("shop/db", "10.0.1.1", tcp(80)));
    assert!(cluster.allows_in("shop/db", "10.0.0.1", tcp(80)));
    assert!(
        !cluster.allows_in("shop/db", "192.0.2.1", tcp(80)),
        "addresses of no pod are not meant"
    );
}

#[test]
fn a_missing_namespace_has_no_labels() {
    let without = LabelSelector([Requirement::DoesNotExist("team".to_owned())].into());
    let peer = |namespaces| Peer::PodsIn { namespaces, pods: LabelSelector::default() };
    let cluster = cluster()
        .pod("nowhere/x", &[], &["10.0.2.1"])
        .ingress("shop/a", &[("app", "db")], vec![from(&[peer(without)])])
        .ingress("shop/b", &[("app", "web")], vec![from(&[peer(select(&[("team", "a")]))])]);
    assert!(cluster.allows_in("shop/db", "10.0.2.1", tcp(80)));
    assert!(!cluster.allows_in("shop/web", "10.0.2.1", tcp(80)));
}

#[test]
fn with_the_label_absent_not_in_is_true_and_the_others_false() {
    let value: std::collections::BTreeSet<String> = ["x".to_owned()].into();
    for (requirement, allowed) in [
        (Requirement::NotIn("gone".to_owned(), value.clone()), true),
        (Requirement::DoesNotExist("gone".to_owned()), true),
        (Requirement::In("gone".to_owned(), value), false),
        (Requirement::Exists("gone".to_owned()), false),
    ] {
        let text = requirement.to_string();
        let pods = Peer::PodsHere(LabelSelector([requirement].into()));
        let cluster = cluster().ingress("shop/p", &[("app", "db")], vec![from(&[pods])]);
        assert_eq!(cluster.allows_in("shop/db", "10.0.0.1", tcp(80)), allowed, "{text}");
    }
}

#[test]
fn pods_inside_an_ip_block_match_too_and_outside_its_exceptions_only() {
    let peers = [block("10.0.0.0/16", &["10.0.1.0/24"])];
    let cluster = cluster().ingress("shop/p", &[("app", "db")], vec![from(&peers)]);
    for (peer, allowed) in [
        ("10.0.0.1", true),
        ("10.0.77.1", true),
        ("10.0.1.1", false),
        ("10.0.1.255", false),
        ("10.0.2.0", true),
        ("10.1.0.0", false),
        ("9.255.255.255", false),
    ] {
        assert_eq!(cluster.allows_in("shop/db", peer, tcp(80)), allowed, "{peer}");
    }
}

#[test]
fn an_exception_of_one_block_does_not_limit_another() {
    let peers = [block("10.0.0.0/16", &["10.0.1.0/24"]), block("10.0.1.0/28", &[])];
    let cluster = cluster().ingress("shop/p", &[("app", "db")], vec![from(&peers)]);
    assert!(cluster.allows_in("shop/db", "10.0.1.1", tcp(80)));
    assert!(!cluster.allows_in("shop/db", "10.0.1.16", tcp(80)));
}

#[test]
fn a_block_never_matches_the_other_family() {
    let cluster = cluster()
        .ingress("shop/a", &[("app", "db")], vec![from(&[block("0.0.0.0/0", &[])])])
        .ingress("shop/b", &[("app", "web")], vec![from(&[block("::/0", &[])])]);
    assert!(cluster.allows_in("shop/db", "10.0.0.1", tcp(80)));
    assert!(!cluster.allows_in("shop/db", "fd00::1", tcp(80)));
    assert!(!cluster.allows_in("shop/web", "10.0.0.2", tcp(80)));
    assert!(cluster.allows_in("shop/web", "fd00::2", tcp(80)));
}

#[test]
fn a_named_port_of_ingress_is_the_selected_pods_own_number() {
    let cluster = cluster()
        .pod_with_ports("shop/one", &[("app", "s")], &["10.0.0.3"], &[("http", Tcp, 80)])
        .pod_with_ports(
            "shop/two",
            &[("app", "s")],
            &["10.0.0.4"],
            &[("http", Tcp, 8080), ("http", Tcp, 9090)],
        )
        .pod_with_ports("shop/udp", &[("app", "s")], &["10.0.0.5"], &[("http", Udp, 80)])
        .ingress("shop/p", &[("app", "s")], vec![on(&[named("http")])]);
    for (pod, number, allowed) in [
        ("shop/one", 80, true),
        ("shop/one", 8080, false),
        ("shop/two", 80, false),
        ("shop/two", 8080, true),
        ("shop/two", 9090, true),
        ("shop/udp", 80, false),
    ] {
        assert_eq!(cluster.allows_in(pod, "10.0.0.1", tcp(number)), allowed, "{pod} {number}");
    }
    assert!(!cluster.allows_in("shop/udp", "10.0.0.1", udp(80)), "the rule's name is of TCP");
}

#[test]
fn a_named_port_of_egress_is_each_destination_pods_own_number() {
    let to_s = rule(&[here(&[("app", "s")])], &[named("http")]);
    let cluster = cluster()
        .pod_with_ports("shop/one", &[("app", "s")], &["10.0.0.3"], &[("http", Tcp, 80)])
        .pod_with_ports("shop/two", &[("app", "s")], &["10.0.0.4"], &[("http", Tcp, 8080)])
        .pod_with_ports("shop/three", &[("app", "t")], &["10.0.0.5"], &[("http", Tcp, 80)])
        .egress("shop/p", &[("app", "web")], vec![to_s]);
    for (peer, number, allowed) in [
        ("10.0.0.3", 80, true),
        ("10.0.0.3", 8080, false),
        ("10.0.0.4", 80, false),
        ("10.0.0.4", 8080, true),
        ("10.0.0.5", 80, false),
        ("192.0.2.1", 80, false),
    ] {
        assert_eq!(cluster.allows_out("shop/web", peer, tcp(number)), allowed, "{peer} {number}");
    }
}

#[test]
fn a_named_port_of_egress_to_a_block_means_the_pods_inside_it() {
    let to_block = rule(&[block("10.0.0.0/24", &[])], &[named("http")]);
    let cluster = cluster()
        .pod_with_ports("shop/one", &[("app", "s")], &["10.0.0.3"], &[("http", Tcp, 80)])
        .egress("shop/p", &[("app", "web")], vec![to_block]);
    assert!(cluster.allows_out("shop/web", "10.0.0.3", tcp(80)));
    assert!(!cluster.allows_out("shop/web", "10.0.0.9", tcp(80)), "no pod, no name");
}

#[test]
fn sctp_has_ports_like_tcp_and_udp() {
    let services = [service(Sctp, PortMatch::Range { first: 38412, last: 38412 })];
    let cluster = cluster().ingress("shop/p", &[], vec![on(&services)]);
    assert!(cluster.allows_in("shop/db", "10.0.0.1", sctp(38_412)));
    assert!(!cluster.allows_in("shop/db", "10.0.0.1", tcp(38_412)));
    assert!(!cluster.allows_in("shop/db", "10.0.0.1", sctp(38_413)));
}

#[test]
fn the_lowest_and_the_highest_port_are_ports() {
    let range = |first, last| service(Tcp, PortMatch::Range { first, last });
    let cluster = cluster().ingress("shop/p", &[], vec![on(&[range(0, 0), range(65_535, 65_535)])]);
    for (number, allowed) in [(0, true), (1, false), (65_534, false), (65_535, true)] {
        assert_eq!(cluster.allows_in("shop/db", "10.0.0.1", tcp(number)), allowed, "{number}");
    }
}

#[test]
fn the_same_address_on_two_pods_is_in_a_set_if_either_is() {
    let cluster = cluster()
        .pod("shop/old", &[("app", "old")], &["10.0.0.7"])
        .pod("shop/new", &[("app", "new")], &["10.0.0.7"])
        .ingress("shop/a", &[("app", "db")], vec![from(&[here(&[("app", "old")])])])
        .ingress("shop/b", &[("app", "web")], vec![from(&[here(&[("app", "new")])])]);
    assert!(cluster.allows_in("shop/db", "10.0.0.7", tcp(80)));
    assert!(cluster.allows_in("shop/web", "10.0.0.7", tcp(80)));
}

#[test]
fn of_two_pods_at_one_address_one_must_satisfy_the_whole_rule() {
    let to_new = vec![rule(&[here(&[("app", "new")])], &[named("http")])];
    let cluster = cluster()
        .pod_with_ports("shop/old", &[("app", "old")], &["10.0.0.7"], &[("http", Tcp, 80)])
        .pod_with_ports("shop/new", &[("app", "new")], &["10.0.0.7"], &[("http", Tcp, 8080)])
        .egress("shop/p", &[("app", "web")], to_new);
    assert!(cluster.allows_out("shop/web", "10.0.0.7", tcp(8080)));
    assert!(!cluster.allows_out("shop/web", "10.0.0.7", tcp(80)), "that name is the other pod's");
}

#[test]
fn a_pod_that_is_not_in_the_model_has_no_chain() {
    let cluster = cluster();
    let ghost = name("shop/ghost");
    let local = [ghost.clone()].into();
    let image = crate::compile::Compiler::new().compile(&cluster.model, &local);
    assert_eq!(image.chain(&ghost, Direction::Ingress), None);
    assert_eq!(image.revision(&ghost), 0);
    let judged =
        crate::reference::judge(&cluster.model, &ghost, Direction::Egress, ip("10.0.0.1"), tcp(1));
    assert_eq!(judged, Reason::Unknown(Direction::Egress));
}
