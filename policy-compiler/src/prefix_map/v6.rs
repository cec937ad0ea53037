//! The IPv6 half: a keyed hash of the /128s (pods), then a binary search in the disjoint intervals into which all
//! shorter prefixes divide the address space.

use std::net::{IpAddr, Ipv6Addr};

use ahash::AHashMap;
use ipnet::Ipv6Net;

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Intervals {
    default: u32,
    hosts: AHashMap<u128, u32>,
    /// First address and value of each interval, ascending, the first at 0.
    starts: Vec<(u128, u32)>,
}

impl Intervals {
    /// If one prefix has two values, the larger one counts.
    pub(super) fn build(default: u32, mut entries: Vec<(Ipv6Net, u32)>) -> Self {
        entries.sort_unstable_by_key(|(net, value)| (net.network(), net.prefix_len(), *value));
        let mut map = Self { default, hosts: AHashMap::new(), starts: Vec::new() };
        map.insert(entries);
        map
    }

    #[inline]
    pub(super) fn lookup(&self, address: u128) -> u32 {
        if let Some(value) = self.hosts.get(&address) {
            return *value;
        }
        self.around(address)
    }

    fn around(&self, address: u128) -> u32 {
        let after = self.starts.partition_point(|(start, _)| *start <= address);
        after.checked_sub(1).and_then(|at| self.starts.get(at)).map_or(self.default, |i| i.1)
    }

    /// Every address, in runs of equal values.
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

    /// Goes through the prefixes in order of their first address, outer before inner, with the open prefixes on a
    /// stack.
    fn insert(&mut self, entries: Vec<(Ipv6Net, u32)>) {
        let mut open: Vec<(u128, u32)> = Vec::new();
        cut(&mut self.starts, 0, self.default);
        for (net, value) in entries {
            if net.prefix_len() == 128 {
                self.hosts.insert(net.network().to_bits(), value);
                continue;
            }
            let (first, last) = (net.network().to_bits(), net.broadcast().to_bits());
            close(&mut self.starts, &mut open, self.default, Some(first));
            cut(&mut self.starts, first, value);
            open.push((last, value));
        }
        close(&mut self.starts, &mut open, self.default, None);
        self.starts.shrink_to_fit();
    }
}

/// Closes every open prefix that ends before `before`, or all of them if it is `None`. After a closed prefix its
/// parent's value counts.
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

/// From `start` on, addresses have `value`.
fn cut(intervals: &mut Vec<(u128, u32)>, start: u128, value: u32) {
    if intervals.last().is_some_and(|(last, _)| *last == start) {
        intervals.pop();
    }
    if intervals.last().is_none_or(|(_, last)| *last != value) {
        intervals.push((start, value));
    }
}
