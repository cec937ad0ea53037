//! Sorted lists of networks.

use std::net::IpAddr;

use ipnet::IpNet;

/// Whether an address lies in one of these networks, which are in ascending order and do not
/// overlap.
pub(crate) fn lies_in(nets: &[IpNet], address: IpAddr) -> bool {
    let behind = nets.partition_point(|net| net.network() <= address);
    behind.checked_sub(1).is_some_and(|at| nets[at].contains(&address))
}
