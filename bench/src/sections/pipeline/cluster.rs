//! The cluster of the node in memory: manifests with policies, to which nodes, pools and pods are added.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use manx_calculation::import::{Cluster, Node as NodeObject, Plan, Pool, import};
use manx_calculation::overlay::Overlay;
use manx_objects::contents::Contents;
use manx_objects::object::EncapsulationMode;
use manx_objects::problem::Severity;
use manx_policy_compiler::model::{AddressSet, Endpoint, ObjectName};

use super::packets::addresses::{
    BLOCK, CLIENT, FAR, NAME, NETWORKS, Network, POOLS, PORT, PORTS, SERVER, far_pod, network,
    underlay,
};
use crate::error::Failure;

/// The rules of the client's policies, or of the uplink's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rules {
    /// This many rules for the client in each direction. The last one allows the pods, and each of the others allows a
    /// network.
    Pods(u32),
    /// One rule for the client in each direction. It allows a set of this many members that contains the peers.
    Set(u32),
    /// This many egress rules for the uplink, before connection tracking. The last rule allows the pods, and each other
    /// rule allows a network. The networks all have the same length, or many lengths if the second value is true.
    Untracked(u32, bool),
}

/// The cluster with these policies and this many other nodes.
pub(crate) fn cluster(rules: Rules, nodes: u32) -> Result<Cluster, Failure> {
    let mut cluster = import(&Contents::from_texts([("cluster.yaml", &*manifests(rules, nodes))]));
    let mut problems = cluster.problems.iter();
    if let Some(problem) = problems.find(|problem| problem.severity == Severity::Error) {
        return Err(format!("the bench's own manifests are not valid: {problem:?}").into());
    }
    populate(&mut cluster, nodes)?;
    Ok(cluster)
}

/// Adds the nodes, the pools, and the pods.
fn populate(cluster: &mut Cluster, nodes: u32) -> Result<(), Failure> {
    for node in 0..=nodes {
        let block = |pool: Ipv4Addr| {
            let base = Ipv4Addr::from_bits(pool.to_bits() + node * BLOCK);
            format!("{base}/20").parse()
        };
        let object = NodeObject {
            internal_ips: vec![Ipv4Addr::from_bits(underlay(node)).into()],
            subnet: None,
            plan: Plan::host_local(POOLS.into_iter().map(block).collect::<Result<Vec<_>, _>>()?),
            ..NodeObject::default()
        };
        cluster.nodes.insert(format!("node-{node}"), object);
    }
    let modes = [EncapsulationMode::Never, EncapsulationMode::Always];
    for (pool, mode) in POOLS.into_iter().zip(modes) {
        cluster.pools.push(Pool {
            cidr: format!("{pool}/10").parse()?,
            overlay: Overlay::Ipip,
            mode,
            nat_outgoing: false,
            holds_nodes: false,
        });
    }
    let mut pod = |name: String, role: &str, addresses: AddressSet| {
        let labels = BTreeMap::from([("role".to_owned(), role.to_owned())]);
        let endpoint = Endpoint { labels: labels.into(), addresses, ..Endpoint::default() };
        cluster.model.endpoints.insert(ObjectName::new("shop", name), Arc::new(endpoint));
    };
    pod("client".to_owned(), "client", AddressSet::from([CLIENT.into()]));
    pod("server".to_owned(), "server", AddressSet::from([SERVER.into()]));
    for at in 0..FAR {
        let addresses = [false, true].map(|tunnel| {
            IpAddr::V4(Ipv4Addr::from_bits(far_pod(tunnel, 1 + at % nodes, at / nodes)))
        });
        pod(format!("far-{at}"), "server", addresses.into());
    }
    Ok(())
}

