//! Longest-prefix match from addresses to small numbers: identities here, routes in the dataplane.
//!
//! IPv4 is a trie with strides of 16, 8 and 8 bits whose entries are leaf-pushed: an entry is either a value or the index
//! of the page that refines it, so a lookup is at most three dependent loads whatever the prefixes are. IPv6 asks a
//! keyed hash of the /128s first (pods), then a binary search over the disjoint intervals that all shorter prefixes cut
//! the address space into.
//!
//! **Memory**: 256 KiB for the root, 1 KiB for each /16 that holds a prefix longer than /16, 1 KiB for each /24 that holds
//! one longer than /24; about 40 bytes for an IPv6 /128 and at most 64 for a shorter IPv6 prefix.

use std::net::IpAddr;

use ahash::AHashMap;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The largest value that a map can hold; one bit tells values from page indexes.
pub const MAX_VALUE: u32 = PAGE_BIT - 1;

const PAGE_BIT: u32 = 1 << 31;
const ROOT: usize = 1 << 16;
const PAGE: usize = 1 << 8;

type Page = [u32; PAGE];

/// A map from address prefixes to values of up to 31 bits; every address has a value.
#[derive(Debug)]
pub struct PrefixMap {
    default: u32,
    root: Box<[u32]>,
    pages: Vec<Page>,
    hosts: AHashMap<u128, u32>,
    /// First address and value of each interval, ascending, the first at 0.
    intervals: Vec<(u128, u32)>,
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
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for (net, value) in entries {
            let value = if value > MAX_VALUE { default } else { value };
            match net {
                IpNet::V4(net) => v4.push((net.trunc(), value)),
                IpNet::V6(net) => v6.push((net.trunc(), value)),
            }
        }
        let mut map = Self {
            default,
            root: page(ROOT, default),
            pages: Vec::new(),
            hosts: AHashMap::new(),
            intervals: Vec::new(),
        };
        map.insert_v4(v4);
        map.insert_v6(v6);
        map
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
        let mut entry = self.load(&self.root, address >> 16);
        if entry & PAGE_BIT != 0 {
            entry = self.load_page(entry, address >> 8);
            if entry & PAGE_BIT != 0 {
                entry = self.load_page(entry, address);
            }
        }
        entry
    }

    /// [`lookup`](Self::lookup) for an IPv6 address as a number in host order.
    #[inline]
    pub fn lookup_v6(&self, address: u128) -> u32 {
        if let Some(value) = self.hosts.get(&address) {
            return *value;
        }
        let after = self.intervals.partition_point(|(start, _)| *start <= address);
        after.checked_sub(1).and_then(|at| self.intervals.get(at)).map_or(self.default, |i| i.1)
    }

    /// Bytes of memory that the map holds, within the hash table's slack.
    pub fn bytes(&self) -> usize {
        self.root.len() * size_of::<u32>()
            + self.pages.capacity() * size_of::<Page>()
            + self.hosts.capacity() * (size_of::<(u128, u32)>() + 1)
            + self.intervals.capacity() * size_of::<(u128, u32)>()
    }

    #[inline]
    fn load(&self, cells: &[u32], index: u32) -> u32 {
        cells.get(index as usize).copied().unwrap_or(self.default)
    }

    #[inline]
    fn load_page(&self, entry: u32, index: u32) -> u32 {
        match self.pages.get((entry & MAX_VALUE) as usize) {
            Some(page) => self.load(page, index & 0xff),
            None => self.default,
        }
    }

    /// Shorter prefixes first, so that a fill never meets a page: what refines it comes later.
    fn insert_v4(&mut self, mut entries: Vec<(Ipv4Net, u32)>) {
        entries.sort_unstable_by_key(|(net, value)| (net.prefix_len(), net.network(), *value));
        for (net, value) in entries {
            let (address, len) = (net.network().to_bits(), net.prefix_len());
            if len <= 16 {
                fill(&mut self.root, address >> 16, 16 - len, value);
                continue;
            }
            let second = refine(&mut self.root[(address >> 16) as usize], &mut self.pages);
            if len <= 24 {
                fill(&mut self.pages[second], address >> 8 & 0xff, 24 - len, value);
                continue;
            }
            let mut cell = self.load(&self.pages[second], address >> 8 & 0xff);
            let third = refine(&mut cell, &mut self.pages);
            self.pages[second][(address >> 8 & 0xff) as usize] = cell;
            fill(&mut self.pages[third], address & 0xff, 32 - len, value);
        }
    }

    /// Sweeps the prefixes in order of their first address, outer before inner, with those that are open on a stack.
    fn insert_v6(&mut self, mut entries: Vec<(Ipv6Net, u32)>) {
        entries.sort_unstable_by_key(|(net, value)| (net.network(), net.prefix_len(), *value));
        let mut open: Vec<(u128, u32)> = Vec::new();
        cut(&mut self.intervals, 0, self.default);
        for (net, value) in entries {
            if net.prefix_len() == 128 {
                self.hosts.insert(net.network().to_bits(), value);
                continue;
            }
            let (first, last) = (net.network().to_bits(), net.broadcast().to_bits());
            close(&mut self.intervals, &mut open, self.default, Some(first));
            cut(&mut self.intervals, first, value);
            open.push((last, value));
        }
        close(&mut self.intervals, &mut open, self.default, None);
        self.intervals.shrink_to_fit();
    }
}

