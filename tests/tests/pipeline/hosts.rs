//! Policy for the node's own interfaces (Calico documentation, "Host endpoints"). If the uplink is shared with the
//! kernel, it applies to forwarded packets (`applyOnForward`) and to what pods send to their node; if Manx owns the
//! uplink, to everything.

use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::tables::PortId;
use manx_tests::fabric::{Delivery, Fabric, HOST, RAW, UNDERLAY, UPLINK, pod};
use manx_tests::packet::{TCP, Tuple, tunnelled};

const A: &str = "10.1.0.1";
const FAR: &str = "10.2.0.1";
const OUTSIDE: &str = "192.0.2.1";

fn calico(kind: &str, name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: projectcalico.org/v3\nkind: {kind}\nmetadata: {{name: {name}, labels: {{role: node}}}}\nspec: {spec}\n"
    )
}

fn cluster(more: &[String]) -> (Fabric, PortId) {
    let yaml = pod("shop/a", 0, "{app: a}", &[A])
        + &pod("shop/far", 1, "{app: far}", &[FAR])
        + &more.concat();
    let fabric = Fabric::new(&yaml);
    let (_, a) = fabric.port("shop/a");
    (fabric, a)
}

fn host_endpoint(interface: &str) -> String {
    let interface = format!("{{node: node-1, interfaceName: {interface}}}");
    calico("HostEndpoint", "node-1", &interface)
}

/// A policy that allows only forwarded TCP to port 80 into the node, and everything out of it.
fn only_port_80() -> String {
    calico(
        "GlobalNetworkPolicy",
        "forwarded",
        "{selector: role == 'node', applyOnForward: true, types: [Ingress, Egress], \
         ingress: [{action: Allow, protocol: TCP, destination: {ports: [80]}}], egress: [{action: Allow}]}",
    )
}

/// Whether a packet that was sent in comes out.
fn passes(fabric: &mut Fabric, port: PortId, packet: &[u8]) -> bool {
    !fabric.send_at(0, port, packet).is_empty()
}

fn from_outside(port: u16) -> Vec<u8> {
    Tuple::new(OUTSIDE, A, TCP, port).opening()
}

fn from_far(port: u16) -> Vec<u8> {
    tunnelled(UNDERLAY[1], UNDERLAY[0], &Tuple::new(FAR, A, TCP, port).opening(), 0)
}

#[test]
fn apply_on_forward_policies_also_see_forwarded_traffic() {
    let (mut fabric, a) = cluster(&[host_endpoint("\"*\""), only_port_80()]);
    assert!(passes(&mut fabric, HOST, &from_outside(80)));
    assert!(!passes(&mut fabric, HOST, &from_outside(81)));
    assert_eq!(fabric.nodes[0].dropped(HOST, DropReason::PolicyIngress), 1);
    assert!(passes(&mut fabric, RAW, &from_far(80)));
    assert!(!passes(&mut fabric, RAW, &from_far(81)));
    assert!(passes(&mut fabric, a, &Tuple::new(A, OUTSIDE, TCP, 81).opening()));
}

#[test]
fn a_named_interface_is_not_the_tunnels_one() {
    let (mut fabric, _) = cluster(&[host_endpoint("eth0"), only_port_80()]);
    assert!(!passes(&mut fabric, HOST, &from_outside(81)));
    assert!(passes(&mut fabric, RAW, &from_far(81)));
    let (mut fabric, _) = cluster(&[host_endpoint("eth7"), only_port_80()]);
    assert!(passes(&mut fabric, HOST, &from_outside(81)), "the uplink is eth0");
}

#[test]
fn if_no_apply_on_forward_policy_exists_in_a_direction_forwarded_traffic_is_allowed() {
    let local_only = calico(
        "GlobalNetworkPolicy",
        "local",
        "{selector: role == 'node', types: [Ingress, Egress]}",
    );
    let (mut fabric, a) = cluster(&[host_endpoint("\"*\""), local_only]);
    assert!(passes(&mut fabric, HOST, &from_outside(80)));
    assert!(passes(&mut fabric, a, &Tuple::new(A, OUTSIDE, TCP, 80).opening()));
}

#[test]
fn if_any_apply_on_forward_policy_exists_and_none_allows_forwarded_traffic_is_denied() {
    let nothing = calico(
        "GlobalNetworkPolicy",
        "nothing",
        "{selector: role == 'node', applyOnForward: true, types: [Egress]}",
    );
    let (mut fabric, a) = cluster(&[host_endpoint("\"*\""), nothing]);
    assert!(passes(&mut fabric, HOST, &from_outside(80)), "it speaks of egress only");
    assert!(!passes(&mut fabric, a, &Tuple::new(A, OUTSIDE, TCP, 80).opening()));
    assert_eq!(fabric.nodes[0].dropped(a, DropReason::PolicyEgress), 1);
}

