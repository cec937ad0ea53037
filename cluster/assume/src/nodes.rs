//! Makes the nodes that pods and host endpoints name, or two nodes if no object names any. This module also assigns
//! pods without a node to nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use manx_objects::object::{Kind, Node, NodeBgp, Object, ObjectKey, Pairs};
use serde_json::json;

use crate::space::User;
use crate::{Completion, Refusal, list, manifest};

/// The number of nodes that are made if the input names none.
const NODES: usize = 2;
/// The number of addresses of a subnet that are for nodes. The rest are for the router and other hosts.
const OF_SUBNET: usize = 240;

/// Makes the nodes that are missing, and gives an address to those that have none.
pub(crate) fn make_nodes(completion: &mut Completion<'_>) -> Result<(), Refusal> {
    let names = missing(completion);
    for name in &names {
        let labels = [("kubernetes.io/hostname", name.as_str()), ("kubernetes.io/os", "linux")];
        let node = Node {
            labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            pod_cidrs: Vec::new(),
            internal_ips: Vec::new(),
            external_ips: Vec::new(),
            calico_address: None,
            tunnel_addresses: Vec::new(),
            vxlan_mac: None,
            bgp: NodeBgp::default(),
            is_leaving: false,
        };
        completion.add(key_of(name), Object::Node(Box::new(node)));
    }
    if !names.is_empty() {
        completion.note(format!("no Node object: {}", list(names.iter().map(String::as_str))));
    }
    give_addresses(completion)
}

/// Returns the names of nodes that have no object, valid or not.
fn missing(completion: &Completion<'_>) -> BTreeSet<String> {
    let named = completion.contents.all_valid().filter_map(|(_, object)| match object {
        Object::Pod(pod) => pod.node_name.clone(),
        Object::HostEndpoint(host) => Some(host.node.clone()),
        _ => None,
    });
    let known = |name: &String| completion.contents.objects.contains_key(&key_of(name));
    let missing: BTreeSet<String> = named.filter(|name| !known(name)).collect();
    let needed = completion.pods().next().is_some()
        || completion.contents.all_valid().any(|(key, _)| matches!(key.kind, Kind::Workload(_)));
    let none = completion.contents.of_kind(Kind::Node).next().is_none();
    if missing.is_empty() && none && needed {
        return (1..=NODES).map(|number| format!("node-{number}")).collect();
    }
    missing
}

/// Gives an `InternalIP` to each node that has none. It is the address in `status.hostIP` of the node's pods, or else
/// one address of each family from a range for nodes.
fn give_addresses(completion: &mut Completion<'_>) -> Result<(), Refusal> {
    let mut told: BTreeMap<String, IpAddr> = BTreeMap::new();
    for (_, pod) in completion.pods() {
        if let (Some(node), Some(address)) = (&pod.node_name, pod.host_ip) {
            told.entry(node.clone()).or_insert(address);
        }
    }
    let without = completion
        .nodes()
        .filter(|(_, node)| node.internal_ips.is_empty() && node.calico_address.is_none());
    let without: Vec<String> = without.map(|(key, _)| key.name.clone()).collect();
    let (known, unknown): (Vec<_>, Vec<_>) =
        without.into_iter().partition(|name| told.contains_key(name));
    for name in &known {
        give(completion, name, vec![told[name]]);
    }
    if unknown.is_empty() {
        return Ok(());
    }
    let mut ranges = Vec::new();
    for v4 in completion.families() {
        let range = completion.take_range(User::Nodes, v4).ok_or_else(|| Refusal::NoRange {
            whom: format!(
                "the Nodes without an InternalIP ({})",
                list(unknown.iter().map(String::as_str))
            ),
            what: "an address of type InternalIP to their status.addresses",
        })?;
        ranges.push(range);
    }
    for (index, name) in unknown.iter().enumerate() {
        let addresses = ranges.iter().filter_map(|range| host(*range, index)).collect();
        give(completion, name, addresses);
    }
    let ranges: Vec<String> = ranges.iter().map(ToString::to_string).collect();
    let names = list(unknown.iter().map(String::as_str));
    completion.note(format!("no InternalIP: {names}; from {}", ranges.join(" and ")));
    Ok(())
}

/// Returns the address of the node with this index. Each /24 (IPv6: /64) has [`OF_SUBNET`] nodes.
fn host(range: IpNet, index: usize) -> Option<IpAddr> {
    let subnet_len = if range.addr().is_ipv4() { 24 } else { 64 };
    let subnet = range.subnets(subnet_len).ok()?.nth(index / OF_SUBNET)?;
    subnet.hosts().nth(index % OF_SUBNET + 1)
}

fn give(completion: &mut Completion<'_>, name: &str, addresses: Vec<IpAddr>) {
    for address in &addresses {
        completion.space.take(*address);
    }
    let external = completion.nodes().find(|(key, _)| key.name == name);
    let external = external.map(|(_, node)| node.external_ips.clone()).unwrap_or_default();
    let fields = manifest::node_addresses(&addresses, &external);
    let fields = json!({ "status": { "addresses": fields } });
    completion.amend(&key_of(name), fields, |object| {
        if let Object::Node(node) = object {
            node.internal_ips = addresses;
        }
    });
}

/// Assigns the pods without a node to nodes that their node selectors match, in turn. If no node matches, any node is
/// used.
pub(crate) fn place_pods(completion: &mut Completion<'_>) {
    let nodes: Vec<(String, Pairs)> =
        completion.nodes().map(|(key, node)| (key.name.clone(), node.labels.clone())).collect();
    let waiting = completion.pods().filter(|(_, pod)| pod.node_name.is_none() && !pod.deleting);
    let waiting: Vec<(ObjectKey, Pairs)> =
        waiting.map(|(key, pod)| (key.clone(), pod.node_selector.clone())).collect();
    if nodes.is_empty() || waiting.is_empty() {
        return;
    }
    for (turn, (key, selector)) in waiting.iter().enumerate() {
        let matches = |(_, labels): &&(String, Pairs)| {
            selector.iter().all(|(label, value)| labels.get(label) == Some(value))
        };
        let mut candidates: Vec<_> = nodes.iter().filter(matches).collect();
        if candidates.is_empty() {
            candidates = nodes.iter().collect();
        }
        let (node, _) = candidates[turn % candidates.len()];
        completion.amend(key, json!({ "spec": { "nodeName": node } }), |object| {
            if let Object::Pod(pod) = object {
                pod.node_name = Some(node.clone());
            }
        });
    }
    let names: Vec<String> = waiting.iter().map(|(key, _)| key.to_string()).collect();
    completion.note(format!("no node: {}; placed in turn", list(names.iter().map(String::as_str))));
}

pub(crate) fn key_of(name: &str) -> ObjectKey {
    ObjectKey::new(Kind::Node, "", name)
}
