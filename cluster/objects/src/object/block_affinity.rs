//! The nodes' blocks of pod addresses, as Calico's IPAM records them.

use ipnet::IpNet;

/// Calico's `BlockAffinity`: a node claims a block of pod addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockAffinity {
    /// `spec.cidr`, which has no host bits.
    pub cidr: IpNet,
    /// `spec.node`: the name of the claimant, which is a node if `claimant` is `Host`.
    pub node: String,
    /// `spec.state`.
    pub state: AffinityState,
    /// `spec.type`; `Host` if absent.
    pub claimant: AffinityType,
    /// `spec.deleted`: a writer sets it before it removes the object.
    pub is_deleted: bool,
}

impl BlockAffinity {
    /// Returns whether the block belongs to its node. Calico announces these blocks and no others. A net larger than
    /// the largest block of a pool (`blockSize` 20, or 116 of IPv6) does not count as a block.
    pub fn is_in_force(&self) -> bool {
        let shortest = if self.cidr.addr().is_ipv4() { 20 } else { 116 };
        self.cidr.prefix_len() >= shortest
            && self.state == AffinityState::Confirmed
            && self.claimant == AffinityType::Host
            && !self.is_deleted
    }
}

/// The state of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AffinityState {
    /// The node has made the claim, but another node may still get the block.
    Pending,
    /// The block belongs to the node.
    Confirmed,
    /// The node is returning the block.
    PendingDeletion,
}

/// The type of a block's claimant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AffinityType {
    /// A node.
    Host,
    /// Something other than a node, such as the controller of load balancer addresses.
    Virtual,
}
