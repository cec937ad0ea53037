//! The order in which an owner examines a pool's blocks. It starts at a block that a hash chooses, usually of the
//! owner's name, and goes around the pool once. So two nodes that need a block at the same time rarely try the same
//! one, and a node that tries again tries the same blocks in the same order.

use std::ops::Range;

use ipnet::IpNet;

use crate::addresses::{blocks, nth_block, place_of_end};
use crate::pool::Pool;

/// The blocks of a pool, except blocks within reserved nets. Skipping a reserved net takes one step, however large the
/// net is.
pub(crate) struct Candidates<'a> {
    pool: &'a Pool,
    reserved: &'a [IpNet],
    /// The indexes of the blocks that are not examined yet: first those up to the end of the pool, then those from its
    /// start.
    left: [Range<u128>; 2],
}

impl<'a> Candidates<'a> {
    pub(crate) fn new(pool: &'a Pool, reserved: &'a [IpNet], seed: &str) -> Self {
        let count = blocks(pool.cidr, pool.block_size);
        let first = u128::from(hash(seed)) % count;
        Self { pool, reserved, left: [first..count, 0..first] }
    }
}

impl Iterator for Candidates<'_> {
    type Item = IpNet;

    fn next(&mut self) -> Option<IpNet> {
        let Self { pool, reserved, left } = self;
        for range in left {
            while let Some(at) = range.next() {
                let block = nth_block(pool.cidr, pool.block_size, at)?;
                match reserved.iter().find(|net| net.contains(&block)) {
                    None => return Some(block),
                    Some(net) => {
                        let last = place_of_end(pool.cidr, pool.block_size, *net);
                        range.start = last.saturating_add(1).clamp(range.start, range.end);
                    }
                }
            }
        }
        None
    }
}

/// Returns the FNV-1a hash with 64 bits (RFC 9923). It gives the same result in all versions and on all machines.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::memory::pool;

    #[test]
    fn each_block_comes_once_and_names_start_at_different_places() {
        let pool = pool("10.65.0.0/20", 26);
        let all: Vec<IpNet> = Candidates::new(&pool, &[], "node-1").collect();
        assert_eq!(all.len(), 64);
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 64);
        let names = (0..200).map(|at| format!("node-{at}"));
        let firsts: BTreeSet<IpNet> =
            names.filter_map(|name| Candidates::new(&pool, &[], &name).next()).collect();
        assert!(firsts.len() > 50, "{}", firsts.len());
    }

    #[test]
    fn a_reserved_net_of_any_size_is_one_step() {
        let pool = pool("fd00::/48", 122);
        let reserved = ["fd00::/49", "fd00:0:0:8000::/50", "fd00:0:0:c000::/64"];
        let reserved = reserved.map(|it| it.parse().unwrap());
        for seed in ["a", "b", "c", "d", "e", "f"] {
            let found = Candidates::new(&pool, &reserved, seed).next().unwrap();
            assert!(!reserved.iter().any(|net: &IpNet| net.contains(&found)), "{found}");
        }
        let all = ["::/0".parse().unwrap()];
        assert_eq!(Candidates::new(&pool, &all, "a").next(), None);
    }
}
