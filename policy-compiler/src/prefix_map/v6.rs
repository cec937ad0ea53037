//! The IPv6 half: first a lookup in a keyed hash table of the /128s (pods), then a binary search in disjoint intervals.
//! All shorter prefixes together divide the address space into these intervals.

use std::net::{IpAddr, Ipv6Addr};

use ahash::AHashMap;
use ipnet::{IpNet, Ipv6Net};

use super::nets::lies_in;

/// The map for IPv6.
#[derive(Debug, Clone)]
pub(super) struct Intervals {
    default: u32,
    hosts: AHashMap<u128, u32>,
    /// The first address and the value of each interval, in ascending order. The first interval starts at address 0.
    starts: Vec<(u128, u32)>,
}

impl Intervals {
    /// If one prefix has two values, the larger one is stored.
    pub(super) fn build(default: u32, mut entries: Vec<(Ipv6Net, u32)>) -> Self {
        entries.sort_unstable_by_key(|(net, value)| (net.network(), net.prefix_len(), *value));
        let mut map = Self { default, hosts: AHashMap::new(), starts: Vec::new() };
        cut(&mut map.starts, 0, default);
        let entries = map.take_hosts(entries);
        insert(&mut map.starts, default, entries);
        map.starts.shrink_to_fit();
        map
    }

    /// See [`PrefixMap::replace`](super::PrefixMap::replace).
    pub(super) fn replace(&mut self, nets: &[IpNet], entries: Vec<(Ipv6Net, u32)>) {
        if !nets.is_empty() {
            self.hosts.retain(|host, _| !lies_in(nets, Ipv6Addr::from_bits(*host).into()));
        }
        let mut entries = self.take_hosts(entries).peekable();
        if entries.peek().is_none() {
            return;
        }
        let before = std::mem::take(&mut self.starts);
        let mut intervals = before.iter().copied().peekable();
        for net in nets {
            let IpNet::V6(net) = net else { continue };
            if net.prefix_len() == 128 {
                continue;
            }
            let (first, last) = (net.network().to_bits(), net.broadcast().to_bits());
            while let Some((start, value)) = intervals.next_if(|(start, _)| *start < first) {
                cut(&mut self.starts, start, value);
            }
            while intervals.next_if(|(start, _)| *start <= last).is_some() {}
            let inside = |(inner, _): &(Ipv6Net, u32)| net.contains(inner);
            insert(&mut self.starts, self.default, std::iter::from_fn(|| entries.next_if(inside)));
            if let Some(next) = last.checked_add(1) {
                cut(&mut self.starts, next, value_at(&before, self.default, next));
            }
        }
        intervals.for_each(|(start, value)| cut(&mut self.starts, start, value));
    }

    /// Stores the single addresses and returns the other prefixes.
    fn take_hosts(
        &mut self,
        entries: Vec<(Ipv6Net, u32)>,
    ) -> impl Iterator<Item = (Ipv6Net, u32)> + use<> {
        let (hosts, wider): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|(net, _)| net.prefix_len() == 128);
        self.hosts.extend(hosts.into_iter().map(|(net, value)| (net.addr().to_bits(), value)));
        wider.into_iter()
    }

    #[inline]
    pub(super) fn lookup(&self, address: u128) -> u32 {
        if let Some(value) = self.hosts.get(&address) {
            return *value;
        }
        value_at(&self.starts, self.default, address)
    }

    /// Every address, as runs of equal values.
    pub(super) fn runs(&self) -> Vec<(IpAddr, IpAddr, u32)> {
        let hosts = self.hosts.keys().flat_map(|host| [Some(*host), host.checked_add(1)]);
        let mut starts: Vec<u128> =
            self.starts.iter().map(|(start, _)| *start).chain(hosts.flatten()).collect();
        starts.sort_unstable();
        starts.dedup();
        starts.dedup_by_key(|start| self.lookup(*start));
        let ends = starts.iter().skip(1).map(|first| first - 1).chain([u128::MAX]);
        let address = |bits| IpAddr::V6(Ipv6Addr::from_bits(bits));
        starts
            .iter()
            .zip(ends)
            .map(|(first, last)| (address(*first), address(last), self.lookup(*first)))
            .collect()
    }

    pub(super) fn bytes(&self) -> usize {
        self.hosts.capacity() * (size_of::<(u128, u32)>() + 1)
            + self.starts.capacity() * size_of::<(u128, u32)>()
    }
}

/// The value of the interval that holds an address.
fn value_at(starts: &[(u128, u32)], default: u32, address: u128) -> u32 {
    let after = starts.partition_point(|(start, _)| *start <= address);
    after.checked_sub(1).and_then(|at| starts.get(at)).map_or(default, |(_, value)| *value)
}

/// Adds the intervals of some prefixes. The prefixes are in ascending order of their first address, larger ones before
/// smaller ones inside them. A stack holds the prefixes that contain the current address. Addresses in no prefix have
/// the value `around`.
fn insert(
    starts: &mut Vec<(u128, u32)>,
    around: u32,
    entries: impl Iterator<Item = (Ipv6Net, u32)>,
) {
    let mut open: Vec<(u128, u32)> = Vec::new();
    for (net, value) in entries {
        let (first, last) = (net.network().to_bits(), net.broadcast().to_bits());
        close(starts, &mut open, around, Some(first));
        cut(starts, first, value);
        open.push((last, value));
    }
    close(starts, &mut open, around, None);
}

/// Removes from the stack every prefix that ends before the address `before`, or all prefixes if `before` is `None`.
/// After the end of a prefix, the value of the prefix around it applies.
fn close(
    intervals: &mut Vec<(u128, u32)>,
    open: &mut Vec<(u128, u32)>,
    around: u32,
    before: Option<u128>,
) {
    while let Some((last, _)) = open.last().copied() {
        if before.is_some_and(|before| last >= before) {
            break;
        }
        open.pop();
        if let Some(next) = last.checked_add(1) {
            cut(intervals, next, open.last().map_or(around, |(_, value)| *value));
        }
    }
}

/// Begins an interval with this value at `start`.
fn cut(intervals: &mut Vec<(u128, u32)>, start: u128, value: u32) {
    if intervals.last().is_some_and(|(last, _)| *last == start) {
        intervals.pop();
    }
    if intervals.last().is_none_or(|(_, last)| *last != value) {
        intervals.push((start, value));
    }
}