/// The namespace and the policies.
fn manifests(rules: Rules, nodes: u32) -> String {
    let ports = format!("[{}, {{protocol: TCP, port: {PORT}}}]", udp_ports());
    let all = format!("{{ports: {ports}}}");
    let mut objects = vec![
        "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}".to_owned(),
        policy("server", &all, &all),
    ];
    let pods = |end: &str| {
        format!("{{{end}: [{{podSelector: {{matchLabels: {{role: server}}}}}}], ports: {ports}}}")
    };
    match rules {
        Rules::Pods(count) => {
            let rules = |end: &str| {
                let networks = (1..count).map(|rule| allow_network(rule, end));
                networks.chain([pods(end)]).collect::<Vec<_>>().join(", ")
            };
            objects.push(policy("client", &rules("from"), &rules("to")));
        }
        Rules::Set(count) => objects.extend([network_set(count, nodes), set_policy()]),
        Rules::Untracked(count, many_lengths) => {
            let networks = format!("{{to: [{{ipBlock: {{cidr: {NETWORKS}}}}}]}}");
            objects.push(policy("client", &pods("from"), &format!("{}, {networks}", pods("to"))));
            objects.extend([uplink(), untracked_policy(count, many_lengths)]);
        }
    }
    objects.join("\n---\n") + "\n"
}

/// The UDP ports of the pods, in the form of a Kubernetes policy.
fn udp_ports() -> String {
    format!("{{protocol: UDP, port: {PORT}, endPort: {}}}", PORT + PORTS - 1)
}

/// The Kubernetes policy of a role.
fn policy(role: &str, ingress: &str, egress: &str) -> String {
    format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: {role}, namespace: shop}}, \
         spec: {{podSelector: {{matchLabels: {{role: {role}}}}}, policyTypes: [Ingress, Egress], \
         ingress: [{ingress}], egress: [{egress}]}}}}"
    )
}

/// A rule that allows the network with this number.
fn allow_network(rule: u32, end: &str) -> String {
    let Network { address, length, port } = network(rule, false);
    format!(
        "{{{end}: [{{ipBlock: {{cidr: {address}/{length}}}}}], ports: [{{protocol: UDP, port: {port}}}]}}"
    )
}

/// A network set with this many members. The peers are among them.
fn network_set(count: u32, nodes: u32) -> String {
    let peers = (0..FAR).map(|at| far_pod(false, 1 + at % nodes, at / nodes));
    let others = (0..count).map(|at| 0xc000_0000 + at * 7);
    let members: Vec<String> = peers
        .chain(others)
        .take(count as usize)
        .map(|address| format!("{}/32", Ipv4Addr::from_bits(address)))
        .collect();
    format!(
        "{{apiVersion: projectcalico.org/v3, kind: GlobalNetworkSet, metadata: {{name: peers, labels: {{set: peers}}}}, \
         spec: {{nets: [{}]}}}}",
        members.join(", ")
    )
}

/// The client's policy that allows the network set.
fn set_policy() -> String {
    let rule = |end: &str| {
        format!("{{action: Allow, protocol: UDP, {end}: {{selector: set == 'peers'}}}}")
    };
    format!(
        "{{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {{name: client}}, \
         spec: {{selector: role == 'client', types: [Ingress, Egress], ingress: [{}], egress: [{}]}}}}",
        rule("source"),
        rule("destination")
    )
}

/// The host endpoint of the uplink.
fn uplink() -> String {
    format!(
        "{{apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {{name: uplink, labels: {{role: node}}}}, \
         spec: {{node: {NAME}, interfaceName: eth0}}}}"
    )
}

/// The uplink's policy before connection tracking.
fn untracked_policy(count: u32, many_lengths: bool) -> String {
    let networks = (1..count).map(|rule| {
        let Network { address, length, port } = network(rule, many_lengths);
        format!("{{nets: [{address}/{length}], ports: [{port}]}}")
    });
    let pods = format!("{{nets: [{}/10], ports: ['{PORT}:{}']}}", POOLS[0], PORT + PORTS - 1);
    let rules: Vec<String> = networks
        .chain([pods])
        .map(|to| format!("{{action: Allow, protocol: UDP, destination: {to}}}"))
        .collect();
    format!(
        "{{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {{name: untracked}}, \
         spec: {{selector: role == 'node', doNotTrack: true, applyOnForward: true, types: [Egress], egress: [{}]}}}}",
        rules.join(", ")
    )
}
