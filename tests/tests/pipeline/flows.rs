//! Live flows and changes: if anything on which a verdict depends changes, the flow's next packet
//! is judged again.

use crossbeam::channel::Receiver;
use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::flow::{EndReason, FlowDirection, FlowEnd, Verdict};
use manx_dataplane::tables::Tables;
use manx_dataplane::worker::Command;
use manx_policy_compiler::model::ObjectName;
use manx_tests::fabric::{Fabric, RAW, UNDERLAY, pod, policy, workers};
use manx_tests::packet::{Segment, TCP, Tuple, UDP, tunnelled};

const CLIENT: &str = "10.1.0.1";
const SERVER: &str = "10.1.0.2";
const FAR: &str = "10.2.0.1";

/// Only clients reach the server, and the server opens no connections.
fn server_policy() -> String {
    policy(
        "shop/server",
        "{podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress, Egress], \
         ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]}",
    )
}

fn server() -> String {
    pod("shop/server", 0, "{app: server}", &[SERVER])
}

fn client(app: &str) -> String {
    pod("shop/client", 0, &format!("{{app: {app}}}"), &[CLIENT])
}

/// A client on the other node.
fn far(app: &str) -> String {
    pod("shop/far", 1, &format!("{{app: {app}}}"), &[FAR])
}

fn cluster(near_app: &str, far_app: &str) -> String {
    server() + &client(near_app) + &far(far_app) + &server_policy()
}

/// Opens a connection, which is allowed, and sends the answer.
fn open(fabric: &mut Fabric, from: &str, tuple: Tuple) {
    assert_eq!(fabric.send(from, &tuple.opening()).len(), 1, "the first packet");
    assert_eq!(fabric.send("shop/server", &tuple.answer()).len(), 1, "its answer");
    assert_eq!(fabric.send(from, &tuple.data(b"more")).len(), 1, "more");
}

fn passes(fabric: &mut Fabric, pod: &str, bytes: &[u8]) -> bool {
    match fabric.send(pod, bytes).len() {
        0 => false,
        1 => true,
        more => panic!("{more} packets of one"),
    }
}

#[test]
fn a_relabelled_peer_is_judged_anew_whichever_way_the_next_packet_goes() {
    for (from, source) in [("shop/client", CLIENT), ("shop/far", FAR)] {
        for reply_first in [false, true] {
            for protocol in [TCP, UDP] {
                let tuple = Tuple::new(source, SERVER, protocol, 80);
                let mut fabric = Fabric::new(&cluster("client", "client"));
                open(&mut fabric, from, tuple);
                fabric.apply(&cluster("stranger", "stranger"));
                let reply = tuple.reversed().data(b"reply");
                let (server_node, port) = fabric.port("shop/server");
                let (_, client_port) = fabric.port(from);
                let entry = if from == "shop/far" { RAW } else { client_port };
                if reply_first {
                    assert!(!passes(&mut fabric, "shop/server", &reply), "a reply, {tuple:?}");
                    // The flow's original direction is judged, so ingress policy denies.
                    let drops = fabric.nodes[server_node].dropped(port, DropReason::PolicyIngress);
                    assert_eq!(drops, 1, "{:?}", fabric.nodes[server_node].drops());
                }
                assert!(!passes(&mut fabric, from, &tuple.data(b"x")));
                assert_eq!(fabric.nodes[0].dropped(entry, DropReason::PolicyIngress), 1);
                assert!(!passes(&mut fabric, "shop/server", &reply), "a denied flow stays denied");
                assert!(!passes(&mut fabric, from, &tuple.data(b"x")));

                fabric.apply(&cluster("client", "client"));
                assert!(passes(&mut fabric, "shop/server", &reply), "a later allow resumes it");
                assert!(passes(&mut fabric, from, &tuple.data(b"x")));
            }
        }
    }
}