#[test]
fn a_host_endpoint_that_is_not_valid_denies_what_any_policy_on_forward_may_deny() {
    let broken = || calico("HostEndpoint", "broken", "{node: 5}");
    let (mut fabric, a) = cluster(&[broken()]);
    assert!(passes(&mut fabric, HOST, &from_outside(80)));
    fabric.apply(&(pod("shop/a", 0, "{app: a}", &[A]) + &broken() + &only_port_80()));
    assert!(!passes(&mut fabric, HOST, &from_outside(80)));
    assert!(!passes(&mut fabric, RAW, &from_far(80)));
    assert!(!passes(&mut fabric, a, &Tuple::new(A, OUTSIDE, TCP, 80).opening()));
    // A valid host endpoint of the interface governs it.
    let (mut fabric, _) = cluster(&[broken(), host_endpoint("eth0"), only_port_80()]);
    assert!(passes(&mut fabric, HOST, &from_outside(80)));
    assert!(!passes(&mut fabric, RAW, &from_far(80)), "the tunnels have no other");
}

#[test]
fn workload_policy_still_applies_to_forwarded_traffic() {
    let isolated = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
        metadata: {name: closed, namespace: shop}\nspec: {podSelector: {}}\n";
    let (mut fabric, _) = cluster(&[host_endpoint("\"*\""), only_port_80(), isolated.to_owned()]);
    assert!(!passes(&mut fabric, HOST, &from_outside(80)));
}

#[test]
fn a_live_flow_is_judged_by_a_host_policy_that_comes_later() {
    let (mut fabric, _) = cluster(&[host_endpoint("\"*\"")]);
    assert!(passes(&mut fabric, HOST, &from_outside(81)));
    fabric.apply(&(pod("shop/a", 0, "{app: a}", &[A]) + &host_endpoint("\"*\"") + &only_port_80()));
    assert!(!passes(&mut fabric, HOST, &from_outside(81)));
}

#[test]
fn endpoint_to_host_action_drop_ends_what_pods_send_to_their_node() {
    let felix = |action: &str| {
        let spec = format!("{{defaultEndpointToHostAction: {action}}}");
        calico("FelixConfiguration", "default", &spec)
    };
    let to_node = Tuple::new(A, &UNDERLAY[0].to_string(), TCP, 22).opening();
    for action in ["Accept", "Return"] {
        let (mut fabric, a) = cluster(&[felix(action)]);
        assert!(passes(&mut fabric, a, &to_node), "{action}");
    }
    let (mut fabric, a) = cluster(&[felix("Drop")]);
    assert!(!passes(&mut fabric, a, &to_node));
    assert_eq!(fabric.nodes[0].dropped(a, DropReason::EndpointToHost), 1);
    assert!(passes(&mut fabric, a, &Tuple::new(A, OUTSIDE, TCP, 22).opening()));
    let from_node = Tuple::new(&UNDERLAY[0].to_string(), A, TCP, 80).opening();
    assert!(passes(&mut fabric, HOST, &from_node), "the node still reaches its pods");
}

/// Both nodes own their uplinks. The first one has a host endpoint for all interfaces, and some
/// policies.
fn owned(policies: &[String]) -> (Fabric, PortId) {
    let fabric = Fabric::with_uplinks(&manifests(policies));
    let (_, a) = fabric.port("shop/a");
    (fabric, a)
}

fn manifests(policies: &[String]) -> String {
    let pods = pod("shop/a", 0, "{app: a}", &[A]) + &pod("shop/far", 1, "{app: far}", &[FAR]);
    pods + &host_endpoint("\"*\"") + &policies.concat()
}

fn global(name: &str, spec: &str) -> String {
    calico("GlobalNetworkPolicy", name, &format!("{{selector: role == 'node', {spec}}}"))
}

fn node() -> String {
    UNDERLAY[0].to_string()
}

fn to_node(port: u16) -> Tuple {
    Tuple::new(OUTSIDE, &node(), TCP, port)
}

fn from_node(port: u16) -> Tuple {
    Tuple::new(&node(), OUTSIDE, TCP, port)
}

