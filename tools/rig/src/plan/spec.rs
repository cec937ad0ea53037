//! The part of the objects that the plan needs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use manx_api::PodName;
use manx_calculation::import;
use manx_objects::contents::Contents;
use manx_objects::object::{self, Object};
use manx_policy_compiler::model::Protocol;

use super::port::Port;

/// The part of a Node object that the plan needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeSpec {
    /// The node's `InternalIP`s, at most one of a family, each with the length of its subnet's prefix.
    pub addresses: Vec<IpNet>,
    /// The ranges of the node's pod addresses.
    pub pod_cidrs: Vec<IpNet>,
}

/// The part of a Pod object that the plan needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PodSpec {
    /// `spec.nodeName`.
    pub node: Option<String>,
    /// The ports on which the pod's containers listen.
    pub ports: BTreeSet<Port>,
    /// The addresses in the pod's object, which it keeps. If there are none, the plan chooses an address from each
    /// block of its node.
    pub addresses: Vec<IpAddr>,
    pub host_network: bool,
}

/// The Node objects in the form that the plan needs.
pub(super) fn nodes(contents: &Contents) -> BTreeMap<String, NodeSpec> {
    contents
        .all_valid()
        .filter_map(|(key, object)| match object {
            Object::Node(node) => Some((
                key.name.clone(),
                NodeSpec { addresses: node_addresses(node), pod_cidrs: node.pod_cidrs.clone() },
            )),
            _ => None,
        })
        .collect()
}

/// The Pod objects that are not finished.
pub(crate) fn pods(contents: &Contents) -> BTreeMap<PodName, PodSpec> {
    contents
        .all_valid()
        .filter_map(|(key, object)| match object {
            Object::Pod(pod) if !pod.is_finished() => {
                let name = PodName { namespace: key.namespace.clone(), name: key.name.clone() };
                let ports = pod.containers.iter().flatten().map(port).collect();
                let addresses = import::pod_addresses(pod);
                let (node, host_network) = (pod.node_name.clone(), pod.host_network);
                Some((name, PodSpec { node, ports, addresses, host_network }))
            }
            _ => None,
        })
        .collect()
}

/// The `InternalIP`s with their subnets. An address that Calico's annotation repeats has the annotation's subnet,
/// others have /24 or /64, as on most node networks.
fn node_addresses(node: &object::Node) -> Vec<IpNet> {
    let annotated = node.calico_address.filter(|net| net.prefix_len() < net.max_prefix_len());
    let subnet = |address: &IpAddr| {
        let usual = if address.is_ipv4() { 24 } else { 64 };
        let length = match annotated {
            Some(net) if net.addr() == *address => net.prefix_len(),
            _ => usual,
        };
        IpNet::new(*address, length).unwrap_or_else(|_| IpNet::from(*address))
    };
    node.internal_ips.iter().map(subnet).collect()
}

fn port(port: &object::ContainerPort) -> Port {
    Port { protocol: port.protocol.unwrap_or(Protocol::Tcp), number: port.port }
}
