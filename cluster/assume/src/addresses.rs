//! Gives blocks to nodes, and addresses to pods.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use manx_objects::object::{Object, ObjectKey};
use serde_json::json;

use crate::nodes::key_of;
use crate::space::{Space, User};
use crate::{Completion, Refusal, list, manifest};

/// The prefix lengths of a node's block, as Kubernetes' controller assigns them.
const BLOCK_V4: u8 = 24;
const BLOCK_V6: u8 = 64;
/// The prefix lengths of a node's block within a pool of the input. They are long because such a pool may be small and
/// nearly full.
const PART_V4: u8 = 26;
const PART_V6: u8 = 122;
/// The maximum number of addresses of a block that are compared with rules before pods get them.
const MANY: usize = 1 << 16;

/// Gives a block of each family to the nodes that have no block. The block is a free part of a pool of the input, or
/// else of a range that the input does not name. If there is no such range, the node gets no block. This matters only
/// for pods that need an address.
pub(crate) fn assign_blocks(completion: &mut Completion<'_>) -> Result<(), Refusal> {
    let without = completion.nodes().filter(|(_, node)| node.pod_cidrs.is_empty());
    let without: Vec<String> = without.map(|(key, _)| key.name.clone()).collect();
    let mut given: BTreeMap<&str, Vec<IpNet>> = BTreeMap::new();
    let families = if without.is_empty() { Vec::new() } else { completion.families() };
    for v4 in families {
        let mut blocks = Blocks::new(completion, v4);
        for name in &without {
            let Some(block) = blocks.next(completion) else { break };
            given.entry(name).or_default().push(block);
        }
    }
    let mut lacking = needing(completion);
    lacking.retain(|(_, node)| !given.contains_key(node.as_str()) && without.contains(node));
    if !lacking.is_empty() {
        let pods: Vec<String> = lacking.iter().map(|(pod, _)| pod.to_string()).collect();
        return Err(Refusal::NoRange {
            whom: format!(
                "the pods without an address ({})",
                list(pods.iter().map(String::as_str))
            ),
            what: "their status.podIPs, or spec.podCIDRs to their Nodes",
        });
    }
    for (name, blocks) in &given {
        let fields = json!({ "spec": manifest::spec_of_node(blocks) });
        completion.amend(&key_of(name), fields, |object| {
            if let Object::Node(node) = object {
                node.pod_cidrs.clone_from(blocks);
            }
        });
    }
    if !given.is_empty() {
        let texts = given
            .iter()
            .flat_map(|(name, blocks)| blocks.iter().map(move |block| format!("{name} {block}")));
        let texts: Vec<String> = texts.collect();
        completion.note(format!("no podCIDR: {}", list(texts.iter().map(String::as_str))));
    }
    Ok(())
}

/// The blocks of one family for nodes, which `Blocks::next` returns one after the other.
struct Blocks {
    v4: bool,
    pools: Vec<IpNet>,
    /// The unused parts of the current range.
    range: Vec<IpNet>,
}

impl Blocks {
    fn new(completion: &Completion<'_>, v4: bool) -> Self {
        let pools = completion.contents.all_valid().filter_map(|(_, object)| match object {
            Object::IpPool(pool) if pool.is_for_cluster() && pool.cidr.addr().is_ipv4() == v4 => {
                Some(pool.cidr)
            }
            _ => None,
        });
        Self { v4, pools: pools.collect(), range: Vec::new() }
    }

    fn next(&mut self, completion: &mut Completion<'_>) -> Option<IpNet> {
        let (of_pool, of_range) = if self.v4 { (PART_V4, BLOCK_V4) } else { (PART_V6, BLOCK_V6) };
        while let Some(pool) = self.pools.first() {
            if let Some(part) = completion.space.free_part(*pool, of_pool) {
                completion.space.take_block(part);
                return Some(part);
            }
            self.pools.remove(0);
        }
        if self.range.is_empty() {
            let range = completion.take_range(User::Pods, self.v4)?;
            self.range = range.subnets(of_range).ok()?.take(256).collect();
            self.range.reverse();
        }
        self.range.pop()
    }
}

/// Gives addresses to each pod that needs some and has none: the next free address of each block of its node. The first
/// two addresses of a block are not for pods: they are the network's address and the node's own.
pub(crate) fn assign_addresses(completion: &mut Completion<'_>) {
    let needing = needing(completion);
    let blocks: BTreeMap<String, Vec<IpNet>> =
        completion.nodes().map(|(key, node)| (key.name.clone(), node.pod_cidrs.clone())).collect();
    let mut cursors: BTreeMap<IpNet, Box<dyn Iterator<Item = IpAddr>>> = BTreeMap::new();
    let mut full = BTreeSet::new();
    for (key, node) in needing {
        let mut given = Vec::new();
        for block in blocks.get(&node).into_iter().flatten() {
            let space = &completion.space;
            let cursor = cursors.entry(*block).or_insert_with(|| Box::new(pods_of(*block, space)));
            match cursor.find(|address| completion.space.take(*address)) {
                Some(address) => given.push(address),
                None => _ = full.insert(*block),
            }
        }
        if given.is_empty() {
            continue;
        }
        let fields = json!({ "status": manifest::status_of_pod(&given) });
        completion.amend(&key, fields, |object| {
            if let Object::Pod(pod) = object {
                pod.pod_ips.clone_from(&given);
                pod.pod_ip = given.first().copied();
            }
        });
        completion.assumed.addresses.insert(key, given);
    }
    for block in full {
        completion.note(format!("podCIDR {block} is full: some of its pods have no address of it"));
    }
}

/// Returns the pods that need an address and have none, each with its node.
fn needing(completion: &Completion<'_>) -> Vec<(ObjectKey, String)> {
    let needing = completion
        .pods()
        .filter(|(_, pod)| !pod.host_network && !pod.deleting && pod.every_address().is_empty());
    needing.filter_map(|(key, pod)| Some((key.clone(), pod.node_name.clone()?))).collect()
}

/// Returns the addresses of a block that pods may have. Addresses that rules treat differently from the rest of the
/// block come last.
fn pods_of(block: IpNet, space: &Space) -> impl Iterator<Item = IpAddr> + use<> {
    let all = move || block.hosts().filter(move |address| *address != block.network()).skip(1);
    // Only the first addresses of a block are compared with rules, because an IPv6 block has too many. The bound is
    // larger than the number of pods that can be made.
    let named: BTreeSet<IpAddr> =
        all().take(MANY).filter(|address| space.is_named_within(block, *address)).collect();
    let others = named.clone();
    all().filter(move |address| !others.contains(address)).chain(named)
}
