//! Witnesses: packets that stand for all packets.
//!
//! Policy cannot tell apart two addresses that the same members have and that the same nets contain, nor two ports
//! between the same boundaries. So the header space consists of finitely many atoms. There is a witness on both sides
//! of every boundary that the *judge* draws and of every boundary that the *image* draws, so that neither can hide a
//! boundary from the other.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ahash::{AHashMap, AHashSet};
use ipnet::IpNet;

use crate::common::ChainId;
use crate::image::{Image, KEYED, OTHERS};
use crate::model::{
    Endpoint, Family, ICMP, ICMPV6, Model, NamedPort, Policy, PortMatch, Protocol, Rule, Shown,
    Transport,
};
use crate::selector::Labels;

/// The source port of a client whose port matters to no rule.
const EPHEMERAL: u16 = 49_152;

/// Addresses that stand for all addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Witnesses(Vec<IpAddr>);

impl Witnesses {
    /// The peers that `atoms` or the image can tell apart.
    ///
    /// Candidates are both ends of every prefix, and the neighbours of these. They suffice: if parts of a prefix are
    /// prefixes of their own, the rest of it has an address at an end of the prefix or next to an end of such a part.
    /// The first candidate is taken of all that have the same members and the same innermost net, and the same class in
    /// the image.
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

    /// The addresses, ascending.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.0.iter().copied()
    }
}

/// The prefixes at which peers change, as the judge sees them.
#[derive(Debug, Clone, Default)]
pub struct Atoms(BTreeMap<IpNet, PrefixEntry>);

/// What a prefix adds.
#[derive(Debug, Clone, Default)]
struct PrefixEntry {
    /// Numbers of the contents of the members that have it. Members with equal contents have one number.
    members: Vec<u32>,
    bound: bool,
}

impl Atoms {
    /// Adds a member with these addresses. Members with equal numbers cannot be told apart.
    pub fn member(&mut self, net: IpNet, number: u32) {
        self.0.entry(net.trunc()).or_default().members.push(number);
    }

    /// Adds a net that a rule names.
    pub fn bound(&mut self, net: IpNet) {
        self.0.entry(net.trunc()).or_default().bound = true;
    }

    /// The atoms of a model, for endpoints of these policies.
    pub(crate) fn from_model(model: &Model, policies: &[&Policy]) -> Self {
        type Seen<'m> = (&'m str, Option<&'m str>, &'m Labels, Option<&'m BTreeSet<NamedPort>>);
        let mut atoms = Self::default();
        let mut contents: AHashMap<(u8, Seen<'_>), u32> = AHashMap::new();
        let mut next = 0;
        let mut number = |kind: u8, seen| number_of(&mut contents, (kind, seen), &mut next);
        for (name, pod) in &model.endpoints {
            let Endpoint { labels, service_account, addresses, named_ports } = pod.as_ref();
            let account = service_account.as_deref();
            let id = number(0, (name.namespace.as_str(), account, &**labels, Some(named_ports)));
            for address in addresses {
                atoms.member(IpNet::from(*address), id);
            }
        }
        for (name, set) in &model.network_sets {
            let id = number(1, (name.namespace.as_str(), None, &set.labels, None));
            set.nets.iter().for_each(|net| atoms.member(*net, id));
        }
        // Host endpoints inherit labels, and services have none: each has a number of its own.
        let mut alone = 1 << 30;
        for host in model.host_endpoints.values() {
            alone += 1;
            host.addresses.iter().for_each(|address| atoms.member(IpNet::from(*address), alone));
        }
        for some in model.services.values().flat_map(|service| service.iter()) {
            alone += 1;
            some.addresses.iter().for_each(|address| atoms.member(IpNet::from(*address), alone));
        }
        for address in &model.unknown {
            alone += 1;
            atoms.member(IpNet::from(*address), alone);
        }
        for rule in rules(model, policies) {
            let entities = [&rule.source, &rule.destination]
                .into_iter()
                .flat_map(|end| end.entities.iter().flatten());
            for net in entities.flat_map(|entity| entity.nets.iter().chain(&entity.not_nets)) {
                atoms.bound(*net);
            }
        }
        for net in model.failsafe.ports.iter().flatten().filter_map(|(_, _, net)| *net) {
            atoms.bound(net);
        }
        atoms
    }
}

fn number_of<K: Hash + Eq>(known: &mut AHashMap<K, u32>, key: K, next: &mut u32) -> u32 {
    *known.entry(key).or_insert_with(|| {
        *next += 1;
        *next
    })
}

fn rules<'a>(model: &'a Model, policies: &'a [&'a Policy]) -> impl Iterator<Item = &'a Rule> {
    let of_policies = policies
        .iter()
        .flat_map(|policy| [&policy.ingress, &policy.egress])
        .flat_map(|rules| rules.iter().flatten());
    let profiles = model.profiles.values();
    of_policies.chain(profiles.flat_map(|profile| profile.ingress.iter().chain(&profile.egress)))
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

/// The keys at which packets change, in the rules of one endpoint's policies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bounds {
    destinations: BTreeSet<u16>,
    sources: BTreeSet<u16>,
    icmp: BTreeSet<u16>,
    protocols: BTreeSet<u16>,
}

impl Bounds {
    /// Adds a protocol number at which something changes.
    pub fn protocol(&mut self, number: u8) {
        self.protocols.insert(number.into());
    }

    /// Adds an ICMP type and code at which something changes; without a code the type has all codes.
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

    fn ports(&mut self, destination: bool, first: u16, last: u16) {
        if destination { self.destinations(first, last) } else { self.sources(first, last) }
    }

    /// The bounds of a model's policies.
    pub(crate) fn from_model(model: &Model, policies: &[&Policy]) -> Self {
        let mut bounds = Self::default();
        let mut names = BTreeSet::new();
        for rule in rules(model, policies) {
            for number in [rule.protocol, rule.not_protocol].into_iter().flatten() {
                bounds.protocol(number);
            }
            for icmp in [rule.icmp, rule.not_icmp].into_iter().flatten() {
                if let Some(kind) = icmp.kind {
                    bounds.icmp(kind, icmp.code);
                }
            }
            for (end, destination) in [(&rule.source, false), (&rule.destination, true)] {
                for port in end.ports.iter().chain(&end.not_ports) {
                    match port {
                        PortMatch::Range { first, last } => {
                            bounds.ports(destination, *first, *last);
                        }
                        PortMatch::Named(name) => {
                            names.insert((name.as_str(), destination));
                        }
                    }
                }
                for entity in end.entities.iter().flatten() {
                    let service = entity.service.as_ref().and_then(|it| model.services.get(it));
                    let ports = service.into_iter().flat_map(|it| it.iter()).flat_map(|s| &s.ports);
                    for (_, port) in ports {
                        bounds.ports(destination, *port, *port);
                    }
                }
            }
        }
        if !names.is_empty() {
            let hosts = model.host_endpoints.values().flat_map(|host| &host.named_ports);
            let pods = model.endpoints.values().flat_map(|pod| &pod.named_ports);
            for named in pods.chain(hosts) {
                for destination in [false, true] {
                    if names.contains(&(named.name.as_str(), destination)) {
                        bounds.ports(destination, named.port, named.port);
                    }
                }
            }
        }
        for (_, port, _) in model.failsafe.ports.iter().flatten() {
            bounds.destinations(*port, *port);
        }
        bounds
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
                // The port has no meaning here and must change nothing.
                let shown = Shown::Ports { source: EPHEMERAL, destination: 80 };
                transports.push(Transport { protocol: number, shown });
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
