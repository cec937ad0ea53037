//! The manifests for the bench's agents: nodes, a pool, pods, and policies that deny everything except the traffic.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};

use super::shape::{Overlay, Shape, Translation};
use crate::path::constants::{ATTACK_PORTS, ATTACKER, FAR, NAMESPACE, PORT, TARGET};
use crate::path::filter::unmatched_rule;
use crate::path::way::{OUTSIDE, Way};

/// A pod of the manifests.
pub(crate) struct Pod {
    pub(crate) name: String,
    /// The index of its node; 0 is `node-1`.
    pub(crate) node: usize,
    pub(crate) address: IpAddr,
}

/// The traffic that a policy allows for one pod. Everything else is denied by default.
struct Allowed {
    policy: &'static str,
    pod: &'static str,
    direction: Direction,
    peers: &'static [Peer],
    /// The number of allowed ports, starting with [`PORT`].
    ports: u16,
}

#[derive(Clone, Copy)]
enum Peer {
    Pod(&'static str),
    Host(Ipv4Addr),
}

#[derive(Clone, Copy)]
enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    /// The words of a `NetworkPolicy` for this direction: the policy type, the field that holds the rules, and the
    /// field of a rule that holds the peers.
    const fn field_names(self) -> [&'static str; 3] {
        match self {
            Self::Ingress => ["Ingress", "ingress", "from"],
            Self::Egress => ["Egress", "egress", "to"],
        }
    }
}

const fn allowed(
    policy: &'static str,
    pod: &'static str,
    direction: Direction,
    peers: &'static [Peer],
    ports: u16,
) -> Allowed {
    Allowed { policy, pod, direction, peers, ports }
}

/// The traffic between the two ends: out of the left one, into the right one.
const ENDS: [Allowed; 2] = [
    allowed("out", "left", Direction::Egress, &[Peer::Pod("right")], 1),
    allowed("into", "right", Direction::Ingress, &[Peer::Pod("left")], 1),
];
/// The traffic of a pod to a host outside.
const OUT: [Allowed; 1] =
    [allowed("out", "left", Direction::Egress, &[Peer::Host(OUTSIDE)], Way::Out.ports())];
/// The traffic of a host outside to a pod.
const INTO: [Allowed; 1] =
    [allowed("into", "right", Direction::Ingress, &[Peer::Host(OUTSIDE)], Way::NodePort.ports())];
/// The traffic of an attacker, which may send to a pod on its node and to one on another node.
const ATTACK: [Allowed; 2] = [
    allowed(
        "attack",
        ATTACKER,
        Direction::Egress,
        &[Peer::Pod(TARGET), Peer::Pod(FAR)],
        ATTACK_PORTS,
    ),
    allowed("attacked", TARGET, Direction::Ingress, &[Peer::Pod(ATTACKER)], ATTACK_PORTS),
];

/// All objects except the pods.
pub(crate) fn cluster(shape: &Shape) -> String {
    let mut text = String::new();
    for node in [1, 2] {
        let _ = write!(
            text,
            "apiVersion: v1\nkind: Node\nmetadata: {{ name: node-{node} }}\n\
             spec: {{ podCIDR: 10.244.{node}.0/24, podCIDRs: [10.244.{node}.0/24] }}\n\
             status: {{ addresses: [{{ type: InternalIP, address: 172.18.0.{} }}] }}\n---\n",
            node + 1
        );
    }
    let nat_outgoing = shape.translation != Translation::Off;
    let mode = match shape.across {
        Some(Overlay::Vxlan) => "vxlanMode",
        None | Some(Overlay::Ipip) => "ipipMode",
    };
    let _ = write!(
        text,
        "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {{ name: pool }}\n\
         spec: {{ cidr: 10.244.0.0/16, {mode}: Always, natOutgoing: {nat_outgoing} }}\n---\n\
         apiVersion: v1\nkind: Namespace\nmetadata: {{ name: {NAMESPACE} }}\n---\n\
         apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
         metadata: {{ name: default-deny, namespace: {NAMESPACE} }}\n\
         spec: {{ podSelector: {{}}, policyTypes: [Ingress, Egress] }}\n---\n"
    );
    let attack = if shape.attack { &ATTACK[..] } else { &[] };
    let ends = match shape.way() {
        Some(Way::Out) => &OUT[..],
        Some(Way::NodePort) => &INTO[..],
        Some(Way::ClusterIp) | None => &ENDS[..],
    };
    for allowed in ends.iter().chain(attack) {
        policy(&mut text, allowed, shape.rules);
    }
    text
}

