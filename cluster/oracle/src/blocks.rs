//! The blocks of each node, and the use of their addresses, from the objects alone. This interprets Kubernetes'
//! podCIDRs and Calico's block affinities independently of the product.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use manx_objects::contents::Stored;
use manx_objects::object::{AffinityState, AffinityType, BlockAffinity, Object, ObjectKey};

/// The objects from which a node's blocks are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockSource {
    /// The node's own Node object, with `spec.podCIDRs`.
    PodCidrs,
    /// Calico's block affinities.
    Affinities,
}

impl BlockSource {
    /// Returns the source for a cluster whose IPAM is not known: affinities if at least one is in force.
    pub fn assumed(objects: &BTreeMap<ObjectKey, Stored>) -> Self {
        if affinities(objects).is_empty() { Self::PodCidrs } else { Self::Affinities }
    }
}

/// A node's blocks.
#[derive(Debug)]
pub(super) struct NodeBlocks {
    blocks: Vec<IpNet>,
    /// The addresses of the node's tunnels, if all other addresses of the blocks are for pods. `None` if each block has
    /// some addresses that no pod gets.
    tunnels: Option<Vec<IpAddr>>,
}

impl NodeBlocks {
    pub(super) fn contain(&self, address: IpAddr) -> bool {
        self.blocks.iter().any(|block| block.contains(&address))
    }

    /// Returns whether the blocks allow a pod of this node to have an address.
    pub(super) fn have_for_pods(&self, address: IpAddr) -> bool {
        self.blocks.iter().any(|block| self.is_pods(*block, address))
    }

    /// Returns whether an address is in a block but not for pods.
    pub(super) fn withhold(&self, address: IpAddr) -> bool {
        let mut around = self.blocks.iter().filter(|block| block.contains(&address));
        around.any(|block| !self.is_pods(*block, address))
    }

    fn is_pods(&self, block: IpNet, address: IpAddr) -> bool {
        match &self.tunnels {
            Some(tunnels) => block.contains(&address) && !tunnels.contains(&address),
            None => is_inside(block, address),
        }
    }
}

/// Returns the blocks of all valid nodes, by name.
pub(super) fn of_nodes(
    objects: &BTreeMap<ObjectKey, Stored>,
    source: BlockSource,
) -> BTreeMap<&str, NodeBlocks> {
    let mut claimed: BTreeMap<&str, Vec<IpNet>> = BTreeMap::new();
    for affinity in affinities(objects) {
        claimed.entry(&affinity.node).or_default().push(affinity.cidr);
    }
    let mut nodes = BTreeMap::new();
    for (key, stored) in objects {
        let Some(Object::Node(node)) = stored.state.valid() else { continue };
        let blocks = match source {
            BlockSource::PodCidrs => NodeBlocks { blocks: node.pod_cidrs.clone(), tunnels: None },
            BlockSource::Affinities => NodeBlocks {
                blocks: claimed.remove(key.name.as_str()).unwrap_or_default(),
                tunnels: Some(node.tunnel_addresses.clone()),
            },
        };
        nodes.insert(key.name.as_str(), blocks);
    }
    nodes
}

/// Returns the affinities in force: they are confirmed, belong to a node, and are not being deleted.
fn affinities(objects: &BTreeMap<ObjectKey, Stored>) -> Vec<&BlockAffinity> {
    let mut counted = Vec::new();
    for stored in objects.values() {
        if let Some(Object::BlockAffinity(affinity)) = stored.state.valid()
            && affinity.state == AffinityState::Confirmed
            && affinity.claimant == AffinityType::Host
            && !affinity.is_deleted
        {
            counted.push(&**affinity);
        }
    }
    counted
}

/// Returns whether an address is in a block and a pod may have it. Pods do not get the first address (it is not used),
/// the second address (it is the node's), and the last address of an IPv4 block (it is the broadcast address).
fn is_inside(block: IpNet, address: IpAddr) -> bool {
    let block = block.trunc();
    if !block.contains(&address) || block.prefix_len() + 2 > block.max_prefix_len() {
        return false;
    }
    match (block, address) {
        (IpNet::V4(block), IpAddr::V4(address)) => {
            address.to_bits() - block.network().to_bits() > 1 && address != block.broadcast()
        }
        (IpNet::V6(block), IpAddr::V6(address)) => {
            address.to_bits() - block.network().to_bits() > 1
        }
        _ => false,
    }
}
