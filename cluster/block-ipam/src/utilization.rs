//! `manx ipam show`: how many addresses of pools and blocks are in use. All functions here are pure.
//!
//! An address may be both reserved and in use: it was assigned before it was reserved, or to a request that named it.
//! So the numbers of a row may not add up to the total.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::addresses::{address, size};
use crate::block::Block;
use crate::pool::{Pool, around};

/// The numbers of a pool or a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Numbers {
    pub total: u128,
    /// Addresses that are assigned, including those that rest after their release.
    pub in_use: u128,
    /// Addresses that are assigned only to requests that name them (`IPReservation`).
    pub reserved: u128,
    /// Addresses that are neither assigned nor reserved.
    pub free: u128,
    /// Addresses that rest after their release: they have no user, and cannot be assigned yet.
    pub resting: u128,
}

/// The numbers of a net.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub cidr: IpNet,
    pub numbers: Numbers,
}

/// A pool with its blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Utilization {
    /// The pool, or `None` for blocks that are in no pool.
    pub pool: Option<Row>,
    pub blocks: Vec<Row>,
}

/// Returns the utilization of all pools in the order of their CIDRs. If there are blocks in no pool, they follow.
pub fn utilization(pools: &[Pool], blocks: &[Block], reserved: &[IpNet]) -> Vec<Utilization> {
    let mut sorted: Vec<&Pool> = pools.iter().collect();
    sorted.sort_by_key(|it| it.cidr);
    let with_pools: Vec<(&Block, Option<&str>)> = blocks
        .iter()
        .map(|block| (block, around(pools, block.cidr.network()).map(|it| it.name.as_str())))
        .collect();
    let of = |pool: Option<&Pool>| {
        let name = pool.map(|it| it.name.as_str());
        let of_pool = with_pools.iter().filter(|(_, of)| *of == name);
        let mut all: Vec<&Block> = of_pool.map(|(block, _)| *block).collect();
        all.sort_by_key(|it| it.cidr);
        let pool =
            pool.map(|pool| Row { cidr: pool.cidr, numbers: numbers(pool.cidr, &all, reserved) });
        let blocks = all.iter().map(|block| Row {
            cidr: block.cidr,
            numbers: numbers(block.cidr, &[block], reserved),
        });
        Utilization { pool, blocks: blocks.collect() }
    };
    let mut all: Vec<Utilization> = sorted.into_iter().map(|pool| of(Some(pool))).collect();
    all.extend(Some(of(None)).filter(|it| !it.blocks.is_empty()));
    all
}

fn numbers(net: IpNet, blocks: &[&Block], reserved: &[IpNet]) -> Numbers {
    let mut numbers = Numbers { total: addresses(net), ..Numbers::default() };
    numbers.reserved = disjoint(net, reserved).into_iter().map(addresses).sum();
    let mut both = 0;
    for block in blocks {
        for (at, allocation) in &block.allocations {
            let address: IpAddr = address(block.cidr, *at);
            numbers.in_use += 1;
            numbers.resting += u128::from(allocation.released_at.is_some());
            both += u128::from(reserved.iter().any(|net| net.contains(&address)));
        }
    }
    numbers.free = (numbers.total + both).saturating_sub(numbers.in_use + numbers.reserved);
    numbers
}

/// Returns the number of addresses of a net, or the largest number if there are more.
fn addresses(net: IpNet) -> u128 {
    let bits = u32::from(net.max_prefix_len() - net.prefix_len());
    if bits <= 12 { u128::from(size(net)) } else { 1_u128.checked_shl(bits).unwrap_or(u128::MAX) }
}

/// Returns the parts of `net` that are covered by these nets, without overlaps.
fn disjoint(net: IpNet, all: &[IpNet]) -> Vec<IpNet> {
    if all.iter().any(|it| it.contains(&net)) {
        return vec![net];
    }
    let mut inside: Vec<IpNet> =
        all.iter().map(IpNet::trunc).filter(|it| net.contains(it)).collect();
    inside.sort_unstable();
    inside.dedup();
    let mut parts: Vec<IpNet> = Vec::new();
    for it in inside {
        if !parts.last().is_some_and(|last| last.contains(&it)) {
            parts.push(it);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity::Owner;
    use crate::block::{Attributes, Rest, Time};
    use crate::memory::pool;
    use std::time::Duration;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_counted_once_in_each_column() {
        let owner = Owner::Host("a".to_owned());
        let mut block = Block::new(net("10.65.0.0/26"), owner.clone(), Time(1));
        for at in 0..5 {
            block.allocate_next(&format!("net.{at}"), &Attributes::new(), &[]);
        }
        block.release_handle("net.4", Rest { now: Time(2), cooldown: Duration::from_secs(9) });
        let lost = Block::new(net("10.99.0.0/30"), owner, Time(1));
        let pools = [pool("fd00::/48", 122), pool("10.65.0.0/24", 26)];
        // The first two addresses are allocated and reserved.
        let reserved = ["10.65.0.0/31", "10.65.0.0/31", "10.65.0.1/32", "10.65.0.128/25"];
        let all = utilization(&pools, &[lost, block], &reserved.map(net));
        let v4 = all[0].pool.clone().unwrap();
        assert_eq!(v4.cidr, net("10.65.0.0/24"));
        let expected = Numbers { total: 256, in_use: 5, reserved: 130, free: 123, resting: 1 };
        assert_eq!(v4.numbers, expected);
        let expected = Numbers { total: 64, in_use: 5, reserved: 2, free: 59, resting: 1 };
        assert_eq!(all[0].blocks, [Row { cidr: net("10.65.0.0/26"), numbers: expected }]);
        let v6 = all[1].pool.clone().unwrap().numbers;
        assert_eq!((v6.total, v6.free), (1 << 80, 1 << 80));
        assert_eq!(all[2].pool, None);
        assert_eq!(all[2].blocks[0].cidr, net("10.99.0.0/30"));
        let all = utilization(&pools, &[], &[net("10.0.0.0/8")]);
        assert_eq!(all[0].pool.clone().unwrap().numbers.free, 0);
        assert_eq!(all.len(), 2);
    }
}
