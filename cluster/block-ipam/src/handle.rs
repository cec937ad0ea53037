//! A handle: the name by which addresses are released together, and how many each block has of it.
//!
//! The law: a count is never lower than the number of addresses that the handle has in the block. So a release by
//! handle finds all of them. A count may be higher after a crash; the next release by the handle takes it away.

use std::collections::BTreeMap;

use ipnet::IpNet;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Handle {
    pub id: String,
    /// The number of addresses in each block.
    pub blocks: BTreeMap<IpNet, u32>,
}

impl Handle {
    /// The handle of a pod's attachment: `<network>.<container>`. Calico's CNI plugin names it so.
    pub fn of_pod(network: &str, container: &str) -> String {
        format!("{network}.{container}")
    }

    /// The handle of a node's tunnel address.
    pub fn of_tunnel(tunnel: Tunnel, node: &str) -> String {
        format!("{}-tunnel-addr-{node}", tunnel.prefix())
    }
}

/// A kind of tunnel that has an address of its own on each node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tunnel {
    Ipip,
    Vxlan,
    VxlanV6,
}

impl Tunnel {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Ipip => "ipip",
            Self::Vxlan => "vxlan",
            Self::VxlanV6 => "vxlan-v6",
        }
    }

    /// The attribute `type` of its address.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Ipip => "ipipTunnelAddress",
            Self::Vxlan => "vxlanTunnelAddress",
            Self::VxlanV6 => "vxlanV6TunnelAddress",
        }
    }
}
