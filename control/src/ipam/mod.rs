//! Host-local allocation: which address of the node's blocks a pod has.
//!
//! A node has at most one block of each family (Kubernetes, `Node.spec.podCIDRs`). Of a block the first address is never
//! given out (IPv4: the network, RFC 1122 section 3.2.1.3; IPv6: the subnet routers' anycast, RFC 4291 section 2.6.1), the
//! second is the node's own tunnel address, and the last of an IPv4 block is its broadcast address. Everything between
//! goes to pods, in turn: an address that was given back is the last to be given out again, so that whoever still speaks
//! to the old pod does not reach a new one.
//!
//! [`Ipam`] is the bookkeeping and does no I/O; [`store::Store`] keeps it in a file.

pub mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::api::{ErrorKind, PodName};

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

/// Number of the node's own address in a block.
const TUNNEL: u128 = 1;

/// The address of a block that a node's own traffic to remote pods comes from, which no pod ever gets: the second. Absent if
/// the block has no room for pods.
pub fn tunnel_address(block: IpNet) -> Option<IpAddr> {
    Block::new(block).ok().map(|block| block.address(TUNNEL))
}

/// One block and how far the turn has come.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Block {
    net: IpNet,
    /// Number (from the block's start) of the address given out last; 1, the tunnel address, at first.
    last: u128,
}

/// Who has which address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ipam {
    blocks: Vec<Block>,
    pods: BTreeMap<PodName, Vec<IpAddr>>,
    used: BTreeSet<IpAddr>,
}

impl Block {
    /// Number of the first address that a pod may have.
    const FIRST: u128 = TUNNEL + 1;

    fn new(net: IpNet) -> Result<Self, Error> {
        let block = Self { net: net.trunc(), last: Self::FIRST - 1 };
        if block.end() < Self::FIRST { Err(Error::TooSmall(net)) } else { Ok(block) }
    }

    /// Number of the last address that a pod may have.
    fn end(&self) -> u128 {
        match self.net {
            // Without the broadcast address.
            IpNet::V4(net) => ((1_u128 << (32 - net.prefix_len())) - 1).saturating_sub(1),
            IpNet::V6(net) => {
                1_u128.checked_shl(128 - u32::from(net.prefix_len())).unwrap_or(0).wrapping_sub(1)
            }
        }
    }

    fn address(&self, number: u128) -> IpAddr {
        match self.net {
            IpNet::V4(net) => {
                IpAddr::V4(Ipv4Addr::from_bits(net.network().to_bits() + number as u32))
            }
            IpNet::V6(net) => IpAddr::V6(Ipv6Addr::from_bits(net.network().to_bits() + number)),
        }
    }

    /// The number of an address that a pod may have.
    fn number(&self, address: IpAddr) -> Option<u128> {
        let number = match (self.net, address) {
            (IpNet::V4(net), IpAddr::V4(v4)) if net.contains(&v4) => {
                u128::from(v4.to_bits() - net.network().to_bits())
            }
            (IpNet::V6(net), IpAddr::V6(v6)) if net.contains(&v6) => {
                v6.to_bits() - net.network().to_bits()
            }
            _ => return None,
        };
        (Self::FIRST..=self.end()).contains(&number).then_some(number)
    }

    /// The next free number in turn.
    fn next(&self, used: &BTreeSet<IpAddr>) -> Option<u128> {
        let mut number = self.last;
        // Among one more numbers than are used, one is free, unless the block has no more.
        for _ in 0..=used.len() {
            number = if number >= self.end() { Self::FIRST } else { number + 1 };
            if !used.contains(&self.address(number)) {
                return Some(number);
            }
        }
        None
    }
}

impl Ipam {
    /// Nobody has an address of `blocks` yet.
    pub fn new(blocks: &[IpNet]) -> Result<Self, Error> {
        let mut taken: Vec<Block> = Vec::new();
        for net in blocks {
            let block = Block::new(*net)?;
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

    /// The node's own address in each block.
    pub fn tunnel_addresses(&self) -> Vec<IpAddr> {
        self.blocks.iter().map(|block| block.address(TUNNEL)).collect()
    }

    /// Who has which addresses.
    pub const fn pods(&self) -> &BTreeMap<PodName, Vec<IpAddr>> {
        &self.pods
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
