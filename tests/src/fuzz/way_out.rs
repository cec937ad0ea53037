//! The nodes' ports that belong to Manx: the range of ports that replace pods' ports in packets to the world (the way
//! out), the pods whose packets use it, and node ports. They do not change within a world.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use fastrand::Rng;
use ipnet::IpNet;
use manx_dataplane::tables::{Link, ManxPorts};
use manx_policy_compiler::prefix_map::PrefixMap;

use super::plan::{PODS, v4, v6};
use super::read::FlowTuple;
use crate::fabric::{MANX, MTU, UNDERLAY, underlay_v6};

/// The ranges of the way out: a small one, which is soon full, and the usual one.
const EGRESS: [(u16, u16); 2] = [(61_000, 61_001), (61_000, 65_534)];
/// The destinations that see every pod's own address, like addresses of pools.
const STAYS: [&str; 2] = ["10.0.0.0/8", "fd00::/16"];

/// See the module.
#[derive(Debug, Clone)]
pub struct WayOut {
    /// The first and the last port that may replace a source's port.
    pub egress: (u16, u16),
    /// The addresses whose packets to the world get the node's address (`natOutgoing` of their pool).
    asks: Vec<IpAddr>,
}

impl WayOut {
    pub fn new(rng: &mut Rng) -> Self {
        let all = (0..PODS).flat_map(|at| [v4(at), v6(at)]);
        let asks = all.filter(|_| rng.u8(..4) > 0).collect();
        Self { egress: EGRESS[rng.usize(..EGRESS.len())], asks }
    }

    /// Whether the world sees the node's address in packets between these two.
    pub fn masquerades(&self, source: IpAddr, destination: IpAddr) -> bool {
        let stays = match destination {
            IpAddr::V4(v4) => v4.octets()[0] == 10,
            IpAddr::V6(v6) => v6.segments()[0] == 0xfd00,
        };
        self.asks.contains(&source) && !stays
    }

    /// Makes the range the small one, which is soon full.
    pub fn narrow(&mut self) {
        self.egress = EGRESS[0];
    }

    /// Whether a port is one of the way out.
    pub fn has_port(&self, port: u16) -> bool {
        (self.egress.0..=self.egress.1).contains(&port)
    }

    /// The number of its ports.
    pub fn size(&self) -> usize {
        usize::from(self.egress.1 - self.egress.0) + 1
    }

    /// The settings that the tables get, with this range of ports. If `lies`, the first pod address is left out, which
    /// is a deliberate fault.
    pub fn tables(&self, egress: (u16, u16), lies: bool) -> ManxPorts {
        let mut values: BTreeMap<IpNet, u32> = BTreeMap::new();
        for address in self.asks.iter().skip(usize::from(lies)) {
            *values.entry((*address).into()).or_default() |= ManxPorts::ASKS;
        }
        for net in STAYS {
            *values.entry(net.parse().unwrap()).or_default() |= ManxPorts::STAYS;
        }
        // A look-up finds only the longest prefix, so an address must repeat the value of the net that contains it.
        for (net, value) in &mut values {
            if *value == ManxPorts::ASKS
                && STAYS.iter().any(|it| it.parse::<IpNet>().unwrap().contains(net))
            {
                *value |= ManxPorts::STAYS;
            }
        }
        ManxPorts {
            link: Link::native(MANX, MTU),
            egress,
            addresses: [None; 2],
            outgoing: [None; 2],
            masquerade: Arc::new(PrefixMap::build(0, values)),
        }
    }
}

/// The addresses of a node at which it has ports of services, and with which the world sees its
/// pods.
pub fn ported_addresses(node: usize) -> [IpAddr; 2] {
    [UNDERLAY[node].into(), underlay_v6(node)]
}

/// The address of a node that replaces a client's address of this family.
pub fn ported_address(node: usize, family: IpAddr) -> IpAddr {
    ported_addresses(node)[usize::from(family.is_ipv6())]
}

/// Whether a packet that opens a connection leaves for the world with the node's address, if it
/// leaves at all. This depends on its source's pool. `is_pod` and `is_world` say where its ends
/// are.
pub fn leaves(way_out: Option<&WayOut>, tuple: &FlowTuple, is_pod: bool, is_world: bool) -> bool {
    is_pod && is_world && way_out.is_some_and(|it| it.masquerades(tuple.source, tuple.destination))
}
