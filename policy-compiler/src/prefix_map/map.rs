//! Longest-prefix match from addresses to small numbers: identities here, routes in the dataplane.
//!
//! IPv4 is a trie that needs at most three dependent loads, IPv6 a hash and a search.
//!
//! **Memory**: 256 KiB for the root and 80 for spare blocks; 1 KiB for each /16 that holds a prefix longer than /16; for each
//! /24 that holds one longer than /24 512 bytes, or, where these are more than 1,024, 5 bytes to 512, by how often the value
//! changes in it (twice that where values are far from each other). About 40 bytes for an IPv6
//! /128 and at most 64 for a shorter IPv6 prefix.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv6Net};

use super::v4::{MAX_VALUE, Trie};
use super::v6::Intervals;

/// A map from address prefixes to values of up to 31 bits; every address has a value.
#[derive(Debug, Clone)]
pub struct PrefixMap {
    v4: Trie,
    v6: Intervals,
}

impl PrefixMap {
    /// A map in which every address has `default`.
    pub fn new(default: u32) -> Self {
        Self::build(default, [])
    }

    /// Builds the map; the order of `entries` does not matter and host bits are ignored. Of two values for one prefix the
    /// larger stands. A value above [`MAX_VALUE`] is stored as `default`: choose a default that fails closed.
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

    /// [`build`](Self::build) of prefixes without host bits, IPv4 ones as address and length, with values that the map can
    /// hold.
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

    /// [`lookup`](Self::lookup) for an IPv4 address as a number in host order.
    #[inline]
    pub fn lookup_v4(&self, address: u32) -> u32 {
        self.v4.lookup(address)
    }

    /// [`lookup_v4`](Self::lookup_v4) for as many addresses as there is room for what is made of their values: what each
    /// takes from memory is fetched beside what the others take.
    #[inline]
    pub fn lookup_all_v4<T>(&self, addresses: &[u32], found: &mut [T], make: impl Fn(u32) -> T) {
        self.v4.lookup_all(addresses, found, make);
    }

    /// [`lookup`](Self::lookup) for an IPv6 address as a number in host order.
    #[inline]
    pub fn lookup_v6(&self, address: u128) -> u32 {
        self.v6.lookup(address)
    }

    /// Stores the value of one IPv4 address, as a number in host order, while others may look up: each lookup sees the old
    /// value or the new one. `false`, and nothing is changed, where there is no room left or the value is none. One at a
    /// time may call this.
    #[must_use]
    pub fn set_v4(&self, address: u32, value: u32) -> bool {
        self.v4.set(address, value)
    }

    /// Stores the values of all addresses of the /24 of an IPv4 address, as a number in host order, while others may look up:
    /// each lookup sees the old values or the new ones. `false`, and nothing is changed, where there is no room left or a
    /// value is none. One at a time may call this.
    #[must_use]
    pub fn set_24_v4(&self, address: u32, values: &[u32; 256]) -> bool {
        self.v4.set_24(address, values)
    }

    /// Stores the value of every address of an IPv4 prefix, whatever they had; `false`, and nothing is changed, where there is
    /// no room left or the value is none.
    #[must_use]
    pub fn set_net_v4(&mut self, net: ipnet::Ipv4Net, value: u32) -> bool {
        self.v4.set_prefix(net.network().to_bits(), net.prefix_len(), value)
    }

    /// Every address, in runs of one value: first, last and value of each, ascending, IPv4 first.
    pub fn runs(&self) -> Vec<(IpAddr, IpAddr, u32)> {
        let mut runs = self.v4.runs();
        runs.extend(self.v6.runs());
        runs
    }

    /// Bytes of memory that the map holds, within the hash table's slack.
    pub fn bytes(&self) -> usize {
        self.v4.bytes() + self.v6.bytes()
    }
}
