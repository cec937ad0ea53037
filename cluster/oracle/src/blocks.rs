//! The blocks of each node, and what their addresses are for, by the objects alone. This is the oracle's own reading of
//! Kubernetes' podCIDRs and of Calico's block affinities.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use manx_objects::contents::Stored;
use manx_objects::object::{AffinityState, AffinityType, BlockAffinity, Object, ObjectKey};

/// The objects that say which blocks a node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockSource {
    /// Its own Node object, by `spec.podCIDRs`.
    PodCidrs,
    /// Calico's block affinities.
    Affinities,
}

impl BlockSource {
    /// The source where nobody says which it is: affinities if one of them counts.
    pub fn assumed(objects: &BTreeMap<ObjectKey, Stored>) -> Self {
        if affinities(objects).is_empty() { Self::PodCidrs } else { Self::Affinities }
    }
}

/// A node's blocks.
#[derive(Debug)]
pub(super) struct NodeBlocks {
    blocks: Vec<IpNet>,
    /// The addresses that the node's tunnels have, if every other address of the blocks is for pods. `None`: each block
    /// has a few addresses that no pod gets.
    tunnels: Option<Vec<IpAddr>>,
}

impl NodeBlocks {
    pub(super) fn contain(&self, address: IpAddr) -> bool {
        self.blocks.iter().any(|block| block.contains(&address))
    }

    /// Whether a pod of this node may have an address by the blocks.
    pub(super) fn have_for_pods(&self, address: IpAddr) -> bool {
        self.blocks.iter().any(|block| self.is_pods(*block, address))
    }

    /// Whether an address lies in a block that does not have it for pods.
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

/// The blocks of all valid nodes, by name.
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

/// The affinities that count: confirmed, of a node, and not about to be deleted.
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

/// Whether an address lies in a block and a pod may have it. Pods have neither the first address (it belongs to no
/// one), nor the second (it is the node's), nor the last of an IPv4 block (it is the broadcast address).
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
