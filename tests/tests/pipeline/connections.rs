//! Connections with the agent's settings `strict` and `established: keep`.

use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::flow::FlowState;
use manx_dataplane::tables::{Established, TrackingSettings};
use manx_policy_compiler::model::ObjectName;
use manx_tests::fabric::{Fabric, pod, policy};
use manx_tests::packet::{ICMP, TCP, Tuple, UDP};

const CLIENT: &str = "10.1.0.1";
const SERVER: &str = "10.1.0.2";
const FAR: &str = "10.2.0.1";

fn pods(app: &str) -> String {
    pod("shop/server", 0, "{app: server}", &[SERVER])
        + &pod("shop/client", 0, &format!("{{app: {app}}}"), &[CLIENT])
        + &pod("shop/far", 1, &format!("{{app: {app}}}"), &[FAR])
}

fn only_clients() -> String {
    policy(
        "shop/server",
        "{podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress, Egress], \
         ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]}",
    )
}

fn no_clients() -> String {
    policy(
        "shop/server",
        "{podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress, Egress]}",
    )
}

fn fabric(connections: TrackingSettings, yaml: &str) -> Fabric {
    let mut fabric = Fabric::closed();
    fabric.connections = connections;
    fabric.apply(yaml);
    fabric
}

fn strict() -> TrackingSettings {
    TrackingSettings { tcp_strict: true, ..TrackingSettings::default() }
}

fn keep() -> TrackingSettings {
    TrackingSettings { established: Established::Keep, ..TrackingSettings::default() }
}

fn passes(fabric: &mut Fabric, pod: &str, bytes: &[u8]) -> bool {
    match fabric.send(pod, bytes).len() {
        0 => false,
        1 => true,
        more => panic!("{more} packets of one"),
    }
}

/// Opens a connection to the server and sends the server's answer.
fn open(fabric: &mut Fabric, from: &str, tuple: Tuple) {
    assert!(passes(fabric, from, &tuple.opening()));
    assert!(passes(fabric, "shop/server", &tuple.answer()));
    assert!(passes(fabric, from, &tuple.data(b"more")));
}

#[test]
fn a_non_syn_packet_without_a_flow_is_judged_as_a_new_flow_unless_strict() {
    let yaml = pods("client") + &only_clients();
    for (from, source) in [("shop/client", CLIENT), ("shop/far", FAR)] {
        let tuple = Tuple::new(source, SERVER, TCP, 80);
        let mut lenient = fabric(TrackingSettings::default(), &yaml);
        assert!(passes(&mut lenient, from, &tuple.data(b"stray")));

        let mut fabric = fabric(strict(), &yaml);
        let (node, port) = fabric.port(from);
        for stray in [tuple.data(b"stray"), tuple.from_port(9).reversed().answer()] {
            let dropped = fabric.nodes[node].dropped(port, DropReason::TcpWithoutFlow);
            assert!(!passes(&mut fabric, from, &stray));
            let now = fabric.nodes[node].dropped(port, DropReason::TcpWithoutFlow);
            assert_eq!(now, dropped + 1, "{:?}", fabric.nodes[node].drops());
        }
        assert_eq!(fabric.nodes[node].flows().len(), 0);
        open(&mut fabric, from, tuple);
        assert!(passes(&mut fabric, "shop/server", &tuple.reversed().data(b"reply")));
        for other in [UDP, ICMP] {
            let opening = Tuple::new(source, SERVER, other, 53).opening();
            assert!(passes(&mut fabric, from, &opening), "only TCP has a SYN");
        }
    }
}

#[test]
fn strict_asks_first_whether_the_source_may_be_there() {
    let mut fabric = fabric(strict(), &(pods("client") + &only_clients()));
    let forged = Tuple::new(FAR, SERVER, TCP, 80).data(b"forged");
    assert!(!passes(&mut fabric, "shop/client", &forged));
    let (_, port) = fabric.port("shop/client");
    assert_eq!(fabric.nodes[0].dropped(port, DropReason::SourceSpoofed), 1);
}