#[test]
fn whoever_asks_is_told_of_the_end_of_each_allowed_flow_with_what_passed() {
    let mut fabric = Fabric::new(&cluster("client", "client"));
    let (to, ends) = crossbeam::channel::bounded(64);
    fabric.nodes[0].send_command(|| Command::TellEnds(to.clone()));
    drop(to);
    let near = Tuple::new(CLIENT, SERVER, TCP, 80);
    let far = Tuple::new(FAR, SERVER, UDP, 80);
    open(&mut fabric, "shop/client", near);
    open(&mut fabric, "shop/far", far);
    let denied = Tuple::new(SERVER, CLIENT, UDP, 53);
    assert!(!passes(&mut fabric, "shop/server", &denied.opening()));
    assert_eq!(ends.try_iter().count(), 0, "both live, and the third never did");

    // The far pod is no longer a client. Its flow ends at its next packet.
    fabric.apply(&cluster("client", "stranger"));
    let told = |ends: &Receiver<FlowEnd>| {
        let one = |end: FlowEnd| {
            let [there, back] = [FlowDirection::Original, FlowDirection::Reply];
            let packets = [there, back].map(|it| end.flow.traffic(it).packets);
            (end.flow.key().protocol(), end.reason, packets)
        };
        ends.try_iter().map(one).collect::<Vec<_>>()
    };
    for _ in 0..3 {
        assert!(!passes(&mut fabric, "shop/server", &far.reversed().data(b"reply")));
    }
    assert_eq!(told(&ends), [(UDP, EndReason::Denied, [2, 1])]);

    // The near client resets its connection and opens it again.
    let reset = near.packet(Segment::Rst, b"");
    assert!(passes(&mut fabric, "shop/client", &reset));
    assert!(passes(&mut fabric, "shop/client", &near.opening()));
    assert_eq!(told(&ends), [(TCP, EndReason::Replaced, [3, 1])]);
}

#[test]
fn a_denied_flow_is_never_readmitted_as_a_flow_of_the_other_direction() {
    // The server's egress is now unrestricted: as a new flow its packets would pass.
    let free = policy(
        "shop/server",
        "{podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress], \
         ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]}",
    );
    let with = |app: &str| server() + &client(app) + &free;
    let tuple = Tuple::new(CLIENT, SERVER, UDP, 53);
    let mut fabric = Fabric::new(&with("client"));
    open(&mut fabric, "shop/client", tuple);
    fabric.apply(&with("stranger"));
    for _ in 0..3 {
        assert!(!passes(&mut fabric, "shop/server", &tuple.reversed().data(b"reply")));
    }
    let other = tuple.from_port(5).reversed();
    assert!(passes(&mut fabric, "shop/server", &other.opening()), "a flow of its own does pass");
}

#[test]
fn a_reused_address_is_judged_as_its_new_pod() {
    for (from, source, node) in [("shop/client", CLIENT, 0), ("shop/far", FAR, 1)] {
        let tuple = Tuple::new(source, SERVER, UDP, 53);
        let mut fabric = Fabric::new(&cluster("client", "client"));
        open(&mut fabric, from, tuple);
        let thief = pod("shop/thief", node, "{app: thief}", &[source]);
        let other = if node == 0 { far("client") } else { client("client") };
        fabric.apply(&(server() + &thief + &other + &server_policy()));
        assert!(!passes(&mut fabric, "shop/thief", &tuple.data(b"x")), "the new pod");
        assert!(!passes(&mut fabric, "shop/server", &tuple.reversed().data(b"x")), "to it");
        let (node, port) = fabric.port(from);
        assert!(
            !passes(&mut fabric, from, &tuple.data(b"x")),
            "the old pod is no endpoint any more"
        );
        assert_eq!(fabric.nodes[node].dropped(port, DropReason::NoTables), 1);
    }
}

#[test]
fn a_changed_policy_reaches_live_flows_and_a_later_allow_resumes_them() {
    let closed = policy(
        "shop/server",
        "{podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress, Egress]}",
    );
    let pods = server() + &client("client") + &far("client");
    for (from, source) in [("shop/client", CLIENT), ("shop/far", FAR)] {
        let tuple = Tuple::new(source, SERVER, TCP, 80);
        let mut fabric = Fabric::new(&(pods.clone() + &server_policy()));
        open(&mut fabric, from, tuple);
        fabric.apply(&(pods.clone() + &closed));
        assert!(!passes(&mut fabric, "shop/server", &tuple.reversed().data(b"x")));
        assert!(!passes(&mut fabric, from, &tuple.data(b"x")));
        assert!(!passes(&mut fabric, from, &tuple.opening()), "nor by a new SYN");
        fabric.apply(&(pods.clone() + &server_policy()));
        assert!(passes(&mut fabric, "shop/server", &tuple.reversed().data(b"x")));
        assert!(passes(&mut fabric, from, &tuple.data(b"x")));
    }
}

#[test]
fn the_port_by_which_a_flow_is_judged_again_is_its_responders() {
    let only = |port: u16| {
        policy(
            "shop/server",
            &format!(
                "{{podSelector: {{matchLabels: {{app: server}}}}, \
                 ingress: [{{ports: [{{port: {port}}}]}}]}}"
            ),
        )
    };
    let pods = server() + &client("client");
    let tuple = Tuple::new(CLIENT, SERVER, TCP, 80).from_port(443);
    let mut fabric = Fabric::new(&(pods.clone() + &only(80)));
    open(&mut fabric, "shop/client", tuple);
    fabric.apply(&(pods.clone() + &only(443)));
    assert!(!passes(&mut fabric, "shop/server", &tuple.reversed().data(b"x")));
    fabric.apply(&(pods + &only(80)));
    assert!(passes(&mut fabric, "shop/server", &tuple.reversed().data(b"x")));
}

