//! Blocks that two nodes claim, and addresses that are of two pools.

use std::collections::BTreeMap;

use ipnet::IpNet;

use super::{Node, problem};
use crate::manifest::State;
use crate::manifest::object::{Kind, Object, ObjectKey};
use crate::manifest::problem::Problem;
use crate::store::{Contents, Stored};

/// Two nodes' blocks of which one contains the other, or which are the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlap {
    /// The larger block and its node; of equal blocks, the node that is first by name.
    pub outer: (String, IpNet),
    /// The block within it and its node.
    pub inner: (String, IpNet),
}

/// All overlaps between blocks of different nodes. A prefix sorts directly before those that it contains, so each block is
/// compared with no more than these.
pub(super) fn overlaps(nodes: &BTreeMap<String, Node>) -> Vec<Overlap> {
    let mut blocks: Vec<(IpNet, &String)> = nodes
        .iter()
        .flat_map(|(name, node)| node.pod_cidrs.iter().map(move |block| (block.trunc(), name)))
        .collect();
    blocks.sort();
    let mut found = Vec::new();
    for (at, (outer, owner)) in blocks.iter().enumerate() {
        let within = blocks[at + 1..].iter().take_while(|(block, _)| outer.contains(block));
        for (inner, other) in within.filter(|(_, other)| other != owner) {
            found.push(Overlap {
                outer: ((*owner).clone(), *outer),
                inner: ((*other).clone(), *inner),
            });
        }
    }
    found
}

/// A problem for each pool of which another one contains addresses, in the order of their CIDRs: as Calico refuses the later
/// one and nobody knows which that is, neither is valid.
pub fn of_pools(contents: &Contents) -> Vec<Problem> {
    let mut pools: Vec<(IpNet, &ObjectKey, &Stored)> =
        contents.of_kind(Kind::IpPool).filter_map(pool).collect();
    pools.sort_by_key(|(cidr, key, _)| (*cidr, *key));
    let overlaps = |one: &IpNet, other: &IpNet| one.contains(other) || other.contains(one);
    let told = |(cidr, key, stored): &(IpNet, &ObjectKey, &Stored)| {
        let (other, of, _) =
            pools.iter().find(|(other, of, _)| of != key && overlaps(cidr, other))?;
        let message = format!("its CIDR {cidr} overlaps {other} of {of}: give each pool its own");
        Some(problem(key, &stored.place, message))
    };
    pools.iter().filter_map(told).collect()
}

fn pool<'a>(
    (key, stored): (&'a ObjectKey, &'a Stored),
) -> Option<(IpNet, &'a ObjectKey, &'a Stored)> {
    let State::Valid(object) = &stored.state else { return None };
    match &**object {
        Object::IpPool(pool) => Some((pool.cidr, key, stored)),
        _ => None,
    }
}