fn ports(deliveries: &[Delivery]) -> Vec<PortId> {
    deliveries.iter().map(|delivery| delivery.port).collect()
}

#[test]
fn the_world_is_behind_an_uplink_that_is_owned_and_the_node_alone_behind_the_host_port() {
    let yaml = pod("shop/a", 0, "{app: a}", &[A]) + &pod("shop/far", 1, "{app: far}", &[FAR]);
    let mut fabric = Fabric::with_uplinks(&yaml);
    let (_, a) = fabric.port("shop/a");
    for (port, packet, leaves) in [
        (UPLINK, to_node(80).opening(), HOST),
        (HOST, from_node(80).opening(), UPLINK),
        (UPLINK, from_outside(80), a),
        (a, Tuple::new(A, OUTSIDE, TCP, 80).opening(), UPLINK),
        (UPLINK, from_far(80), a),
    ] {
        assert_eq!(ports(&fabric.send_at(0, port, &packet)), [leaves]);
    }
    // No other sender may use an address of the node or of its peer.
    assert!(!passes(&mut fabric, UPLINK, &from_node(80).opening()));
    assert!(!passes(&mut fabric, HOST, &to_node(80).opening()));
    assert!(!passes(&mut fabric, UPLINK, &Tuple::new(FAR, A, TCP, 80).opening()));
    assert_eq!(fabric.nodes[0].dropped(UPLINK, DropReason::SourceSpoofed), 2);
    assert_eq!(fabric.nodes[0].dropped(HOST, DropReason::SourceSpoofed), 1);
}

#[test]
fn without_policy_local_traffic_is_denied_but_for_failsafe_ports_and_forwarded_traffic_allowed() {
    let (mut fabric, a) = owned(&[]);
    assert!(!passes(&mut fabric, UPLINK, &to_node(80).opening()));
    assert!(!passes(&mut fabric, HOST, &from_node(80).opening()));
    assert!(passes(&mut fabric, UPLINK, &to_node(22).opening()));
    assert!(!passes(&mut fabric, HOST, &from_node(22).opening()), "22 is safe inwards only");
    assert!(passes(&mut fabric, HOST, &from_node(6443).opening()));
    assert!(passes(&mut fabric, UPLINK, &from_outside(80)));
    assert!(passes(&mut fabric, a, &Tuple::new(A, OUTSIDE, TCP, 80).opening()));
    assert_eq!(fabric.nodes[0].dropped(UPLINK, DropReason::PolicyIngress), 1);
    assert_eq!(fabric.nodes[0].dropped(HOST, DropReason::PolicyEgress), 2);
    // The node's own pods are not behind an interface of the node.
    let to_pod = Tuple::new(&node(), A, TCP, 80).opening();
    assert!(passes(&mut fabric, HOST, &to_pod));
    assert!(passes(&mut fabric, a, &Tuple::new(A, &node(), TCP, 80).opening()));
    // The tunnels are behind an interface of the node.
    assert!(!passes(&mut fabric, HOST, &Tuple::new(&node(), FAR, TCP, 80).opening()));
}

#[test]
fn a_normal_policy_allows_local_traffic_and_its_replies() {
    let allow = global(
        "local",
        "ingress: [{action: Allow, protocol: TCP, destination: {ports: [80]}}], types: [Ingress]",
    );
    let (mut fabric, _) = owned(&[allow]);
    let tuple = to_node(80);
    assert!(passes(&mut fabric, UPLINK, &tuple.opening()));
    assert!(!passes(&mut fabric, UPLINK, &to_node(81).opening()));
    assert!(passes(&mut fabric, HOST, &tuple.answer()), "an established connection's");
    assert!(!passes(&mut fabric, HOST, &to_node(81).answer()), "no connection's");
    assert!(passes(&mut fabric, UPLINK, &from_outside(81)), "it does not apply on forward");
    fabric.apply(&manifests(&[]));
    assert!(!passes(&mut fabric, UPLINK, &tuple.data(b"more")), "no policy allows it any more");
}

