//! Blocks that two nodes claim.

use std::collections::BTreeMap;

use ipnet::IpNet;

use super::Node;

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