/// Ends every open prefix that ends before `before` (all of them without one): behind it its parent's value is in force.
fn close(
    intervals: &mut Vec<(u128, u32)>,
    open: &mut Vec<(u128, u32)>,
    default: u32,
    before: Option<u128>,
) {
    while let Some((last, _)) = open.last().copied() {
        if before.is_some_and(|before| last >= before) {
            break;
        }
        open.pop();
        if let Some(next) = last.checked_add(1) {
            cut(intervals, next, open.last().map_or(default, |(_, value)| *value));
        }
    }
}

/// From `start` on `value` is in force.
fn cut(intervals: &mut Vec<(u128, u32)>, start: u128, value: u32) {
    if intervals.last().is_some_and(|(last, _)| *last == start) {
        intervals.pop();
    }
    if intervals.last().is_none_or(|(_, last)| *last != value) {
        intervals.push((start, value));
    }
}

fn page(cells: usize, value: u32) -> Box<[u32]> {
    vec![value; cells].into()
}

fn fill(cells: &mut [u32], first: u32, bits: u8, value: u32) {
    for cell in cells.iter_mut().skip(first as usize).take(1 << bits) {
        *cell = value;
    }
}

/// The page that refines `cell`, made with the cell's value if there is none yet.
fn refine(cell: &mut u32, pages: &mut Vec<Page>) -> usize {
    let entry = *cell;
    if entry & PAGE_BIT != 0 {
        return (entry & MAX_VALUE) as usize;
    }
    pages.push([entry; PAGE]);
    let index = pages.len() - 1;
    *cell = PAGE_BIT | index as u32;
    index
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// Few distinct addresses and every length, so that prefixes nest, touch and repeat.
    fn net() -> impl Strategy<Value = IpNet> {
        let v4 = (
            prop_oneof![Just(0x0a00_0000u32), Just(0xffff_ff00), Just(0)],
            0u32..1024,
            prop_oneof![0u8..=32, 20u8..=32, Just(32)],
        )
            .prop_map(|(base, low, len)| {
                IpNet::V4(Ipv4Net::new(Ipv4Addr::from(base | low), len).unwrap().trunc())
            });
        let v6 = (
            prop_oneof![Just(0u128), Just(0xfd00 << 112), Just(u128::MAX - 0x3ff)],
            0u128..1024,
            prop_oneof![0u8..=128, 116u8..=128, Just(128)],
        )
            .prop_map(|(base, low, len)| {
                IpNet::V6(Ipv6Net::new(Ipv6Addr::from(base | low), len).unwrap().trunc())
            });
        prop_oneof![v4, v6]
    }

    fn naive(default: u32, entries: &[(IpNet, u32)], address: IpAddr) -> u32 {
        let best = entries.iter().filter(|(net, _)| net.contains(&address));
        best.max_by_key(|(net, value)| (net.prefix_len(), *value)).map_or(default, |e| e.1)
    }

    fn step(address: IpAddr, up: bool) -> Option<IpAddr> {
        match address {
            IpAddr::V4(a) => {
                let bits = a.to_bits();
                let next = if up { bits.checked_add(1) } else { bits.checked_sub(1) };
                next.map(|bits| Ipv4Addr::from(bits).into())
            }
            IpAddr::V6(a) => {
                let bits = a.to_bits();
                let next = if up { bits.checked_add(1) } else { bits.checked_sub(1) };
                next.map(|bits| Ipv6Addr::from(bits).into())
            }
        }
    }

    /// Both ends of every prefix and their neighbours.
    fn witnesses(entries: &[(IpNet, u32)]) -> Vec<IpAddr> {
        let ends = entries.iter().flat_map(|(net, _)| [net.network(), net.broadcast()]);
        ends.flat_map(|end| [Some(end), step(end, true), step(end, false)]).flatten().collect()
    }

    proptest! {
        #[test]
        fn lookup_is_the_longest_prefix(
            entries in prop::collection::vec((net(), 1u32..50), 0..40),
            default in 0u32..3,
        ) {
            let map = PrefixMap::build(default, entries.iter().copied());
            for address in witnesses(&entries) {
                prop_assert_eq!(map.lookup(address), naive(default, &entries, address), "{}", address);
            }
        }

        #[test]
        fn the_order_of_entries_does_not_matter(
            entries in prop::collection::vec((net(), 1u32..50), 0..20),
        ) {
            let forward = PrefixMap::build(0, entries.iter().copied());
            let backward = PrefixMap::build(0, entries.iter().rev().copied());
            for address in witnesses(&entries) {
                prop_assert_eq!(forward.lookup(address), backward.lookup(address));
            }
        }
    }

    #[test]
    fn a_value_that_does_not_fit_is_stored_as_the_default() {
        let map = PrefixMap::build(3, [("10.0.0.0/8".parse().unwrap(), MAX_VALUE + 1)]);
        assert_eq!(map.lookup("10.1.2.3".parse().unwrap()), 3);
    }

    #[test]
    fn memory_is_the_root_and_a_page_for_each_refined_prefix() {
        let empty = PrefixMap::new(0).bytes();
        assert!((256 * 1024..257 * 1024).contains(&empty), "{empty}");
        let hosts = (0..256u32).map(|low| {
            let host = Ipv4Addr::from(0x0a00_0000 | low);
            (IpNet::from(IpAddr::V4(host)), 1)
        });
        let bytes = PrefixMap::build(0, hosts).bytes();
        assert!(bytes <= empty + 8 * 1024, "{bytes}");
    }
}