/// Appends a policy with `rules` rules and a last rule that allows the traffic.
fn policy(text: &mut String, allowed: &Allowed, rules: usize) {
    let [policy_type, field, peers] = allowed.direction.field_names();
    let _ = write!(
        text,
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
         metadata: {{ name: {}, namespace: {NAMESPACE} }}\n\
         spec:\n  podSelector: {{ matchLabels: {{ side: {} }} }}\n  policyTypes: [{policy_type}]\n  {field}:\n",
        allowed.policy, allowed.pod
    );
    for (cidr, port) in (0..rules).map(unmatched_rule) {
        let _ = writeln!(
            text,
            "    - {{ {peers}: [{{ ipBlock: {{ cidr: {cidr} }} }}], ports: [{{ port: {port} }}] }}"
        );
    }
    let last = PORT + allowed.ports - 1;
    let peer_list = allowed.peers.iter().map(|peer| match peer {
        Peer::Pod(pod) => format!("{{ podSelector: {{ matchLabels: {{ side: {pod} }} }} }}"),
        Peer::Host(address) => format!("{{ ipBlock: {{ cidr: {address}/32 }} }}"),
    });
    let _ = write!(
        text,
        "    - {peers}: [{}]\n      \
         ports: [{{ protocol: TCP, port: {PORT}, endPort: {last} }}, {{ protocol: UDP, port: {PORT}, endPort: {last} }}]\n---\n",
        peer_list.collect::<Vec<_>>().join(", ")
    );
}

pub(crate) fn pods(pods: &[Pod]) -> String {
    let mut text = String::new();
    for Pod { name, node, address } in pods {
        let _ = write!(
            text,
            "apiVersion: v1\nkind: Pod\n\
             metadata: {{ name: {name}, namespace: {NAMESPACE}, labels: {{ side: {name} }} }}\n\
             spec: {{ nodeName: node-{}, containers: [{{ name: bench }}] }}\n\
             status: {{ phase: Running, podIPs: [{{ ip: {address} }}] }}\n---\n",
            node + 1
        );
    }
    text
}

/// A policy that allows this port for all pods.
pub(crate) fn changing_policy(port: u16) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
         metadata: {{ name: changing, namespace: {NAMESPACE} }}\n\
         spec: {{ podSelector: {{}}, policyTypes: [Ingress], ingress: [{{ ports: [{{ port: {port} }}] }}] }}\n"
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;
    use crate::host::cores::Cores;
    use manx_calculation::import;
    use manx_datastore::Store;

    #[test]
    fn the_manifests_are_valid_and_hold_as_many_rules_as_the_shape_says() {
        let on_one_node = Shape::one_node(300, Cores::detect());
        for (shape, policies) in [
            (Shape { across: Some(Overlay::Ipip), ..on_one_node }, 2),
            (Shape { across: Some(Overlay::Vxlan), ..on_one_node }, 2),
            (Shape { attack: true, ..on_one_node }, 4),
            (Shape { translation: Translation::Used(Way::ClusterIp), ..on_one_node }, 2),
            (Shape { translation: Translation::Used(Way::NodePort), ..on_one_node }, 1),
            (Shape { translation: Translation::Used(Way::Out), ..on_one_node }, 1),
            (on_one_node, 2),
        ] {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join("cluster.yaml"), cluster(&shape)).unwrap();
            let pod = |name: &str, node, address: &str| Pod {
                name: name.to_owned(),
                node,
                address: address.parse().unwrap(),
            };
            let right = usize::from(shape.across.is_some());
            let ends = [pod("left", 0, "10.244.1.2"), pod("right", right, "10.244.2.2")];
            fs::write(folder.path().join("pods.yaml"), pods(&ends)).unwrap();
            let cluster = import::import(&Store::load(folder.path()));
            let problems: Vec<String> = cluster.problems.iter().map(ToString::to_string).collect();
            assert!(problems.is_empty(), "{}", problems.join("\n"));
            assert_eq!(cluster.model.endpoints.len(), 2);
            let rules: usize = cluster
                .model
                .policies
                .values()
                .flat_map(|policy| [&policy.ingress, &policy.egress])
                .flatten()
                // A rule with several protocols becomes several rules in the model.
                .map(|rules| rules.iter().map(|rule| rule.index).collect::<BTreeSet<_>>().len())
                .sum();
            assert_eq!(rules, policies * 301);
        }
    }
}
