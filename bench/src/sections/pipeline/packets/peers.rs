//! The peers of the client. The number of a flow determines its peer and its ports.

use std::sync::Arc;

use super::addresses::{FAR, NODE, Network, PORT, PORTS, SERVER, far_pod, network, underlay};

/// The first of the client's ports. Their number is `SOURCE_PORTS`. None of them is a port with a special meaning, such
/// as the port of VXLAN.
const FIRST_SOURCE_PORT: u16 = 8192;
const SOURCE_PORTS: u32 = 1 << 15;

/// The peer of a flow.
pub(crate) struct Peer {
    pub(crate) address: u32,
    /// The address of its node, or 0 if it is not a pod.
    pub(crate) node: u32,
    /// The client's port and the peer's.
    pub(crate) ports: [u16; 2],
}

/// The peers of the client.
pub(crate) enum Peers {
    /// Pods, each with its address and the address of its node. Their number is a power of two: 1 << `shift`.
    Pods { shift: u32, hosts: Vec<(u32, u32)> },
    /// Addresses in the networks of the rules 1 to `rules`, as [`network`] numbers them. Each rule is equally likely.
    Networks { rules: u32, many_lengths: bool },
}

impl Peers {
    /// The pods of `nodes` other nodes, with a tunnel or without.
    pub(crate) fn far(nodes: u32, tunnel: bool) -> Arc<Self> {
        let hosts = (0..FAR).map(|at| {
            let node = 1 + at % nodes;
            (far_pod(tunnel, node, at / nodes), underlay(node))
        });
        Arc::new(Self::Pods { shift: FAR.ilog2(), hosts: hosts.collect() })
    }

    /// The other pod of the client's node.
    pub(crate) fn near() -> Arc<Self> {
        Arc::new(Self::Pods { shift: 0, hosts: vec![(SERVER.to_bits(), NODE.to_bits())] })
    }

    /// Addresses in the networks that `rules` rules allow. The last rule is left out, because it allows the pods.
    pub(crate) fn networks(rules: u32, many_lengths: bool) -> Arc<Self> {
        Arc::new(Self::Networks { rules: rules - 1, many_lengths })
    }

    /// The peer of the flow with this number. If the peers are pods, each pod has 2^21 different flows before flows
    /// repeat.
    #[inline]
    pub(crate) fn peer(&self, flow: u32) -> Peer {
        match self {
            Self::Pods { shift, hosts } => {
                let (address, node) = hosts[flow as usize & (hosts.len() - 1)];
                let rest = flow >> shift;
                let port = PORT + (rest / SOURCE_PORTS) as u16 % PORTS;
                Peer { address, node, ports: [source_port(rest), port] }
            }
            Self::Networks { rules, many_lengths } => {
                let drawn = u64::from(scatter(flow));
                let rule = 1 + ((drawn * u64::from(*rules)) >> NUMBER_BITS) as u32;
                let Network { address, length, port } = network(rule, *many_lengths);
                let host = scatter(!flow) & (u64::from(u32::MAX) >> length) as u32;
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

/// The number of bits of a flow's number.
const NUMBER_BITS: u32 = 30;

/// Permutes the numbers of [`NUMBER_BITS`] bits into an order that no cache can predict.
#[inline]
pub(crate) fn scatter(number: u32) -> u32 {
    let mut number = number & MASK;
    // Both steps are invertible, so the result is a permutation: the upper half of the bits changes the lower half, and
    // an odd factor has an inverse.
    for factor in [0x2c1b_3c6d, 0x297a_2d39] {
        number ^= number >> (NUMBER_BITS / 2);
        number = number.wrapping_mul(factor) & MASK;
    }
    number ^ number >> (NUMBER_BITS / 2)
}

const MASK: u32 = (1 << NUMBER_BITS) - 1;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn scattered_numbers_are_all_different_and_in_no_order() {
        let numbers: Vec<u32> = (0..100_000).map(scatter).collect();
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
                let Peer { address, ports: [_, port], .. } = peers.peer(flow);
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