#[test]
fn a_moved_pods_flows_follow_it_and_its_old_place_is_spoofing() {
    let tuple = Tuple::new(SERVER, FAR, UDP, 53);
    let at = |node: usize| server() + &pod("shop/far", node, "{app: x}", &[FAR]);
    let mut fabric = Fabric::new(&at(1));
    assert_eq!(fabric.send("shop/server", &tuple.opening())[0].node, 1);
    assert!(passes(&mut fabric, "shop/far", &tuple.answer()));
    let (old_node, old_port) = fabric.port("shop/far");

    // The same pod appears on the server's own node.
    let gone = fabric.nodes[1].locals.keys().next().unwrap().clone();
    fabric.nodes[1].locals.remove(&gone);
    fabric.apply(&at(0));
    let deliveries = fabric.send("shop/server", &tuple.data(b"x"));
    assert_eq!((deliveries.len(), deliveries[0].node), (1, 0), "the next packet goes there");
    assert!(passes(&mut fabric, "shop/far", &tuple.answer()), "and its answers come from there");
    assert_eq!(
        fabric.send_at(old_node, old_port, &tuple.answer()),
        [],
        "no more from the old place"
    );
    let outer = tunnelled(UNDERLAY[1], UNDERLAY[0], &tuple.answer(), 0);
    assert_eq!(fabric.send_at(0, RAW, &outer), [], "nor through its tunnel");
    let mismatch = fabric.nodes[0].drops();
    assert_eq!(
        fabric.nodes[0].dropped(RAW, DropReason::UnknownTunnelPeer)
            + fabric.nodes[0].dropped(RAW, DropReason::TunnelSourceMismatch),
        1,
        "{mismatch:?}"
    );
}

/// A node's tables with the classifier of other tables, and with chosen revisions.
fn with_image_of(tables: &Tables, image: &Tables, revise: &[(u32, u32)]) -> Tables {
    let mut mixed = tables.clone();
    mixed.image = image.image.clone();
    for (index, endpoint) in mixed.endpoints.iter_mut().enumerate() {
        if let Some(endpoint) = endpoint {
            let Some(new) = image.endpoints[index] else { continue };
            (endpoint.ingress, endpoint.egress) = (new.ingress, new.egress);
            if let Some((_, by)) = revise.iter().find(|(at, _)| *at as usize == index) {
                endpoint.revision += by;
            }
        }
    }
    mixed
}

#[test]
fn a_flow_whose_grounds_have_not_changed_is_not_judged_again() {
    // Tables whose classifier denies everything, but whose revisions and identities say that nothing has changed: a
    // flow that is judged again is denied.
    let pods = server() + &client("client") + &pod("shop/other", 0, "{app: client}", &["10.1.0.3"]);
    let mut fabric = Fabric::new(&(pods.clone() + &server_policy()));
    let tuple = Tuple::new(CLIENT, SERVER, UDP, 53);
    open(&mut fabric, "shop/client", tuple);
    let allowing = fabric.nodes[0].tables.clone();
    let closed = policy(
        "shop/server",
        "{podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress, Egress], ingress: [{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 1}]}]}",
    );
    fabric.load(&(pods + &closed));
    let denying = fabric.tables(0);
    let same = |address: &str| {
        let address = address.parse().unwrap();
        assert_eq!(allowing.image.identity(address), denying.image.identity(address), "{address}");
    };
    same(CLIENT);
    same(SERVER);
    fabric.nodes[0].publish(with_image_of(&allowing, &denying, &[]));
    assert!(passes(&mut fabric, "shop/client", &tuple.data(b"x")), "the verdict stands");
    assert!(passes(&mut fabric, "shop/server", &tuple.reversed().data(b"x")));
    let other = Tuple::new("10.1.0.3", SERVER, UDP, 53);
    assert!(!passes(&mut fabric, "shop/other", &other.opening()), "a new flow is judged");

    let name = ObjectName::new("shop", "other");
    let untouched = fabric.nodes[0].locals[&name].index;
    fabric.nodes[0].publish(with_image_of(&allowing, &denying, &[(untouched, 1)]));
    assert!(passes(&mut fabric, "shop/client", &tuple.data(b"x")), "another endpoint's revision");

    let name = ObjectName::new("shop", "server");
    let touched = fabric.nodes[0].locals[&name].index;
    fabric.nodes[0].publish(with_image_of(&allowing, &denying, &[(touched, 1)]));
    assert!(!passes(&mut fabric, "shop/client", &tuple.data(b"x")), "its own");
}

