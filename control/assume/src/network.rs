//! Pools around the pods' addresses: without one, Manx does not know whether a block is behind a tunnel, and sends
//! nothing.

use std::net::IpAddr;

use ipnet::IpNet;
use manx_objects::object::{EncapsulationMode, IpPool, Kind, Object, ObjectKey};

use crate::{Completion, list};

/// The shortest prefixes of a pool that holds several blocks, and the prefixes of a pool that holds several addresses.
const SHORTEST: [u8; 2] = [12, 32];
const OF_ADDRESSES: [u8; 2] = [24, 64];

/// Makes pools for the blocks and addresses that lie in none: one of each family that holds all of these, if it is not
/// much larger and holds nothing else that the input names. Otherwise one for each block, and for the addresses of a
/// /24.
pub(crate) fn make_pools(completion: &mut Completion<'_>) {
    if completion
        .contents
        .of_kind(Kind::IpPool)
        .any(|(_, stored)| matches!(stored.state, manx_objects::State::Invalid(_)))
    {
        return;
    }
    let mut made = Vec::new();
    for v4 in [true, false] {
        let outside = outside_of_pools(completion, v4);
        let [shortest, of_addresses] = [SHORTEST, OF_ADDRESSES].map(|lens| lens[usize::from(!v4)]);
        let common = common_net(&outside)
            .filter(|net| net.prefix_len() >= shortest && may_be_pool(completion, *net, &outside));
        let nets = match common {
            Some(net) => vec![net],
            None => grouped(completion, &outside, of_addresses),
        };
        for net in nets {
            let key = free_key(completion);
            let mode = if v4 { EncapsulationMode::Always } else { EncapsulationMode::Never };
            let pool = IpPool { cidr: net, ipip_mode: Some(mode), vxlan_mode: None, created: None };
            completion.add(key, Object::IpPool(Box::new(pool)));
            made.push(net.to_string());
        }
    }
    if !made.is_empty() {
        let nets = list(made.iter().map(String::as_str));
        completion.note(format!("no IPPool around {nets}; IPv4 between nodes by IPIP"));
    }
}

/// The first name that no pool has: the input may hold the pools of an earlier completion.
fn free_key(completion: &Completion<'_>) -> ObjectKey {
    let key = |number| ObjectKey {
        kind: Kind::IpPool,
        namespace: String::new(),
        name: format!("assumed-{number}"),
    };
    let mut keys = (1_usize..).map(key);
    let free = |key: &ObjectKey| !completion.contents.objects.contains_key(key);
    keys.find(free).unwrap_or_else(|| key(0))
}

/// The blocks and pods' addresses of a family that lie in no pool and in no other of them.
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
    // A block comes before what it contains.
    all.sort_by_key(|net| (net.network(), net.prefix_len()));
    all.dedup_by(|next, kept| kept.contains(&*next));
    all
}

/// The nets, and in place of those that are longer than `len` the nets of that length around them, where these may be
/// pools.
fn grouped(completion: &Completion<'_>, nets: &[IpNet], len: u8) -> Vec<IpNet> {
    let around = |net: &IpNet| {
        let around = IpNet::new(net.addr(), len.min(net.prefix_len())).map(|net| net.trunc());
        around.ok().filter(|around| may_be_pool(completion, *around, nets)).unwrap_or(*net)
    };
    let mut grouped: Vec<IpNet> = nets.iter().map(around).collect();
    grouped.dedup();
    grouped
}

fn pools(completion: &Completion<'_>) -> Vec<IpNet> {
    let pools = completion.valid().filter_map(|(_, object)| match object {
        Object::IpPool(pool) => Some(pool.cidr),
        _ => None,
    });
    pools.collect()
}

/// The smallest net that contains all of these.
fn common_net(nets: &[IpNet]) -> Option<IpNet> {
    let mut common = *nets.first()?;
    while !nets.iter().all(|net| common.contains(net)) {
        common = common.supernet()?;
    }
    Some(common.trunc())
}

/// Whether a net overlaps no pool and holds no address of the input but those of `pods`.
fn may_be_pool(completion: &Completion<'_>, net: IpNet, pods: &[IpNet]) -> bool {
    let overlaps = |pool: &IpNet| pool.contains(&net) || net.contains(pool);
    let is_pods = |address: &IpAddr| pods.iter().any(|net| net.contains(address));
    !pools(completion).iter().any(overlaps)
        && completion.space.addresses_in(net).all(|address| is_pods(&address))
}
