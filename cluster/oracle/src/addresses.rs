//! The addresses that an object assigns to a pod or a node.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::blocks::BlockSource;
use manx_objects::object::{Node, Phase, Pod};

/// Returns the addresses of a node: those that its object lists, and those of its tunnels. Calico's annotations name
/// the tunnel addresses. Without Calico's IPAM, the node uses the second address of each podCIDR. A podCIDR with fewer
/// than four addresses has no address for pods or for the node.
pub(super) fn node_addresses(node: &Node, source: BlockSource) -> BTreeSet<IpAddr> {
    let listed = node.internal_ips.iter().chain(&node.external_ips).copied();
    let noted = node.calico_address.map(|net| net.addr());
    let blocks =
        node.pod_cidrs.iter().filter(|block| block.prefix_len() + 2 <= block.max_prefix_len());
    let second = blocks.map(|block| match block.network() {
        IpAddr::V4(first) => IpAddr::from((u32::from(first) + 1).to_be_bytes()),
        IpAddr::V6(first) => IpAddr::from((u128::from(first) + 1).to_be_bytes()),
    });
    match source {
        BlockSource::PodCidrs => listed.chain(noted).chain(second).collect(),
        BlockSource::Affinities => {
            listed.chain(noted).chain(node.tunnel_addresses.iter().copied()).collect()
        }
    }
}

/// Returns the addresses that a pod's object names. A pod on the host's network and a finished pod have none.
pub(super) fn addresses(pod: &Pod) -> BTreeSet<IpAddr> {
    let finished = pod.phase == Some(Phase::Succeeded) || pod.phase == Some(Phase::Failed);
    // The CNI plugin empties its annotation when it releases the addresses: Calico's `podIP`, or Amazon's `pod-ips`.
    let noted = &pod.annotated_ips;
    let empty = Some(Vec::new());
    let released = pod.deleting && (noted.pod_ip == empty || noted.aws_pod_ips == empty);
    if pod.host_network || finished || released {
        return BTreeSet::new();
    }
    let mut addresses: BTreeSet<IpAddr> = pod.pod_ips.iter().copied().collect();
    if addresses.is_empty() {
        addresses.extend(pod.pod_ip);
    }
    for annotation in [&noted.pod_ips, &noted.pod_ip, &noted.aws_pod_ips] {
        if addresses.is_empty() {
            addresses.extend(annotation.iter().flatten());
        }
    }
    addresses
}
