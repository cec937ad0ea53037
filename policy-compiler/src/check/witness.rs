//! Witnesses: example packets and addresses, one from each group that is treated in the same way.
//!
//! Policy does not distinguish two addresses that belong to the same members and the same nets, nor two ports between
//! the same boundaries. So the header space consists of finitely many atoms. There is a witness on both sides of every
//! boundary of the *judge* and of every boundary of the *image*, so that neither can hide a boundary from the other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ahash::AHashSet;
use ipnet::IpNet;

use crate::common::ChainId;
use crate::image::{Image, KEYED, OTHERS};
use crate::model::{Family, ICMP, ICMPV6, L4Header, Protocol, Transport};

/// The source port of a client whose port matters to no rule.
const EPHEMERAL: u16 = 49_152;

/// Example addresses: one for each group of addresses that the atoms and the image do not distinguish.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Witnesses(Vec<IpAddr>);

impl Witnesses {
    /// Chooses one address from each group of addresses that neither `atoms` nor the image distinguishes.
    ///
    /// Candidates are both ends of every prefix, and the addresses next to these. They suffice. If a prefix contains
    /// smaller prefixes, the addresses outside these smaller prefixes include an end of the prefix, or an address next
    /// to an end of a smaller one. If several candidates have the same members, the same innermost net and the same
    /// class in the image, the first one is taken.
    pub fn new(atoms: &Atoms, image: &Image) -> Self {
        let mut witnesses = vec![
            IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V4(Ipv4Addr::BROADCAST),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)),
        ];
        let of_model = atoms.0.keys().map(|net| (net.network(), net.broadcast()));
        let of_image = image.runs().map(|(first, last, _)| (first, last));
        for (first, last) in of_model.chain(of_image) {
            for end in [first, last] {
                witnesses
                    .extend([Some(end), neighbour(end, -1), neighbour(end, 1)].iter().flatten());
            }
        }
        witnesses.sort_unstable();
        witnesses.dedup();
        let mut seen = AHashSet::new();
        let mut around: Vec<(IpNet, Vec<u32>, Option<IpNet>)> = Vec::new();
        let mut nets = atoms.0.iter().peekable();
        let mut peers = Vec::new();
        for address in witnesses {
            while let Some((net, entry)) = nets.next_if(|(net, _)| net.network() <= address) {
                around.retain(|(outer, _, _)| outer.contains(net));
                let (mut members, mut atom) =
                    around.last().map_or_else(|| (Vec::new(), None), |(_, m, a)| (m.clone(), *a));
                members.extend(&entry.members);
                members.sort_unstable();
                members.dedup();
                if entry.bound {
                    atom = Some(*net);
                }
                around.push((*net, members, atom));
            }
            while around.last().is_some_and(|(net, _, _)| !net.contains(&address)) {
                around.pop();
            }
            let (members, atom) = around
                .last()
                .map_or_else(|| (Vec::new(), None), |(_, members, atom)| (members.clone(), *atom));
            let class = image.class(image.identity(address));
            if seen.insert((Family::from_address(address), members, atom, class)) {
                peers.push(address);
            }
        }
        Self(peers)
    }

    /// The addresses in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.0.iter().copied()
    }
}

/// The prefixes at which the judge's treatment of peers changes.
#[derive(Debug, Clone, Default)]
pub struct Atoms(BTreeMap<IpNet, PrefixEntry>);

/// The members at a prefix, and whether (`bound`) a rule names the prefix.
#[derive(Debug, Clone, Default)]
struct PrefixEntry {
    /// One number for each member. The judge does not distinguish members with equal numbers.
    members: Vec<u32>,
    bound: bool,
}

impl Atoms {
    /// Adds a member with the addresses in `net`. The judge must not distinguish members with equal numbers.
    pub fn member(&mut self, net: IpNet, number: u32) {
        self.0.entry(net.trunc()).or_default().members.push(number);
    }

    /// Adds a net that a rule names.
    pub fn bound(&mut self, net: IpNet) {
        self.0.entry(net.trunc()).or_default().bound = true;
    }
}

