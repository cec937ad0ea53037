//! The nodes' blocks of pod addresses, as Calico's IPAM keeps them.

use ipnet::IpNet;

/// Calico's `BlockAffinity`: a node claims a block of pod addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockAffinity {
    /// `spec.cidr`, which has no host bits.
    pub cidr: IpNet,
    /// `spec.node`; the claimant's name if it is no node.
    pub node: String,
    /// `spec.state`.
    pub state: AffinityState,
    /// `spec.type`; a host if absent.
    pub claimant: AffinityType,
    /// `spec.deleted`: a writer sets it before it removes the object.
    pub is_deleted: bool,
}

impl BlockAffinity {
    /// Whether the block is the node's: Calico announces these blocks, and no others. What is larger than a pool's largest
    /// block (`blockSize` 20 and 116) is none.
    pub fn is_in_force(&self) -> bool {
        let shortest = if self.cidr.addr().is_ipv4() { 20 } else { 116 };
        self.cidr.prefix_len() >= shortest
            && self.state == AffinityState::Confirmed
            && self.claimant == AffinityType::Host
            && !self.is_deleted
    }
}

/// How far a claim is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AffinityState {
    /// The claim is made, and the block may still become another node's.
    Pending,
    /// The block is the node's.
    Confirmed,
    /// The node gives the block back.
    PendingDeletion,
}

/// Who claims a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AffinityType {
    /// A node.
    Host,
    /// What is no node, such as the load balancer.
    Virtual,
}
