//! Makes pools for the pods' addresses. Without a pool, Manx does not know whether it reaches a block through a tunnel,
//! and sends nothing there.

use std::net::IpAddr;

use ipnet::IpNet;
use manx_objects::object::{EncapsulationMode, IpPool, Kind, Object, ObjectKey};

use crate::space::Space;
use crate::{Completion, list};

/// The shortest prefix lengths of a pool, for IPv4 and IPv6. `SHORTEST` is for a pool that contains all blocks and
/// addresses, and `OF_ADDRESSES` is for a pool around several small blocks or single addresses.
const SHORTEST: [u8; 2] = [12, 32];
const OF_ADDRESSES: [u8; 2] = [24, 64];

/// Makes pools for the blocks and addresses that are in no pool. For each family, a single pool contains all of them if
/// its prefix is not shorter than `SHORTEST`, and if it contains nothing else that the input names. Otherwise each
/// block gets its own pool, and the small blocks and the addresses in one /24 (IPv6: /64) share a pool if possible. If
/// the input has an invalid pool, no pools are made.
pub(crate) fn make_pools(completion: &mut Completion<'_>) {
    if completion
        .contents
        .of_kind(Kind::IpPool)
        .any(|(_, stored)| matches!(stored.state, manx_objects::State::Invalid(_)))
    {
        return;
    }
    let mut made = Vec::new();
    let mut number = 0;
    for v4 in [true, false] {
        let outside = outside_of_pools(completion, v4);
        let [shortest, of_addresses] = [SHORTEST, OF_ADDRESSES].map(|lens| lens[usize::from(!v4)]);
        let around = Around { pools: pools(completion), space: &completion.space, nets: &outside };
        let common = common_net(&outside)
            .filter(|net| net.prefix_len() >= shortest && around.may_be_pool(*net));
        let nets = match common {
            Some(net) => vec![net],
            None => around.grouped(of_addresses),
        };
        for net in nets {
            let key = free_key(completion, &mut number);
            let mode = if v4 { EncapsulationMode::Always } else { EncapsulationMode::Never };
            // A pool must be at least as large as one of its blocks. If the pool does not set the size of its blocks, a
            // block has 64 addresses.
            let is_small = net.prefix_len() > IpPool::default_block_size(net);
            let block_size = is_small.then(|| net.prefix_len());
            let pool = IpPool { block_size, ..IpPool::ipip(net, mode) };
            completion.add(key, Object::IpPool(Box::new(pool)));
            made.push(net.to_string());
        }
    }
    if !made.is_empty() {
        let nets = list(made.iter().map(String::as_str));
        completion.note(format!("no IPPool around {nets}; IPv4 between nodes by IPIP"));
    }
}

/// Returns the first name, after this number, that no pool has. The input may contain the pools of an earlier
/// completion.
fn free_key(completion: &Completion<'_>, number: &mut usize) -> ObjectKey {
    loop {
        *number += 1;
        let key = ObjectKey::new(Kind::IpPool, "", &format!("assumed-{number}"));
        if !completion.contents.objects.contains_key(&key) {
            return key;
        }
    }
}

/// Returns the blocks of nodes and the addresses of pods that are in no pool and in no other block, for one family.
fn outside_of_pools(completion: &Completion<'_>, v4: bool) -> Vec<IpNet> {
    let pools = pools(completion);
    let blocks = completion.nodes().flat_map(|(_, node)| node.pod_cidrs.clone());
    let addresses = completion
        .pods()
        .filter(|(_, pod)| !pod.host_network)
        .flat_map(|(_, pod)| pod.every_address())
        .map(IpNet::from);
    let all = blocks
        .chain(addresses)
        .filter(|net| net.addr().is_ipv4() == v4 && !pools.iter().any(|pool| pool.contains(net)));
    let mut all: Vec<IpNet> = all.collect();
    // A net sorts before the nets that it contains.
    all.sort_by_key(|net| (net.network(), net.prefix_len()));
    all.dedup_by(|next, kept| kept.contains(&*next));
    all
}

fn pools(completion: &Completion<'_>) -> Vec<IpNet> {
    let pools = completion.contents.all_valid().filter_map(|(_, object)| match object {
        Object::IpPool(pool) if pool.is_for_cluster() => Some(pool.cidr),
        _ => None,
    });
    pools.collect()
}

/// Returns the smallest net that contains all of these nets.
fn common_net(nets: &[IpNet]) -> Option<IpNet> {
    let mut common = *nets.first()?;
    while !nets.iter().all(|net| common.contains(net)) {
        common = common.supernet()?;
    }
    Some(common.trunc())
}

/// The data for deciding whether a net may become a pool. The net contains some blocks and addresses that have no pool.
struct Around<'a> {
    pools: Vec<IpNet>,
    space: &'a Space,
    /// The blocks and addresses, in order and without overlaps.
    nets: &'a [IpNet],
}

impl Around<'_> {
    /// Returns the nets. Each net longer than `len` is replaced by the net of length `len` around it, if that net may
    /// be a pool.
    fn grouped(&self, len: u8) -> Vec<IpNet> {
        let around = |net: &IpNet| {
            let around = IpNet::new(net.addr(), len.min(net.prefix_len())).map(|net| net.trunc());
            around.ok().filter(|around| self.may_be_pool(*around)).unwrap_or(*net)
        };
        let mut grouped: Vec<IpNet> = self.nets.iter().map(around).collect();
        grouped.dedup();
        grouped
    }

    /// Returns whether a net may be a pool: it overlaps no pool, and contains no address of the input except those in
    /// `nets`.
    fn may_be_pool(&self, net: IpNet) -> bool {
        let overlaps = |pool: &IpNet| pool.contains(&net) || net.contains(pool);
        !self.pools.iter().any(overlaps)
            && self.space.addresses_in(net).all(|address| self.holds(address))
    }

    fn holds(&self, address: IpAddr) -> bool {
        let after = self.nets.partition_point(|net| net.network() <= address);
        after.checked_sub(1).is_some_and(|at| self.nets[at].contains(&address))
    }
}
