//! Nodes.

use std::net::IpAddr;

use ipnet::IpNet;

use super::bgp::NodeBgp;
use super::pairs::Pairs;

/// The taint that Cluster Autoscaler gives to a node before it takes the node's machine away.
pub const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// The annotations in which Calico stores a node's IPv4 and IPv6 address, each with the prefix length of its subnet.
pub const NODE_ADDRESSES: [&str; 2] =
    ["projectcalico.org/IPv4Address", "projectcalico.org/IPv6Address"];

/// The annotations in which Calico stores the addresses of a node's tunnels. The boolean says whether the address is
/// IPv4.
pub const TUNNEL_ADDRESSES: [(&str, bool); 3] = [
    ("projectcalico.org/IPv4IPIPTunnelAddr", true),
    ("projectcalico.org/IPv4VXLANTunnelAddr", true),
    ("projectcalico.org/IPv6VXLANTunnelAddr", false),
];

/// The part of a node that routing needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub labels: Pairs,
    /// Whether the node is about to be removed: `metadata.deletionTimestamp` is set, or Cluster Autoscaler has set its
    /// taint ([`TO_BE_DELETED`]).
    pub is_leaving: bool,
    /// `spec.podCIDRs`; `spec.podCIDR` comes first if the list does not contain it. The nets have no host bits.
    pub pod_cidrs: Vec<IpNet>,
    /// `status.addresses` of type `InternalIP`, in order.
    pub internal_ips: Vec<IpAddr>,
    /// `status.addresses` of type `ExternalIP`, in order.
    pub external_ips: Vec<IpAddr>,
    /// The annotation `projectcalico.org/IPv4Address` with its prefix length (32 if the annotation has none). The
    /// address keeps its host bits.
    pub calico_address: Option<IpNet>,
    /// The addresses that Calico's IPAM has given the node's tunnels, by the annotations
    /// `projectcalico.org/IPv4IPIPTunnelAddr`, `IPv4VXLANTunnelAddr` and `IPv6VXLANTunnelAddr`, in this order.
    pub tunnel_addresses: Vec<IpAddr>,
    /// The annotation `projectcalico.org/VXLANTunnelMACAddr`.
    pub vxlan_mac: Option<[u8; 6]>,
    /// The node's annotations that concern BGP.
    pub bgp: NodeBgp,
}