#[test]
fn a_flow_remembers_its_verdict_direction_and_traffic() {
    let mut fabric = Fabric::new(&cluster("client", "client"));
    let tuple = Tuple::new(CLIENT, SERVER, UDP, 53);
    open(&mut fabric, "shop/client", tuple);
    let flows = fabric.nodes[0].flows();
    assert_eq!(flows.len(), 1, "both directions are one flow");
    assert_eq!(flows[0].verdict, Verdict::Allow);
    let packets =
        [FlowDirection::Original, FlowDirection::Reply].map(|way| flows[0].traffic(way).packets);
    assert_eq!(packets, [2, 1]);
    fabric.apply(&cluster("stranger", "client"));
    assert!(!passes(&mut fabric, "shop/client", &tuple.data(b"x")));
    let flows = fabric.nodes[0].flows();
    assert_eq!((flows.len(), flows[0].verdict), (1, Verdict::DenyIngress), "it stays, denied");
    assert_eq!(
        flows[0].traffic(FlowDirection::Original).packets,
        2,
        "what was denied is no traffic"
    );
}

#[test]
fn what_is_denied_at_first_leaves_no_flow() {
    let mut fabric = Fabric::new(&cluster("stranger", "client"));
    let tuple = Tuple::new(CLIENT, SERVER, UDP, 53);
    assert!(!passes(&mut fabric, "shop/client", &tuple.opening()));
    assert!(fabric.nodes[0].flows().is_empty());
}

#[test]
fn a_flow_whose_pod_is_no_more_known_dies_for_that_reason_however_often_it_tries() {
    let mut fabric = Fabric::new(&cluster("client", "client"));
    let tuple = Tuple::new(CLIENT, SERVER, UDP, 53);
    open(&mut fabric, "shop/client", tuple);
    fabric.apply(&(client("client") + &far("client")));
    let (_, port) = fabric.port("shop/client");
    for times in 1..4 {
        assert!(!passes(&mut fabric, "shop/client", &tuple.data(b"x")));
        let drops = fabric.nodes[0].drops();
        assert_eq!(fabric.nodes[0].dropped(port, DropReason::NoTables), times, "{drops:?}");
    }
    fabric.apply(&cluster("client", "client"));
    assert!(passes(&mut fabric, "shop/client", &tuple.data(b"x")), "and resumes with it");
}

#[test]
fn a_syn_of_the_responder_is_judged_alone_and_leaves_the_flow_as_it_is() {
    let mut fabric = Fabric::new(&cluster("client", "client"));
    let tuple = Tuple::new(CLIENT, SERVER, TCP, 80);
    open(&mut fabric, "shop/client", tuple);
    let (_, port) = fabric.port("shop/server");
    assert!(!passes(&mut fabric, "shop/server", &tuple.reversed().opening()));
    assert_eq!(fabric.nodes[0].dropped(port, DropReason::PolicyEgress), 1);
    assert!(passes(&mut fabric, "shop/server", &tuple.reversed().data(b"x")));
    assert!(passes(&mut fabric, "shop/client", &tuple.data(b"x")));
}

#[test]
fn a_silent_flow_is_forgotten_and_its_reply_is_judged_as_a_flow_of_its_own() {
    let mut fabric = Fabric::new(&cluster("client", "client"));
    let tuple = Tuple::new(CLIENT, SERVER, UDP, 53);
    open(&mut fabric, "shop/client", tuple);
    fabric.nodes[0].now += std::time::Duration::from_secs(59);
    assert!(passes(&mut fabric, "shop/server", &tuple.reversed().data(b"x")));
    fabric.nodes[0].now += std::time::Duration::from_secs(62);
    assert!(!passes(&mut fabric, "shop/server", &tuple.reversed().data(b"x")));
}

#[test]
fn every_live_flow_that_makes_room_for_another_is_counted() {
    let mut fabric = Fabric::new(&(server() + &client("client")));
    let sent = 4500 * workers() as u16;
    for n in 0..sent {
        let mut tuple = Tuple::new(CLIENT, SERVER, UDP, 80);
        tuple.source_port = 10_000 + n;
        assert!(passes(&mut fabric, "shop/client", &tuple.opening()));
    }
    let kept = fabric.nodes[0].flows().len() as u64;
    let evicted = fabric.nodes[0].counters.iter().map(|it| it.evictions.read()).sum::<u64>();
    assert!(evicted > 0, "the table holds them all: {kept}");
    assert_eq!(kept + evicted, u64::from(sent));
}
