//! Which speakers and peers have sessions, which prefixes each peer announces, and which prefixes it should receive.
//! The functions have no I/O.

use std::net::Ipv4Addr;
use std::str::FromStr;

use ipnet::Ipv4Net;

/// The autonomous system number of speakers and internal peers.
pub(super) const SYSTEM: u32 = 64512;
/// The net of all speakers and peers, on the loopback device of the namespace.
pub(super) const NET: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 200, 0, 0), 16);
/// The address of the first speaker. The other speakers have the addresses after it.
const SPEAKER: u32 = Ipv4Addr::new(10, 200, 0, 1).to_bits();
/// The address of the first peer. The other peers have the addresses after it.
const PEER: u32 = Ipv4Addr::new(10, 200, 4, 1).to_bits();
/// The address from which no session is opened. Connecting from it shows whether a speaker listens.
pub(super) const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 200, 255, 1);
/// The autonomous system number of the first router. The other routers have the numbers after it.
const ROUTER: u32 = 65001;
/// In a large table, groups of this many prefixes have the same attributes.
const TOGETHER: usize = 8;

/// The kind of scenario that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// One speaker reflects the routes of many clients.
    Clients,
    /// Speakers in a full mesh, each with one client.
    Mesh,
    /// A router announces a large table to one speaker.
    Table,
    /// Like [`Shape::Table`], and an internal peer receives the whole table.
    Announced,
    /// Many routers announce the same prefixes to one speaker, and an internal peer receives the best paths.
    Overlap,
}

impl Shape {
    /// All shapes, each with its name on the command line.
    const ALL: [(Self, &'static str); 5] = [
        (Self::Clients, "clients"),
        (Self::Mesh, "mesh"),
        (Self::Table, "table"),
        (Self::Announced, "announced"),
        (Self::Overlap, "overlap"),
    ];

    pub(super) fn word(self) -> &'static str {
        Self::ALL.into_iter().find(|(it, _)| *it == self).map_or("", |(_, word)| word)
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|(_, word)| *word == text);
        found.map(|(it, _)| it).ok_or_else(|| format!("{text:?} is no scenario of BGP"))
    }
}

/// A shape with its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scenario {
    pub(super) shape: Shape,
    /// The number of clients, of speakers, or of routers.
    pub(super) peers: u32,
    /// The number of prefixes that each peer announces.
    pub(super) prefixes: usize,
}

/// A peer of the speakers under test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) address: Ipv4Addr,
    /// The speaker with which it has a session.
    pub(super) speaker: Ipv4Addr,
    pub(super) system: u32,
    /// The routes that it announces.
    pub(super) routes: Vec<Routes>,
    /// The number of prefixes that it receives.
    pub(super) announced: usize,
}

/// Prefixes that are announced with the same attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Routes {
    /// The numbers of the prefixes.
    pub(super) prefixes: Vec<u32>,
    /// The autonomous system numbers of the path.
    pub(super) path: Vec<u32>,
    pub(super) communities: Vec<u32>,
}

impl Scenario {
    /// Creates the scenario of a published table, with the number of its peers or prefixes divided by `part`.
    pub(super) const fn new(shape: Shape, part: u32) -> Self {
        let (peers, prefixes) = match shape {
            Shape::Clients => (1000, 1),
            Shape::Mesh => (100, 1),
            Shape::Table | Shape::Announced => (1, 1_000_000),
            Shape::Overlap => (100, 10_000),
        };
        match shape {
            Shape::Clients | Shape::Mesh => Self { shape, peers: peers / part, prefixes },
            Shape::Table | Shape::Announced | Shape::Overlap => {
                Self { shape, peers, prefixes: prefixes / part as usize }
            }
        }
    }

    /// The addresses of the speakers.
    pub(super) fn speakers(&self) -> Vec<Ipv4Addr> {
        let count = if self.shape == Shape::Mesh { self.peers } else { 1 };
        (0..count).map(|it| Ipv4Addr::from_bits(SPEAKER + it)).collect()
    }

    /// Whether internal peers are clients of their speaker, which is then a route reflector.
    pub(super) fn reflects(&self) -> bool {
        matches!(self.shape, Shape::Clients | Shape::Mesh)
    }

    /// Whether any peer receives routes of other peers.
    pub(super) fn is_announced(&self) -> bool {
        self.shape != Shape::Table
    }

    /// Whether changes can be measured: each prefix is announced by only one peer and received by others, so these
    /// notice a withdrawal.
    pub(super) const fn shows_changes(&self) -> bool {
        matches!(self.shape, Shape::Clients | Shape::Mesh | Shape::Announced)
    }

    /// How memory is reported, per session or per path: the name of the figure, its unit, and the number by which all
    /// bytes are divided.
    pub(super) fn memory(&self) -> (&'static str, &'static str, f64) {
        let peers = f64::from(self.peers);
        match self.shape {
            Shape::Clients => ("memory for each session", "KiB", 1024.0 * peers),
            Shape::Mesh => ("memory for each session", "KiB", 1024.0 * peers * peers),
            Shape::Table | Shape::Announced | Shape::Overlap => {
                ("memory for each path", "B", peers * self.prefixes as f64)
            }
        }
    }

