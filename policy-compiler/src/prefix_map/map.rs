//! Longest-prefix match from addresses to small numbers: identities here, routes in the dataplane.
//!
//! IPv4 uses a trie that needs at most three dependent loads; IPv6 uses a hash table and a search.
//!
//! **Memory**: 256 KiB for the root, 80 KiB for spare blocks, and 1 KiB for each /16 that holds a prefix longer than
//! /16. A /24 that holds a prefix longer than /24 takes 512 bytes. If there are more than 1,024 such /24, each takes 5
//! to 512 bytes, depending on how often the value changes in it (twice as much if the values are far apart). An IPv6
//! /128 takes about 40 bytes; a shorter IPv6 prefix takes at most 64.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv6Net};

use super::v4::{MAX_VALUE, Trie};
use super::v6::Intervals;

/// A map from address prefixes to values of up to 31 bits. Every address has a value.
#[derive(Debug, Clone)]
pub struct PrefixMap {
    v4: Trie,
    v6: Intervals,
}

impl PrefixMap {
    /// Creates a map in which every address has the value `default`.
    pub fn new(default: u32) -> Self {
        Self::build(default, [])
    }

    /// Builds the map. The order of `entries` does not matter, and host bits are ignored. If one prefix has two values,
    /// the larger one is stored. A value above [`MAX_VALUE`] is stored as `default`, so choose a default that fails
    /// closed.
    pub fn build(default: u32, entries: impl IntoIterator<Item = (IpNet, u32)>) -> Self {
        let default = if default > MAX_VALUE { 0 } else { default };
        let entries = entries.into_iter();
        let (mut v4, mut v6) = (Vec::with_capacity(entries.size_hint().0), Vec::new());
        for (net, value) in entries {
            let value = if value > MAX_VALUE { default } else { value };
            match net {
                IpNet::V4(net) => v4.push((net.network().to_bits(), net.prefix_len(), value)),
                IpNet::V6(net) => v6.push((net.trunc(), value)),
            }
        }
        Self::from_prefixes(default, v4, v6)
    }

    /// Like [`build`](Self::build), from prefixes without host bits and values of at most [`MAX_VALUE`]. IPv4 prefixes
    /// are given as address and length.
    pub(crate) fn from_prefixes(
        default: u32,
        v4: Vec<(u32, u8, u32)>,
        v6: Vec<(Ipv6Net, u32)>,
    ) -> Self {
        Self { v4: Trie::build(default, v4), v6: Intervals::build(default, v6) }
    }

    /// The value of the longest prefix that contains `address`, or the default.
    #[inline]
    pub fn lookup(&self, address: IpAddr) -> u32 {
        match address {
            IpAddr::V4(address) => self.lookup_v4(address.to_bits()),
            IpAddr::V6(address) => self.lookup_v6(address.to_bits()),
        }
    }

    /// Like [`lookup`](Self::lookup), for an IPv4 address as a number in host order.
    #[inline]
    pub fn lookup_v4(&self, address: u32) -> u32 {
        self.v4.lookup(address)
    }

    /// Like [`lookup`](Self::lookup), for an IPv6 address as a number in host order.
    #[inline]
    pub fn lookup_v6(&self, address: u128) -> u32 {
        self.v6.lookup(address)
    }

    /// Stores the value of one IPv4 address (a number in host order) while other threads may look up addresses. Each
    /// lookup sees the old value or the new one. Returns `false` and changes nothing if there is no room left or the
    /// value is above [`MAX_VALUE`]. Only one thread at a time may call this.
    #[must_use]
    pub fn set_v4(&self, address: u32, value: u32) -> bool {
        self.v4.set(address, value)
    }

    /// Stores the values of all addresses of the /24 of an IPv4 address (a number in host order) while other threads
    /// may look up addresses. Each lookup sees the old values or the new ones. Returns `false` and changes nothing if
    /// there is no room left or a value is above [`MAX_VALUE`]. Only one thread at a time may call this.
    #[must_use]
    pub fn set_24_v4(&self, address: u32, values: &[u32; 256]) -> bool {
        self.v4.set_24(address, values)
    }

    /// Replaces everything that the map holds for addresses in `nets` by `entries`. `nets` must be in ascending order
    /// and must not overlap, and each of them must also be an entry. Entries must be in ascending order, without host
    /// bits and without duplicates. Entries outside of `nets` must be single addresses. Returns `false` if there is no
    /// room left or a value is above [`MAX_VALUE`]. In this case some entries may already be stored.
    #[must_use]
    pub fn replace(&mut self, nets: &[IpNet], entries: &[(IpNet, u32)]) -> bool {
        let mut of_v6 = Vec::new();
        for (net, value) in entries {
            let stored = match net {
                // The value of a single address is stored in place. A prefix needs new blocks.
                IpNet::V4(net) if net.prefix_len() == 32 => {
                    self.v4.set(net.addr().to_bits(), *value)
                }
                IpNet::V4(net) => {
                    self.v4.set_prefix(net.addr().to_bits(), net.prefix_len(), *value)
                }
                IpNet::V6(net) => {
                    of_v6.push((*net, *value));
                    *value <= MAX_VALUE
                }
            };
            if !stored {
                return false;
            }
        }
        // IPv4 networks sort first.
        let nets = &nets[nets.partition_point(|net| matches!(net, IpNet::V4(_)))..];
        self.v6.replace(nets, of_v6);
        true
    }

    /// Every address, as runs of equal values: the first address, last address and value of each run, in ascending
    /// order, IPv4 first.
    pub fn runs(&self) -> Vec<(IpAddr, IpAddr, u32)> {
        let mut runs = self.v4.runs();
        runs.extend(self.v6.runs());
        runs
    }

    /// The memory of the map in bytes, without the unused places of the IPv6 hash table.
    pub fn bytes(&self) -> usize {
        self.v4.bytes() + self.v6.bytes()
    }
}
