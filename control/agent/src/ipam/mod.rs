//! Host-local allocation: which address of the node's blocks a pod has.
//!
//! A node has at most one block of each family (Kubernetes, `Node.spec.podCIDRs`). What a block has for pods goes to them in
//! turn: an address that was given back is the last to be given out again, so that peers which still speak to the old pod
//! do not reach a new one.
//!
//! [`Ipam`] is the bookkeeping and does no I/O; [`store::Store`] keeps it in a file.

pub mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use manx_api::{ErrorKind, PodName};
use manx_calculation::block::Block;

/// Why there is no address.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The node has no block at all.
    #[error("the node has no pod CIDR: set Node.spec.podCIDRs")]
    NoBlock,
    /// Two blocks of one family.
    #[error(
        "the node has two pod CIDRs of one family, {0} and {1}: Node.spec.podCIDRs holds at most one of each"
    )]
    TwoBlocks(IpNet, IpNet),
    /// No room for a pod.
    #[error(
        "pod CIDR {0} has no room for a pod: an IPv4 block is /30 or larger, an IPv6 block /126 or larger"
    )]
    TooSmall(IpNet),
    /// Every address is given out.
    #[error("no address is left in pod CIDR {block}: all {pods} are given to pods")]
    Exhausted {
        /// The block.
        block: IpNet,
        /// How many pods have one.
        pods: usize,
    },
}

impl Error {
    /// The kind that the agent's socket reports.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::NoBlock | Self::TwoBlocks(..) | Self::TooSmall(_) => ErrorKind::Invalid,
            Self::Exhausted { .. } => ErrorKind::Exhausted,
        }
    }
}

/// Who has which address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ipam {
    blocks: Vec<Block>,
    pods: BTreeMap<PodName, Vec<IpAddr>>,
    used: BTreeSet<IpAddr>,
}

impl Ipam {
    /// Nobody has an address of `blocks` yet.
    pub fn new(blocks: &[IpNet]) -> Result<Self, Error> {
        let mut taken: Vec<Block> = Vec::new();
        for net in blocks {
            let block = Block::new(*net).ok_or(Error::TooSmall(*net))?;
            let same_family = |other: &&Block| other.net.addr().is_ipv4() == net.addr().is_ipv4();
            if let Some(other) = taken.iter().find(same_family) {
                return Err(Error::TwoBlocks(other.net, block.net));
            }
            taken.push(block);
        }
        if taken.is_empty() {
            return Err(Error::NoBlock);
        }
        Ok(Self { blocks: taken, pods: BTreeMap::new(), used: BTreeSet::new() })
    }

    /// The blocks.
    pub fn blocks(&self) -> Vec<IpNet> {
        self.blocks.iter().map(|block| block.net).collect()
    }

    /// The pod's addresses, one of each block: those that it has, or else the next in turn. All or nothing.
    pub fn assign(&mut self, pod: &PodName) -> Result<Vec<IpAddr>, Error> {
        if let Some(addresses) = self.pods.get(pod) {
            return Ok(addresses.clone());
        }
        let mut numbers = Vec::with_capacity(self.blocks.len());
        for block in &self.blocks {
            let exhausted = || Error::Exhausted { block: block.net, pods: self.pods.len() };
            numbers.push(block.next(&self.used).ok_or_else(exhausted)?);
        }
        let mut addresses = Vec::with_capacity(numbers.len());
        for (block, number) in self.blocks.iter_mut().zip(numbers) {
            block.last = number;
            addresses.push(block.address(number));
        }
        self.used.extend(&addresses);
        self.pods.insert(pod.clone(), addresses.clone());
        Ok(addresses)
    }

    /// Takes the pod's addresses back and says which; empty if it has none.
    pub fn release(&mut self, pod: &PodName) -> Vec<IpAddr> {
        let addresses = self.pods.remove(pod).unwrap_or_default();
        for address in &addresses {
            self.used.remove(address);
        }
        addresses
    }
}

#[cfg(test)]
mod tests;
