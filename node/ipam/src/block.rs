//! A block of pod addresses that one node has as a whole, and the use of each address.
//!
//! The first address is the node's masquerade address (it is special anyway: in IPv4 the network, RFC 1122 section
//! 3.2.1.3; in IPv6 the subnet routers' anycast, RFC 4291 section 2.6.1). The second is the node's own tunnel address. The
//! last one of an IPv4 block is its broadcast address. All others are for pods.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// The number of a block's masquerade address, the source of packets that the node forwards to pods. No pod gets it, and
/// policy does not treat it as the node's own address.
const MASQUERADE: u128 = 0;
/// The number of a block's tunnel address, the source of the node's own packets to remote pods. No pod gets it.
const TUNNEL: u128 = 1;
/// The number of the first address that a pod may have.
const FIRST: u128 = TUNNEL + 1;

/// Whether a pod can have an address at all: it is unicast, and not link-local or loopback.
pub fn is_for_pods(address: IpAddr) -> bool {
    let is_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some(),
    };
    !(is_local || address.is_unspecified() || address.is_loopback() || address.is_multicast())
}

/// A block with room for a pod. Its addresses are numbered from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    net: IpNet,
}

impl Block {
    /// The block `net`. Returns `None` if it has no room for a pod.
    pub fn new(net: IpNet) -> Option<Self> {
        let block = Self { net: net.trunc() };
        (block.end() >= FIRST).then_some(block)
    }

    /// The block's prefix.
    pub const fn net(&self) -> IpNet {
        self.net
    }

    /// The number of the first address that a pod may have.
    pub const fn first(&self) -> u128 {
        FIRST
    }

    /// The number of the last address that a pod may have.
    pub fn end(&self) -> u128 {
        match self.net {
            // The broadcast address is left out.
            IpNet::V4(net) => ((1_u128 << (32 - net.prefix_len())) - 1).saturating_sub(1),
            IpNet::V6(net) => {
                1_u128.checked_shl(128 - u32::from(net.prefix_len())).unwrap_or(0).wrapping_sub(1)
            }
        }
    }

    /// The number of addresses for pods.
    pub fn capacity(&self) -> u128 {
        self.end() - FIRST + 1
    }

    /// The address with this number.
    pub fn address(&self, number: u128) -> IpAddr {
        match self.net {
            IpNet::V4(net) => {
                IpAddr::V4(Ipv4Addr::from_bits(net.network().to_bits() + number as u32))
            }
            IpNet::V6(net) => IpAddr::V6(Ipv6Addr::from_bits(net.network().to_bits() + number)),
        }
    }

    /// The number of an address. Returns `None` if the block does not give this address to pods.
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
        (FIRST..=self.end()).contains(&number).then_some(number)
    }

    /// The source of the node's own packets to remote pods.
    pub(crate) fn tunnel_address(&self) -> IpAddr {
        self.address(TUNNEL)
    }

    /// The source of packets that the node forwards to pods.
    pub(crate) fn masquerade_address(&self) -> IpAddr {
        self.address(MASQUERADE)
    }
}