    /// The peers that are not speakers.
    pub(super) fn peers(&self) -> Vec<Peer> {
        let tellers = (0..self.peers).map(|at| self.teller(at));
        let listener = (!self.reflects() && self.is_announced()).then(|| Peer {
            address: Ipv4Addr::from_bits(PEER + self.peers),
            speaker: Ipv4Addr::from_bits(SPEAKER),
            system: SYSTEM,
            routes: Vec::new(),
            announced: self.prefixes,
        });
        tellers.chain(listener).collect()
    }

    /// The peer with this number among those that announce prefixes.
    fn teller(&self, at: u32) -> Peer {
        let speakers = if self.shape == Shape::Mesh { at } else { 0 };
        let reflects = self.reflects();
        Peer {
            address: Ipv4Addr::from_bits(PEER + at),
            speaker: Ipv4Addr::from_bits(SPEAKER + speakers),
            system: if reflects { SYSTEM } else { ROUTER + at },
            routes: if reflects { vec![block(at)] } else { self.table(at) },
            announced: if reflects { self.peers as usize - 1 } else { 0 },
        }
    }

    /// The routes of the router with this number. Groups of [`TOGETHER`] prefixes have the same attributes.
    fn table(&self, router: u32) -> Vec<Routes> {
        let numbers: Vec<u32> = (0..self.prefixes as u32).map(scatter).collect();
        let groups = numbers.chunks(TOGETHER).zip(0u32..);
        let routes = groups.map(|(prefixes, at)| {
            // If there are several routers, each group has its shortest path through another router.
            let longer = u32::from(at % self.peers != router);
            let passed = (0..3 + longer).map(|step| 100_000 + mix(at * 8 + step) % 60_000);
            Routes {
                prefixes: prefixes.to_vec(),
                path: [ROUTER + router].into_iter().chain(passed).collect(),
                communities: (0..3).map(|it| (ROUTER << 16) | (mix(at + it) & 0xfff)).collect(),
            }
        });
        routes.collect()
    }
}

/// The route of a client: one block.
fn block(at: u32) -> Routes {
    Routes { prefixes: vec![at], path: Vec::new(), communities: Vec::new() }
}

/// The number of bits of a prefix's number, which determines the number of prefixes.
const BITS: u8 = 20;
/// The address of the first prefix. All prefixes have the length `LENGTH`.
const FIRST: u32 = Ipv4Addr::new(16, 0, 0, 0).to_bits();
const LENGTH: u8 = 24;

/// The number of prefixes.
pub(super) const NUMBERS: usize = 1 << BITS;

/// The prefix with this number.
pub(super) const fn prefix(number: u32) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::from_bits(FIRST + (number << (32 - LENGTH))), LENGTH)
}

/// The number of a prefix. `None` if no peer announces it.
pub(super) fn number(length: u8, address: u32) -> Option<usize> {
    let number = address.checked_sub(FIRST)? >> (32 - LENGTH);
    (length == LENGTH && (number as usize) < NUMBERS).then_some(number as usize)
}

/// Permutes the numbers of prefixes, because routers do not announce prefixes in ascending order. Multiplication by an
/// odd factor is a permutation.
const fn scatter(at: u32) -> u32 {
    at.wrapping_mul(0x9e37_79b1) & ((1 << BITS) - 1)
}

/// A pseudo-random number that is determined by `at` (the finalizer of `MurmurHash3`).
const fn mix(at: u32) -> u32 {
    let it = (at ^ (at >> 16)).wrapping_mul(0x85eb_ca6b);
    let it = (it ^ (it >> 13)).wrapping_mul(0xc2b2_ae35);
    it ^ (it >> 16)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_peer_has_an_address_of_its_own_and_what_is_told_is_expected() {
        for (shape, word) in Shape::ALL {
            assert_eq!((word.parse(), shape.word()), (Ok(shape), word));
            let scenario = Scenario::new(shape, 10);
            let (speakers, peers) = (scenario.speakers(), scenario.peers());
            let addresses = speakers.iter().copied().chain(peers.iter().map(|it| it.address));
            let addresses: BTreeSet<Ipv4Addr> = addresses.collect();
            assert_eq!(addresses.len(), speakers.len() + peers.len(), "{word}");
            assert!(addresses.iter().all(|it| NET.contains(it)) && !addresses.contains(&STRANGER));
            for peer in &peers {
                assert!(speakers.contains(&peer.speaker), "{word}");
                let others = peers.iter().filter(|it| it.address != peer.address);
                let all: BTreeSet<u32> =
                    others.flat_map(|it| &it.routes).flat_map(|it| it.prefixes.clone()).collect();
                let expected = if peer.system == SYSTEM { all.len() } else { 0 };
                assert_eq!(peer.announced, expected, "{word}");
            }
        }
    }

    #[test]
    fn a_prefix_has_one_number() {
        let numbers: BTreeSet<u32> = (0..NUMBERS as u32).map(scatter).collect();
        assert_eq!(numbers.len(), NUMBERS);
        for it in [0, 1, 77_777, NUMBERS as u32 - 1] {
            let net = prefix(it);
            assert_eq!(number(net.prefix_len(), net.addr().to_bits()), Some(it as usize));
            assert_eq!(net, net.trunc());
        }
        assert_eq!(number(24, 0), None);
        assert_eq!(number(23, FIRST), None);
    }
}
