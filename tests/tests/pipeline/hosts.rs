//! Policy for the node's own interfaces, as far as forwarded packets come by: `applyOnForward`, and what pods send to their
//! node (Calico documentation, "Host endpoints").

use manx_dataplane::fate::DropReason;
use manx_dataplane::tables::PortId;
use manx_tests::fabric::{Fabric, HOST, RAW, UNDERLAY, pod};
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

/// Forwarded TCP to port 80 and no other, into the node; out of it everything.
fn only_port_80() -> String {
    calico(
        "GlobalNetworkPolicy",
        "forwarded",
        "{selector: role == 'node', applyOnForward: true, types: [Ingress, Egress], \
         ingress: [{action: Allow, protocol: TCP, destination: {ports: [80]}}], egress: [{action: Allow}]}",
    )
}

/// How many packets came out for one that was sent in.
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
    // What is known to govern the interface does.
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
