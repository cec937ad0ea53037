//! The addresses and ports of the cluster in memory: one node with a client and a server, and pods of other nodes.

use std::net::Ipv4Addr;

use manx_dataplane::tables::PortId;

pub(crate) const NAME: &str = "node-0";
/// The node's address on the underlay.
pub(crate) const NODE: Ipv4Addr = Ipv4Addr::new(172, 18, 0, 1);
/// The pod whose packets are measured.
pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 10);
/// Another pod of the node.
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 11);

/// The port of the node's own stack, which leads to other nodes without a tunnel.
pub(crate) const HOST: PortId = PortId(0);
/// The port of the tunnels.
pub(crate) const RAW: PortId = PortId(1);
/// The port of the uplink, if Manx owns it.
pub(crate) const UPLINK: PortId = PortId(2);
pub(crate) const CLIENT_PORT: PortId = PortId(3);
pub(crate) const SERVER_PORT: PortId = PortId(4);

/// The first UDP and TCP port of the pods to which the policies allow packets.
pub(crate) const PORT: u16 = 5000;
/// The number of ports, starting with [`PORT`], that the policies allow.
pub(crate) const PORTS: u16 = 64;

/// The number of pods of other nodes.
pub(crate) const FAR: u32 = 512;
/// The first addresses of the two pools for pods of other nodes: one pool without a tunnel, and one with a tunnel. Each
/// node has a block of [`BLOCK`] addresses in each pool.
pub(crate) const POOLS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 64, 0, 0), Ipv4Addr::new(10, 128, 0, 0)];
pub(crate) const BLOCK: u32 = 1 << 12;
/// The network that contains all networks that rules allow one by one. It holds no address of the cluster.
pub(crate) const NETWORKS: &str = "192.0.0.0/10";

/// A network that one rule allows.
pub(crate) struct Network {
    pub(crate) address: Ipv4Addr,
    pub(crate) length: u32,
    pub(crate) port: u16,
}

/// The network of the rule with this number. All networks have the length 24, or lengths from 12 to 32 if
/// `many_lengths` is true.
pub(crate) fn network(rule: u32, many_lengths: bool) -> Network {
    let length = if many_lengths { 12 + rule % 21 } else { 24 };
    let address = (0xc000_0000 + rule * 256) & u32::MAX << (32 - length);
    Network { address: address.into(), length, port: 6000 + (rule % 10_000) as u16 }
}

/// The address of the pod with this number on another node.
pub(crate) fn far_pod(tunnel: bool, node: u32, number: u32) -> u32 {
    POOLS[usize::from(tunnel)].to_bits() + node * BLOCK + 16 + number
}

/// The address of a node on the underlay.
pub(crate) fn underlay(node: u32) -> u32 {
    NODE.to_bits() + node
}
