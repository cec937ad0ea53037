//! Nodes and address pools, as routing sees them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use sha1::{Digest, Sha1};

use manx_policy_compiler::model::Labels;

pub use manx_ipam::plan::Plan;
use manx_objects::object::{self, EncapsulationMode};

use crate::overlay::Overlay;

/// A node as routing sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    /// The addresses at which other nodes reach it: Calico's annotation first if there is one, then `InternalIPs`.
    pub internal_ips: Vec<IpAddr>,
    /// All addresses by which policy knows it: those, `ExternalIPs`, and its tunnel addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// Its labels.
    pub labels: Labels,
    /// The subnet of its first address, from Calico's annotation, for the comparison of `CrossSubnet`.
    pub subnet: Option<IpNet>,
    /// The blocks that its pods get addresses from, and its own addresses of them.
    pub plan: Plan,
    /// The hardware address of the node in VXLAN's inner frames.
    pub vxlan_mac: [u8; 6],
}

/// A pool of pod addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// The addresses.
    pub cidr: IpNet,
    /// How packets to them are encapsulated between nodes.
    pub overlay: Overlay,
    /// The nodes between which they are encapsulated.
    pub mode: EncapsulationMode,
    /// Whether its addresses are seen as their node's outside of all pools.
    pub nat_outgoing: bool,
    /// Whether it holds addresses of nodes that lie in no block. Then its blocks are routed as it says, and the rest of
    /// its addresses is no route of the node's own: otherwise the node would lose those nodes.
    pub holds_nodes: bool,
}

/// The hardware address of the VXLAN device of node `name` if no annotation gives it: "f", which makes the address a
/// local one, and the first five bytes of the name's SHA-1, as Calico's nodes compute it.
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
