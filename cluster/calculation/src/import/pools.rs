//! Finds pools that cannot be used unchanged: pools that overlap another pool, and pools that contain addresses of
//! nodes.
//!
//! If two pools overlap, the older one is used. Calico, too, refuses the later one. If it is not known which pool is
//! older, it is not known which pool a block belongs to. Neither pool is valid then.
//!
//! A pool that contains addresses of nodes keeps its blocks. The reason is that each kubelet may report any address for
//! its own node, and other nodes must not lose their routes because of this. But the node's kernel gets no route for
//! the rest of the pool, because that route would lead to pods instead of those nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{Cluster, Node, network, problem};
use manx_objects::code::Code;
use manx_objects::contents::{Contents, Stored};
use manx_objects::object::{IpPool, Kind, Object, ObjectKey};

/// A pool as its object defines it.
struct Written<'a> {
    pool: &'a IpPool,
    key: &'a ObjectKey,
    stored: &'a Stored,
}

/// Pairs of pools that share addresses.
type Pairs<'a> = Vec<(&'a Written<'a>, &'a Written<'a>)>;

/// Returns all pools that can be read, the oldest first, and whether the age of all pools is known.
fn written(contents: &Contents) -> (Vec<Written<'_>>, bool) {
    let mut all = Vec::new();
    for (key, stored) in contents.of_kind(Kind::IpPool) {
        if let Some(Object::IpPool(pool)) = stored.state.valid() {
            all.push(Written { pool, key, stored });
        }
    }
    all.sort_by_key(|it| (it.pool.created, it.pool.cidr, it.key));
    let are_dated = all.iter().all(|it| it.pool.created.is_some());
    (all, are_dated)
}

/// Returns two lists of pairs of overlapping pools. In the first list, the first pool of a pair is not used, because
/// the second one is older and is used, or may be used. In the second list, the first pool of a pair may be used, and
/// it is not known to be older or younger than the second one, which may be used, too.
fn overlapping<'a>(all: &'a [Written<'a>], are_dated: bool) -> (Pairs<'a>, Pairs<'a>) {
    let overlap = |one: &Written<'_>, other: &Written<'_>| {
        let (one, other) = (one.pool.cidr, other.pool.cidr);
        one.contains(&other) || other.contains(&one)
    };
    let (mut later, mut doubtful) = (Vec::new(), Vec::new());
    // In the sorted list, if a pool contains any other pool, it also contains the pool that follows it directly.
    let mut sorted: Vec<IpNet> = all.iter().map(|it| it.pool.cidr.trunc()).collect();
    sorted.sort_unstable();
    if !sorted.windows(2).any(|pair| pair[0].contains(&pair[1])) {
        return (later, doubtful);
    }
    let mut standing: Vec<&Written<'_>> = Vec::new();
    let is_as_old = |one: &Written<'_>, other: &Written<'_>| {
        !are_dated || one.pool.created == other.pool.created
    };
    for of_one_age in all.chunk_by(is_as_old) {
        let mut new = Vec::new();
        for pool in of_one_age {
            match standing.iter().find(|older| overlap(pool, older)) {
                Some(older) => later.push((pool, *older)),
                None => new.push(pool),
            }
        }
        for pool in &new {
            let other = new.iter().find(|other| other.key != pool.key && overlap(pool, other));
            doubtful.extend(other.map(|other| (*pool, *other)));
        }
        standing.extend(new);
    }
    (later, doubtful)
}

/// Returns the addresses within `cidr` that nodes report and that are in no block. Addresses in blocks are left out,
/// because a block belongs to its node, whatever another node reports.
pub(crate) fn reported_within(
    nodes: &BTreeMap<String, Node>,
    cidr: IpNet,
) -> impl Iterator<Item = (&str, IpAddr)> {
    let reported = nodes.iter().flat_map(|(name, node)| {
        let is_own = |address: &IpAddr| node.plan.tunnel_addresses().contains(address);
        let others = node.addresses.iter().filter(move |address| !is_own(address));
        others.map(|address| (name.as_str(), *address))
    });
    let is_in_block = |address: &IpAddr| nodes.values().any(|node| node.plan.contains(*address));
    reported.filter(move |(_, address)| cidr.contains(address) && !is_in_block(address))
}

impl Cluster {
    /// Evaluates all pools, and reports their problems. The nodes must be imported before.
    pub(super) fn judge_pools(&mut self, contents: &Contents) {
        let (all, are_dated) = written(contents);
        let (later, doubtful) = overlapping(&all, are_dated);
        let mut tell = |it: &Written<'_>, code, message| {
            self.problems.push(problem(it.key, &it.stored.place, code, message));
        };
        for (it, other) in &doubtful {
            let (cidr, of) = (it.pool.cidr, other.key);
            let message = format!(
                "its CIDR {cidr} overlaps {} of {of}: give each pool its own",
                other.pool.cidr
            );
            tell(it, Code::OverlappingPools, message);
        }
        for (it, older) in &later {
            let (cidr, of) = (it.pool.cidr, older.key);
            let message = format!(
                "its CIDR {cidr} overlaps {} of {of}, which is older: this pool does not count; give each pool its own",
                older.pool.cidr
            );
            tell(it, Code::OverlappingPools, message);
        }
        self.invalid_pools.extend(doubtful.iter().map(|(it, _)| it.key.name.clone()));
        self.later_pools = later.iter().map(|(it, _)| it.key.name.clone()).collect();
        self.pools = Vec::with_capacity(all.len());
        let counts = |it: &&Written<'_>| {
            it.pool.is_for_cluster() && !self.later_pools.contains(&it.key.name)
        };
        for it in all.iter().filter(counts) {
            let mut pool = network::pool(it.pool);
            if let Some((node, address)) = reported_within(&self.nodes, pool.cidr).next() {
                pool.holds_nodes = true;
                let message = format!(
                    "its CIDR {} holds {address} of Node {node:?}: only nodes' {}s are routed of it; give the pool addresses \
                     that no host has",
                    pool.cidr,
                    self.ipam.block()
                );
                let place = &it.stored.place;
                self.problems.push(problem(it.key, place, Code::PoolHoldsNodes, message));
            }
            self.pools.push(pool);
        }
        self.pools.sort_by_key(|pool| pool.cidr);
    }

    /// Returns whether, at the last evaluation, all pools could be used as their objects define them.
    pub(super) fn are_pools_sound(&self) -> bool {
        self.invalid_pools.is_empty()
            && self.later_pools.is_empty()
            && !self.pools.iter().any(|pool| pool.holds_nodes)
    }
}
