//! Overlaps between blocks of two nodes.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::Node;

/// Two blocks of different nodes. One block contains the other or is equal to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlap {
    /// The larger block and its node. If the blocks are equal, this is the node whose name comes first.
    pub outer: (String, IpNet),
    /// The inner block and its node.
    pub inner: (String, IpNet),
}

/// Returns overlaps between blocks of different nodes. Every block that overlaps a block of another node is in at least
/// one result: together with the smallest block that contains it or, if no block contains it, with the first block that
/// it contains. Other pairs are not reported, because if all nodes claim one block, there would be as many overlaps as
/// pairs of nodes. A prefix sorts directly before the prefixes that it contains.
pub(super) fn overlaps(nodes: &BTreeMap<String, Node>) -> Vec<Overlap> {
    let mut blocks: Vec<(IpNet, &String)> = nodes
        .iter()
        .flat_map(|(name, node)| node.plan.blocks().iter().map(move |block| (block.trunc(), name)))
        .collect();
    blocks.sort();
    blocks.dedup();
    let overlap = |(outer, owner): (IpNet, &String), (inner, other): (IpNet, &String)| Overlap {
        outer: (owner.clone(), outer),
        inner: (other.clone(), inner),
    };
    let mut found = Vec::new();
    let mut told = BTreeSet::new();
    // The blocks that contain the current one. The smallest is the last.
    let mut around: Vec<usize> = Vec::new();
    for (at, block) in blocks.iter().enumerate() {
        while around.pop_if(|outer| !blocks[*outer].0.contains(&block.0)).is_some() {}
        if let Some(outer) = around.iter().rev().find(|outer| blocks[**outer].1 != block.1) {
            found.push(overlap(blocks[*outer], *block));
            told.extend([*outer, at]);
        }
        around.push(at);
    }
    for (at, block) in blocks.iter().enumerate().filter(|(at, _)| !told.contains(at)) {
        let mut within = blocks[at + 1..].iter().take_while(|(inner, _)| block.0.contains(inner));
        found.extend(within.find(|(_, owner)| *owner != block.1).map(|it| overlap(*block, *it)));
    }
    found
}

#[cfg(test)]
mod tests {
    use manx_ipam::plan::Plan;
    use proptest::prelude::*;

    use super::*;

    /// Blocks in a small range of addresses, so that many overlap. Each has the number of its node.
    fn blocks() -> impl Strategy<Value = Vec<(IpNet, u8)>> {
        let block = (0_u8..8, 24_u8..=27, 0_u8..4).prop_map(|(bits, length, node)| {
            let net = IpNet::new([10, 0, 0, bits << 5].into(), length).unwrap();
            (net.trunc(), node)
        });
        prop::collection::vec(block, 0..12)
    }

    fn is_overlap((one, of): &(IpNet, u8), (other, others): &(IpNet, u8)) -> bool {
        of != others && (one.contains(other) || other.contains(one))
    }

    proptest! {
        #[test]
        fn each_block_that_overlaps_anothers_is_told_and_they_are_no_more_than_two_each(blocks in blocks()) {
            let mut of_nodes = BTreeMap::<String, Vec<IpNet>>::new();
            for (block, node) in &blocks {
                of_nodes.entry(node.to_string()).or_default().push(*block);
            }
            let node = |blocks| Node { plan: Plan::host_local(blocks), ..Node::default() };
            let nodes = of_nodes.into_iter().map(|(name, blocks)| (name, node(blocks))).collect();
            let found = overlaps(&nodes);
            let mut told = BTreeSet::new();
            for Overlap { outer, inner } in &found {
                prop_assert!(outer.1.contains(&inner.1) && outer.0 != inner.0);
                told.extend([outer, inner].map(|(node, block)| (*block, node.parse().unwrap())));
            }
            let all = blocks.iter().filter(|one| blocks.iter().any(|other| is_overlap(one, other)));
            prop_assert_eq!(told, all.copied().collect::<BTreeSet<(IpNet, u8)>>());
            prop_assert!(found.len() <= 2 * blocks.len());
        }
    }
}
