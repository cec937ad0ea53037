//! A block of pod addresses and what each of them is for.
//!
//! The first address is the one by which the node masquerades (it is special anyway: in IPv4 the network, RFC 1122
//! section 3.2.1.3; in IPv6 the subnet routers' anycast, RFC 4291 section 2.6.1). The second is the node's own tunnel
//! address. The last of an IPv4 block is its broadcast address. Everything between is for pods.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Number of the address in a block by which the node masquerades.
pub const MASQUERADE: u128 = 0;
/// Number of the node's own address in a block.
pub const TUNNEL: u128 = 1;

/// The first address of a block. The node masquerades by it what it forwards to pods. No pod gets it, and policy does
/// not take it for the node's. Absent if the block has no room for pods.
pub fn masquerade_address(block: IpNet) -> Option<IpAddr> {
    Block::new(block).map(|block| block.address(MASQUERADE))
}

/// The address of a block that a node's own traffic to remote pods comes from, which no pod ever gets: the second.
/// Absent if the block has no room for pods.
pub fn tunnel_address(block: IpNet) -> Option<IpAddr> {
    Block::new(block).map(|block| block.address(TUNNEL))
}

/// Whether an address is one that a pod can have at all: unicast, not link-local or loopback.
pub fn is_for_pods(address: IpAddr) -> bool {
    let is_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some(),
    };
    !(is_local || address.is_unspecified() || address.is_loopback() || address.is_multicast())
}

/// One block and how far the turn has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Its addresses.
    pub net: IpNet,
    /// Number (from the block's start) of the address given out last; 1, the tunnel address, at first.
    pub last: u128,
}

impl Block {
    /// Number of the first address that a pod may have.
    const FIRST: u128 = TUNNEL + 1;

    /// `None`: it has no room for a pod.
    pub fn new(net: IpNet) -> Option<Self> {
        let block = Self { net: net.trunc(), last: Self::FIRST - 1 };
        (block.end() >= Self::FIRST).then_some(block)
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

    /// How many pods have room.
    pub fn room(&self) -> u128 {
        self.end() - Self::FIRST + 1
    }

    /// The address of this number.
    pub fn address(&self, number: u128) -> IpAddr {
        match self.net {
            IpNet::V4(net) => {
                IpAddr::V4(Ipv4Addr::from_bits(net.network().to_bits() + number as u32))
            }
            IpNet::V6(net) => IpAddr::V6(Ipv6Addr::from_bits(net.network().to_bits() + number)),
        }
    }

    /// The number of an address that a pod may have.
    pub fn number(&self, address: IpAddr) -> Option<u128> {
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

    /// The next free number in turn, where `most` addresses are used at most.
    pub fn next(&self, most: usize, is_used: impl Fn(IpAddr) -> bool) -> Option<u128> {
        let mut number = self.last;
        // Among one more numbers than are used, one is free, unless the block has no more.
        for _ in 0..=most {
            number = if number >= self.end() { Self::FIRST } else { number + 1 };
            if !is_used(self.address(number)) {
                return Some(number);
            }
        }
        None
    }
}