#[test]
fn pre_dnat_policies_come_before_the_others_and_are_for_local_and_forwarded_traffic() {
    let early = global(
        "early",
        "preDNAT: true, applyOnForward: true, types: [Ingress], ingress: [\
         {action: Allow, protocol: TCP, destination: {ports: [80]}}, {action: Deny, protocol: TCP, destination: {ports: [22, 81]}}]",
    );
    let late = global(
        "late",
        "order: 1, applyOnForward: true, types: [Ingress], ingress: [{action: Deny, protocol: TCP, destination: {ports: [80, 82]}}, {action: Allow}]",
    );
    let (mut fabric, _) = owned(&[early, late]);
    for (port, expected) in [(80, true), (81, false), (82, false), (83, true)] {
        assert_eq!(
            passes(&mut fabric, UPLINK, &to_node(port).opening()),
            expected,
            "to node {port}"
        );
        assert_eq!(passes(&mut fabric, UPLINK, &from_outside(port)), expected, "to pod {port}");
    }
    assert!(passes(&mut fabric, UPLINK, &to_node(22).opening()), "failsafe ports come before it");
    assert!(passes(&mut fabric, UPLINK, &from_outside(22)), "and then late allows");
    assert!(passes(&mut fabric, HOST, &to_node(80).answer()), "it is tracked");
}

#[test]
fn what_do_not_track_policies_allow_leaves_no_flow_and_its_way_back_is_asked_about_for_itself() {
    let rule = "{action: Allow, protocol: TCP, destination: {ports: [80]}}";
    let back = "{action: Allow, protocol: TCP, source: {ports: [80]}}";
    let untracked = |egress: &str| {
        let deny = "{action: Deny, protocol: TCP, destination: {ports: [22, 81]}}";
        global(
            "raw",
            &format!(
                "doNotTrack: true, applyOnForward: true, types: [Ingress, Egress], ingress: [{rule}, {deny}], egress: [{egress}]"
            ),
        )
    };
    let normal = global(
        "normal",
        "types: [Ingress], ingress: [{action: Deny, protocol: TCP, destination: {ports: [80]}}, {action: Allow}]",
    );
    let (mut fabric, _) = owned(&[untracked(""), normal.clone()]);
    let tuple = to_node(80);
    assert!(passes(&mut fabric, UPLINK, &tuple.opening()), "no other policy is asked");
    assert!(fabric.nodes[0].flows().is_empty());
    assert!(
        !passes(&mut fabric, HOST, &tuple.answer()),
        "there is no connection that it belongs to"
    );
    assert!(!passes(&mut fabric, UPLINK, &to_node(81).opening()));
    assert!(passes(&mut fabric, UPLINK, &to_node(22).opening()), "failsafe ports come before it");
    assert!(passes(&mut fabric, UPLINK, &to_node(82).opening()), "normal policy decides the rest");
    assert_eq!(fabric.nodes[0].flows().len(), 2);
    fabric.apply(&manifests(&[untracked(back), normal]));
    assert!(passes(&mut fabric, HOST, &tuple.answer()));
    assert_eq!(fabric.nodes[0].flows().len(), 2);
}

#[test]
fn do_not_track_denies_packets_of_established_connections_too_and_leaves_pods_their_own_policy() {
    let raw = |action: &str| {
        global(
            "raw",
            &format!(
                "doNotTrack: true, applyOnForward: true, types: [Ingress], ingress: [{{action: {action}, protocol: TCP, destination: {{ports: [80]}}}}]"
            ),
        )
    };
    let (mut fabric, _) = owned(&[]);
    let tuple = Tuple::new(OUTSIDE, A, TCP, 80);
    assert!(passes(&mut fabric, UPLINK, &tuple.opening()));
    assert!(passes(&mut fabric, UPLINK, &tuple.data(b"more")));
    fabric.apply(&manifests(&[raw("Deny")]));
    assert!(!passes(&mut fabric, UPLINK, &tuple.data(b"more")));
    assert_eq!(fabric.nodes[0].dropped(UPLINK, DropReason::PolicyIngress), 1);
    let isolated = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
        metadata: {name: closed, namespace: shop}\nspec: {podSelector: {}}\n";
    let (mut fabric, _) = owned(&[raw("Allow"), isolated.to_owned()]);
    assert!(!passes(&mut fabric, UPLINK, &tuple.opening()));
}

#[test]
fn where_the_uplink_is_shared_only_forwarded_traffic_is_judged() {
    let all = [
        global(
            "raw",
            "doNotTrack: true, applyOnForward: true, types: [Ingress], ingress: [{action: Deny}]",
        ),
        global(
            "early",
            "preDNAT: true, applyOnForward: true, types: [Ingress], ingress: [{action: Deny}]",
        ),
    ];
    let (mut fabric, _) = cluster(&[&[host_endpoint("\"*\"")], &all[..]].concat());
    assert!(passes(&mut fabric, HOST, &from_outside(80)));
    let (mut fabric, _) = owned(&all);
    assert!(!passes(&mut fabric, UPLINK, &from_outside(80)));
}
