//! Nodes and address pools, in the form that routing needs.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use sha1::{Digest, Sha1};

use manx_policy_compiler::model::Labels;

pub use manx_ipam::plan::Plan;
use manx_objects::object::{self, EncapsulationMode};

use crate::overlay::Overlay;

/// The part of a node that routing needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    /// The addresses at which other nodes reach this node: first the address from Calico's annotation, if there is one,
    /// and then the `InternalIPs`.
    pub internal_ips: Vec<IpAddr>,
    /// All addresses that policy treats as this node's: those above, the `ExternalIPs`, and the tunnel addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// Its labels.
    pub labels: Labels,
    /// The subnet of the node's first address, from Calico's annotation. `CrossSubnet` compares it.
    pub subnet: Option<IpNet>,
    /// The blocks from which the node's pods get addresses, and the node's own addresses in these blocks.
    pub plan: Plan,
    /// The node's MAC address in the inner frames of VXLAN.
    pub vxlan_mac: [u8; 6],
}

/// A pool of pod addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// The range of addresses.
    pub cidr: IpNet,
    /// The encapsulation of packets between nodes to these addresses.
    pub overlay: Overlay,
    /// Between which nodes packets are encapsulated.
    pub mode: EncapsulationMode,
    /// Whether packets from the pool's addresses to destinations outside all pools get their node's address as source.
    pub nat_outgoing: bool,
    /// Whether the pool contains addresses of nodes that are in no block. If it does, the blocks of the pool are still
    /// routed as the pool says. But the node's kernel gets no route for the rest of the pool, because the node could
    /// otherwise not reach those nodes.
    pub holds_nodes: bool,
}

/// Returns the MAC address of the VXLAN device of the node `name`, if no annotation contains it. It is "f", which marks
/// the address as locally administered, and the first five bytes of the SHA-1 of the name. Calico's nodes compute it in
/// the same way.
fn vxlan_mac(name: &str) -> [u8; 6] {
    let hash = Sha1::digest(name);
    let mut mac = [b'f'; 6];
    mac[1..].copy_from_slice(&hash[..5]);
    mac
}

pub(super) fn node(name: &str, node: &object::Node, plan: Plan) -> Node {
    let mut internal_ips: Vec<IpAddr> = Vec::new();
    let annotated = node.calico_address.map(|net| net.addr());
    for address in annotated.into_iter().chain(node.internal_ips.iter().copied()) {
        if !internal_ips.contains(&address) {
            internal_ips.push(address);
        }
    }
    let others = node.external_ips.iter().chain(plan.tunnel_addresses()).copied();
    Node {
        addresses: internal_ips.iter().copied().chain(others).collect(),
        labels: node.labels.to_map(),
        internal_ips,
        subnet: node.calico_address.map(|net| net.trunc()),
        plan,
        vxlan_mac: node.vxlan_mac.unwrap_or_else(|| vxlan_mac(name)),
    }
}

pub(super) fn pool(pool: &object::IpPool) -> Pool {
    let (overlay, mode) = Overlay::of_pool(pool);
    let nat_outgoing = pool.nat_outgoing;
    Pool { cidr: pool.cidr, overlay, mode, nat_outgoing, holds_nodes: false }
}