fn neighbour(address: IpAddr, by: i8) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => {
            address.to_bits().checked_add_signed(by.into()).map(|a| Ipv4Addr::from_bits(a).into())
        }
        IpAddr::V6(address) => {
            address.to_bits().checked_add_signed(by.into()).map(|a| Ipv6Addr::from_bits(a).into())
        }
    }
}

/// The keys at which the treatment of packets changes, in the rules of one endpoint's policies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bounds {
    destinations: BTreeSet<u16>,
    sources: BTreeSet<u16>,
    icmp: BTreeSet<u16>,
    protocols: BTreeSet<u16>,
}

impl Bounds {
    /// Adds a protocol number at which the treatment changes.
    pub fn protocol(&mut self, number: u8) {
        self.protocols.insert(number.into());
    }

    /// Adds an ICMP type and code at which the treatment changes. If `code` is `None`, these are all codes of the type.
    pub fn icmp(&mut self, kind: u8, code: Option<u8>) {
        let first = u16::from(kind) << 8;
        self.icmp.extend(match code {
            Some(code) => [first | u16::from(code); 2],
            None => [first, first | 0xff],
        });
    }

    /// Adds a range of destination ports.
    pub fn destinations(&mut self, first: u16, last: u16) {
        self.destinations.extend([first, last]);
    }

    /// Adds a range of source ports.
    pub fn sources(&mut self, first: u16, last: u16) {
        self.sources.extend([first, last]);
    }

    /// The transports on both sides of these bounds, and of the bounds of the row that `image` uses for the peer.
    pub fn transports(
        &self,
        image: &Image,
        chain: Option<ChainId>,
        peer: IpAddr,
    ) -> Vec<Transport> {
        let mut all = self.clone();
        all.add_row(image, chain, peer);
        let around = |bounds: &BTreeSet<u16>, also: &[u16]| -> BTreeSet<u16> {
            let bounds = bounds.iter().chain(also).copied();
            bounds.flat_map(|b| [b.saturating_sub(1), b, b.saturating_add(1)]).collect()
        };
        let destinations = around(&all.destinations, &[0, u16::MAX]);
        let sources = if all.sources.is_empty() {
            BTreeSet::from([EPHEMERAL])
        } else {
            around(&all.sources, &[0, EPHEMERAL, u16::MAX])
        };
        let mut transports = Vec::new();
        for protocol in Protocol::ALL {
            transports.push(Transport::bare(protocol.number()));
            for destination in &destinations {
                let packets = sources.iter();
                transports.extend(
                    packets.map(|source| Transport::ports(protocol, *source, *destination)),
                );
            }
        }
        for protocol in [ICMP, ICMPV6] {
            transports.push(Transport::bare(protocol));
            transports.extend(around(&all.icmp, &[0, 0x0800, u16::MAX]).into_iter().map(|key| {
                let [kind, code] = key.to_be_bytes();
                Transport::icmp(protocol, kind, code)
            }));
        }
        let others = around(&all.protocols, &[0, 4, 50, 255]);
        for number in others.into_iter().filter_map(|number| u8::try_from(number).ok()) {
            if !KEYED.contains(&number) {
                transports.push(Transport::bare(number));
                // The port has no meaning here, and must not change anything.
                let l4 = L4Header::Ports { source: EPHEMERAL, destination: 80 };
                transports.push(Transport { protocol: number, l4 });
            }
        }
        transports
    }

    fn add_row(&mut self, image: &Image, chain: Option<ChainId>, peer: IpAddr) {
        let Some(chain) = chain else { return };
        let row = image.row_of(chain, image.class_number(image.identity(peer)));
        for table in 0..=OTHERS {
            let into = match table {
                0..3 => &mut self.destinations,
                OTHERS => &mut self.protocols,
                _ => &mut self.icmp,
            };
            let mut bounds = [Vec::new(), Vec::new()];
            image.lines.bounds(row, table, &mut bounds);
            let [keys, sources] = bounds;
            into.extend(keys.into_iter().filter_map(|key| u16::try_from(key).ok()));
            let sources = sources.into_iter().filter(|source| *source > 0);
            self.sources.extend(sources.filter_map(|source| u16::try_from(source).ok()));
        }
    }
}
