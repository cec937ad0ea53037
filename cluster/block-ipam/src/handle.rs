//! A handle: a name by which addresses are released together, with the number of its addresses in each block.
//!
//! Law: a count is never lower than the number of addresses that the handle has in the block. So a release by the
//! handle finds all its addresses. A count may be too high after a crash; the next release by the handle removes it.

use std::collections::BTreeMap;

use data_encoding::BASE64URL_NOPAD;
use ipnet::IpNet;
use sha2::{Digest as _, Sha256};

/// The prefix of the handles of Services.
const SERVICE: &str = "lb-";

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Handle {
    pub id: String,
    /// The number of addresses in each block.
    pub blocks: BTreeMap<IpNet, u32>,
}

impl Handle {
    /// Returns the handle of a pod's attachment to a network: `<network>.<container>`, as in Calico's CNI plugin.
    pub fn of_pod(network: &str, container: &str) -> String {
        format!("{network}.{container}")
    }

    /// Returns the handle of a Service's addresses: `lb-` and a hash, as in Calico's controller (`createHandle`).
    pub fn of_service(namespace: &str, name: &str, uid: &str) -> String {
        let hash = Sha256::digest(format!("{name}-{namespace}-{uid}").to_lowercase());
        format!("{SERVICE}{}", BASE64URL_NOPAD.encode(&hash).replace(['-', '_'], ""))
    }

    /// Returns whether [`of_service`](Self::of_service) may have returned this name.
    pub fn is_of_service(id: &str) -> bool {
        id.starts_with(SERVICE)
    }

    /// Returns the handle of a node's tunnel address.
    pub fn of_tunnel(tunnel: Tunnel, node: &str) -> String {
        format!("{}-tunnel-addr-{node}", tunnel.prefix())
    }
}

/// A type of tunnel with an address of its own on each node.
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

    /// Returns the attribute `type` of the tunnel's address.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Ipip => "ipipTunnelAddress",
            Self::Vxlan => "vxlanTunnelAddress",
            Self::VxlanV6 => "vxlanV6TunnelAddress",
        }
    }
}
