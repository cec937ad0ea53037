//! Whom the client speaks with: what the number of a flow says of its other end.

use std::net::Ipv4Addr;
use std::sync::Arc;

use super::node::{NODE, SERVER};

/// The pods' well-known port, and the 63 behind it.
pub(crate) const PORT: u16 = 5000;
pub(super) const PORTS: u16 = 64;
/// The client's port is from here up to `FIRST_SOURCE_PORT + SOURCE_PORTS - 1`: none that is treated apart, as VXLAN's is.
const FIRST_SOURCE_PORT: u16 = 8192;
const SOURCE_PORTS: u32 = 1 << 15;

/// Pods of other nodes.
pub(super) const FAR: u32 = 512;
/// Pools of pods of other nodes: without a tunnel, and behind one. Each node has a block of [`BLOCK`] in each.
pub(super) const POOLS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 64, 0, 0), Ipv4Addr::new(10, 128, 0, 0)];
pub(super) const BLOCK: u32 = 1 << 12;
/// The networks that rules name one by one are in this one, and nobody of the cluster is.
pub(super) const NETWORKS: &str = "192.0.0.0/10";

/// A network that one rule names.
pub(super) struct Network {
    pub(super) address: Ipv4Addr,
    pub(super) length: u32,
    pub(super) port: u16,
}

/// The network of the rule of this number. All have one length, or `many_lengths`: 12 to 32.
pub(super) fn network(rule: u32, many_lengths: bool) -> Network {
    let length = if many_lengths { 12 + rule % 21 } else { 24 };
    let address = (0xc000_0000 + rule * 256) & u32::MAX << (32 - length);
    Network { address: address.into(), length, port: 6000 + (rule % 10_000) as u16 }
}

/// The other end of a flow.
pub(crate) struct Peer {
    pub(crate) address: u32,
    /// The address of its node, if it is a pod.
    pub(crate) node: u32,
    /// The client's port, and the peer's.
    pub(crate) ports: [u16; 2],
}

/// See the module.
pub(crate) enum Peers {
    /// A power of two of pods, the address of each and of its node.
    Pods { shift: u32, hosts: Vec<(u32, u32)> },
    /// Anybody in the networks of the rules 1 to `rules` (as [`network`] numbers them): each rule is as likely as any other.
    Networks { rules: u32, many_lengths: bool },
}

impl Peers {
    /// The pods of `nodes` other nodes, behind a tunnel or not.
    pub(crate) fn far(nodes: u32, tunnel: bool) -> Arc<Self> {
        let hosts = (0..FAR).map(|at| {
            let node = 1 + at % nodes;
            (far_pod(tunnel, node, at / nodes), underlay(node))
        });
        Arc::new(Self::Pods { shift: FAR.ilog2(), hosts: hosts.collect() })
    }

    /// The pod beside the client.
    pub(crate) fn near() -> Arc<Self> {
        Arc::new(Self::Pods { shift: 0, hosts: vec![(SERVER.to_bits(), NODE.to_bits())] })
    }

    /// All that are allowed by others than the last of so many rules.
    pub(crate) fn networks(rules: u32, many_lengths: bool) -> Arc<Self> {
        Arc::new(Self::Networks { rules: rules - 1, many_lengths })
    }

    /// The other end of the flow of this number. Pods: of 2^21 numbers for each pod no two flows are the same.
    #[inline]
    pub(crate) fn of(&self, flow: u32) -> Peer {
        match self {
            Self::Pods { shift, hosts } => {
                let (address, node) = hosts[flow as usize & (hosts.len() - 1)];
                let rest = flow >> shift;
                let port = PORT + (rest / SOURCE_PORTS) as u16 % PORTS;
                Peer { address, node, ports: [source_port(rest), port] }
            }
            Self::Networks { rules, many_lengths } => {
                let drawn = u64::from(scattered(flow));
                let rule = 1 + ((drawn * u64::from(*rules)) >> NUMBERS) as u32;
                let Network { address, length, port } = network(rule, *many_lengths);
                let host = scattered(!flow) & (u64::from(u32::MAX) >> length) as u32;
                Peer {
                    address: address.to_bits() | host,
                    node: 0,
                    ports: [source_port(flow), port],
                }
            }
        }
    }
}

fn source_port(number: u32) -> u16 {
    FIRST_SOURCE_PORT + (number % SOURCE_PORTS) as u16
}

/// Bits of a flow's number.
const NUMBERS: u32 = 30;

/// Another number of [`NUMBERS`] bits, in no order that a cache could follow. No two have the same.
#[inline]
pub(crate) fn scattered(number: u32) -> u32 {
    let mut number = number & MASK;
    // Each step can be undone: half of the bits are changed by the other half, and an odd factor has an inverse.
    for factor in [0x2c1b_3c6d, 0x297a_2d39] {
        number ^= number >> (NUMBERS / 2);
        number = number.wrapping_mul(factor) & MASK;
    }
    number ^ number >> (NUMBERS / 2)
}

const MASK: u32 = (1 << NUMBERS) - 1;

/// The pod of this number on a node.
pub(super) fn far_pod(tunnel: bool, node: u32, at: u32) -> u32 {
    POOLS[usize::from(tunnel)].to_bits() + node * BLOCK + 16 + at
}

/// The address of a node.
pub(super) fn underlay(node: u32) -> u32 {
    NODE.to_bits() + node
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn scattered_numbers_are_all_different_and_in_no_order() {
        let numbers: Vec<u32> = (0..100_000).map(scattered).collect();
        assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), numbers.len());
        let rising = numbers.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!(
            (49_000..51_000).contains(&rising),
            "{rising} of 100,000 are larger than the one before"
        );
    }

    #[test]
    fn peers_in_networks_are_spread_over_all_rules_and_their_hosts() {
        for many_lengths in [false, true] {
            let peers = Peers::Networks { rules: 99, many_lengths };
            let mut met = BTreeSet::new();
            for flow in 0..1000 {
                let Peer { address, ports: [_, port], .. } = peers.of(flow);
                let rule = u32::from(port) - 6000;
                let Network { address: network, length, .. } = network(rule, many_lengths);
                assert_eq!(address & u32::MAX << (32 - length), network.to_bits());
                met.insert((rule, address));
            }
            let rules: BTreeSet<u32> = met.iter().map(|(rule, _)| *rule).collect();
            assert_eq!((rules.first(), rules.last(), rules.len()), (Some(&1), Some(&99), 99));
            assert!(met.len() > 700, "{} different addresses", met.len());
        }
    }
}