#[test]
fn established_keep_lets_connections_survive_a_policy_change_until_they_end() {
    for (from, source) in [("shop/client", CLIENT), ("shop/far", FAR)] {
        for protocol in [TCP, UDP] {
            for after in [pods("client") + &no_clients(), pods("stranger") + &only_clients()] {
                let tuple = Tuple::new(source, SERVER, protocol, 80);
                let mut fabric = fabric(keep(), &(pods("client") + &only_clients()));
                open(&mut fabric, from, tuple);
                // The connection is half open: it has no answer.
                let attempt = tuple.from_port(7);
                assert!(passes(&mut fabric, from, &attempt.opening()));
                fabric.apply(&after);
                for _ in 0..3 {
                    assert!(passes(&mut fabric, "shop/server", &tuple.reversed().data(b"x")));
                    assert!(passes(&mut fabric, from, &tuple.data(b"x")));
                }
                assert!(!passes(&mut fabric, from, &attempt.data(b"x")), "it was not established");
                assert!(!passes(&mut fabric, from, &tuple.from_port(8).opening()), "a new one");
                // This silence is longer than any timeout.
                for node in &mut fabric.nodes {
                    node.now += std::time::Duration::from_secs(3700);
                }
                assert!(!passes(&mut fabric, from, &tuple.data(b"x")), "it has ended");
            }
        }
    }
}

#[test]
fn a_syn_is_always_judged_and_does_not_end_what_is_kept() {
    let tuple = Tuple::new(CLIENT, SERVER, TCP, 80);
    let mut fabric = fabric(keep(), &(pods("client") + &only_clients()));
    open(&mut fabric, "shop/client", tuple);
    fabric.apply(&(pods("client") + &no_clients()));
    assert!(!passes(&mut fabric, "shop/client", &tuple.opening()));
    let (_, port) = fabric.port("shop/client");
    assert_eq!(fabric.nodes[0].dropped(port, DropReason::PolicyIngress), 1);
    assert!(passes(&mut fabric, "shop/client", &tuple.data(b"x")));
    assert_eq!(fabric.nodes[0].flows()[0].state(), FlowState::Established);
}

#[test]
fn what_is_kept_survives_other_pods_coming_and_going() {
    let tuple = Tuple::new(CLIENT, SERVER, TCP, 80);
    let mut fabric = fabric(keep(), &(pods("client") + &only_clients()));
    open(&mut fabric, "shop/client", tuple);
    let more = pod("shop/new", 0, "{}", &["10.1.0.7"]);
    fabric.apply(&(pods("client") + &more + &no_clients()));
    assert!(passes(&mut fabric, "shop/client", &tuple.data(b"x")));
    fabric.apply(&(pods("client") + &no_clients()));
    assert!(passes(&mut fabric, "shop/server", &tuple.reversed().data(b"x")));
}

#[test]
fn another_pod_with_the_address_does_not_inherit_what_is_kept() {
    let tuple = Tuple::new(CLIENT, SERVER, TCP, 80);
    let mut fabric = fabric(keep(), &(pods("client") + &only_clients()));
    open(&mut fabric, "shop/client", tuple);
    // The client is deleted; a new pod gets its number, its port and its address.
    let node = &mut fabric.nodes[0];
    let mut local = node.locals.remove(&ObjectName::new("shop", "client")).unwrap();
    local.attachment = 40;
    let port = local.port;
    node.locals.insert(ObjectName::new("shop", "thief"), local);
    let thief = pod("shop/thief", 0, "{app: thief}", &[CLIENT]);
    let rest = pod("shop/server", 0, "{app: server}", &[SERVER]);
    fabric.apply(&(rest + &thief + &only_clients()));
    assert!(!passes(&mut fabric, "shop/thief", &tuple.data(b"x")));
    assert_eq!(fabric.nodes[0].dropped(port, DropReason::PolicyIngress), 1);
    assert!(!passes(&mut fabric, "shop/server", &tuple.reversed().data(b"x")));
}
