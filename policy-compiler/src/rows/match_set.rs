//! Match sets: the packets that a rule matches between two given addresses.

use std::sync::Arc;

use ahash::AHashMap;

use crate::common::Ranges;
use crate::image::{KEYED, OTHERS, icmp_key, table_of};
use crate::model::{Direction, Family, IcmpMatch, Protocol, icmp_of};
use crate::resolve::{
    Facts, PortSetId, Ports, PredicateId, ResolvedEnd, ResolvedEntity, ResolvedRule,
};

/// The packets of one table that a rule matches.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct TableMatch {
    /// The keys that match.
    pub(crate) keys: Ranges,
    /// The source ports that match.
    pub(crate) sources: Ranges,
    /// Whether packets without a key also match.
    pub(crate) bare: bool,
}

/// The packets that a rule matches between two addresses, by table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct MatchSet(pub(crate) [Option<TableMatch>; OTHERS + 1]);

impl MatchSet {
    /// Whether it contains every packet.
    pub(crate) fn is_everything(&self) -> bool {
        self.0.iter().all(|keys| {
            keys.as_ref()
                .is_some_and(|keys| keys.keys.is_all() && keys.sources.is_all() && keys.bare)
        })
    }
}

/// A match set in compact form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompactMatch {
    /// The packets of one protocol with destination ports from the first to the last. Most rules have such a match set.
    Ports {
        /// The protocol's table.
        table: u8,
        first: u16,
        last: u16,
    },
    /// The number of an interned match set.
    Interned(u32),
}

/// The interned match sets. There are few of them, so they stay in the cache.
#[derive(Debug, Default)]
pub(crate) struct MatchSets {
    all: Vec<MatchSet>,
    numbers: AHashMap<MatchSet, u32>,
    /// For each match set, the tables that it tests, as bits, and whether it contains every packet.
    about: Vec<(u8, bool)>,
}

impl MatchSets {
    /// Interns a match set. Returns `None` if it is empty.
    pub(crate) fn intern(&mut self, claim: MatchSet) -> Option<CompactMatch> {
        let Self { all, numbers, about } = self;
        let known = numbers.get(&claim).copied();
        let number = known.or_else(|| {
            let tables = (0..).zip(&claim.0).filter(|(_, keys)| keys.is_some());
            let tables = tables.fold(0, |all: u8, (table, _)| all | 1 << table);
            if tables == 0 {
                return None;
            }
            let number = all.len() as u32;
            about.push((tables, claim.is_everything()));
            all.push(claim.clone());
            numbers.insert(claim, number);
            Some(number)
        });
        number.map(CompactMatch::Interned)
    }

    /// The tables that a match set tests, as bits.
    pub(crate) fn tables(&self, claimed: CompactMatch) -> u8 {
        match claimed {
            CompactMatch::Ports { table, .. } => 1 << table,
            CompactMatch::Interned(number) => {
                self.about.get(number as usize).map_or(0, |about| about.0)
            }
        }
    }

    /// Whether a match set contains every packet.
    pub(crate) fn is_everything(&self, claimed: CompactMatch) -> bool {
        match claimed {
            CompactMatch::Ports { .. } => false,
            CompactMatch::Interned(number) => {
                self.about.get(number as usize).is_some_and(|about| about.1)
            }
        }
    }

    /// The packets of a table that an interned match set contains.
    pub(crate) fn table_match(&self, number: u32, table: usize) -> Option<&TableMatch> {
        self.all.get(number as usize)?.0.get(table)?.as_ref()
    }
}

/// One alternative of a rule for the peers of a family, given the local end: one entity for the local end and one for
/// the peer. A rule matches if one of its alternatives matches.
pub(crate) enum Alternative<'r> {
    /// One match set for every peer that has the predicate, or for every peer if there is no predicate.
    Fixed(Option<PredicateId>, CompactMatch),
    /// One match set for every peer that the entity matches.
    Where(&'r ResolvedEntity, CompactMatch),
    /// The match set depends on the peer.
    PerPeer(PeerAlternative<'r>),
}

/// An alternative that tests the peer's ports.
pub(crate) struct PeerAlternative<'r> {
    rule: &'r ResolvedRule,
    direction: Direction,
    pub(super) peer: &'r ResolvedEntity,
    /// The ports of the local end.
    local: Arc<EndPorts>,
}

/// Visits the alternatives of a rule whose entity for the local end matches the given local end.
pub(crate) fn alternatives<'r>(
    rule: &'r ResolvedRule,
    direction: Direction,
    local: &impl Facts,
    match_sets: &mut MatchSets,
    mut visit: impl FnMut(Alternative<'r>),
) {
    let family = local.family();
    let looks_at_peers_ports = rule.peer.port_sets().next().is_some();
    for one in rule.local.entities.iter().filter(|entity| entity.holds(local)) {
        let local = Arc::new(end_ports(one, &rule.local, local));
        // Adjacent entities with the same ports have the same match set.
        let mut known: Option<(SharedPorts<'_>, Option<CompactMatch>)> = None;
        for peer in rule.peer.entities.iter().filter(|peer| peer.families[family as usize]) {
            let way = PeerAlternative { rule, direction, peer, local: Arc::clone(&local) };
            if looks_at_peers_ports {
                visit(Alternative::PerPeer(way));
                continue;
            }
            let claimed = match known {
                Some((ports, claimed)) if is_shared(ports, peer.ports.as_ref()) => claimed,
                _ => port_range_match(rule, direction, one, peer)
                    .or_else(|| match_sets.intern(way.match_set(&NoFacts(family)))),
            };
            known = Some((peer.ports.as_ref(), claimed));
            let Some(claimed) = claimed else { continue };
            visit(match required_predicates(peer) {
                Some(wanted) => Alternative::Fixed(wanted.first().copied(), claimed),
                None => Alternative::Where(peer, claimed),
            });
        }
    }
}

/// The ports of an entity. `None` if it does not test ports.
type SharedPorts<'r> = Option<&'r Arc<[Ports]>>;

fn is_shared(one: SharedPorts<'_>, other: SharedPorts<'_>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (one, other) => one.is_none() && other.is_none(),
    }
}

/// The predicates that the entity requires, if these are at most one and the entity excludes none. Otherwise `None`.
fn required_predicates(peer: &ResolvedEntity) -> Option<&[PredicateId]> {
    (peer.wanted.len() <= 1 && peer.unwanted.is_empty()).then_some(&*peer.wanted)
}

/// The only [alternative](Alternative::Fixed) of a rule that matches one range of ports for every local end, with the
/// families that it matches. `None` for every other rule. Most rules are of this kind.
pub(crate) fn single_alternative(
    rule: &ResolvedRule,
    direction: Direction,
) -> Option<(Option<PredicateId>, CompactMatch, [bool; 2])> {
    let ([local], [peer]) = (&*rule.local.entities, &*rule.peer.entities) else { return None };
    if !(local.wanted.is_empty() && local.unwanted.is_empty())
        || rule.peer.port_sets().next().is_some()
    {
        return None;
    }
    Some((
        required_predicates(peer)?.first().copied(),
        port_range_match(rule, direction, local, peer)?,
        [0, 1]
            .map(|family| rule.families[family] && local.families[family] && peer.families[family]),
    ))
}

/// The match set of a rule that tests one range of a protocol's destination ports and nothing else of the packet.
/// `None` for every other rule.
fn port_range_match(
    rule: &ResolvedRule,
    direction: Direction,
    local: &ResolvedEntity,
    peer: &ResolvedEntity,
) -> Option<CompactMatch> {
    let (source, destination) = match direction {
        Direction::Ingress => (peer, local),
        Direction::Egress => (local, peer),
    };
    let protocol = Protocol::from_number(rule.protocol?)?;
    let excludes = rule.not_protocol.is_some()
        || rule.not_icmp.is_some()
        || !(rule.local.not_ports.is_empty() && rule.peer.not_ports.is_empty());
    match destination.ports.as_deref() {
        Some([Ports::Range(first, last)])
            if !excludes && rule.icmp.is_none() && source.ports.is_none() && first <= last =>
        {
            let table = table_of(protocol.number()) as u8;
            Some(CompactMatch::Ports { table, first: *first, last: *last })
        }
        _ => None,
    }
}

impl PeerAlternative<'_> {
    /// The number of port ranges and port sets from which a match set is computed for each peer.
    pub(super) fn ports(&self) -> usize {
        let peer = self.peer.ports.as_ref().map_or(0, |ports| ports.len());
        peer + self.rule.peer.not_ports.len() + self.rule.local.port_ranges()
    }

    /// The match set of this alternative between the local end and a peer. `None` if it does not match the peer.
    pub(crate) fn match_peer(
        &self,
        peer: &impl Facts,
        match_sets: &mut MatchSets,
    ) -> Option<CompactMatch> {
        if !self.peer.holds(peer) {
            return None;
        }
        match_sets.intern(self.match_set(peer))
    }

    fn match_set(&self, peer: &impl Facts) -> MatchSet {
        let family = peer.family();
        let peer = end_ports(self.peer, &self.rule.peer, peer);
        let ResolvedRule { protocol, not_protocol, icmp, not_icmp, .. } = *self.rule;
        let terms = PacketTerms { protocol, not_protocol, icmp, not_icmp };
        match self.direction {
            Direction::Ingress => match_set(terms, family, &peer, &self.local),
            Direction::Egress => match_set(terms, family, &self.local, &peer),
        }
    }
}

/// Facts that stand for any peer of a family, for rules that do not test the peer's ports. No predicate is true.
struct NoFacts(Family);

impl Facts for NoFacts {
    fn family(&self) -> Family {
        self.0
    }

    fn holds(&self, _: PredicateId) -> bool {
        false
    }

    fn holds_any(&self, _: &[PredicateId]) -> bool {
        false
    }

    fn ports(&self, _: PortSetId) -> impl Iterator<Item = (Protocol, u16)> {
        std::iter::empty()
    }
}

/// The conditions of a rule on the packet itself, without the conditions on its two ends.
#[derive(Clone, Copy)]
pub(crate) struct PacketTerms {
    pub(crate) protocol: Option<u8>,
    pub(crate) not_protocol: Option<u8>,
    pub(crate) icmp: Option<IcmpMatch>,
    pub(crate) not_icmp: Option<IcmpMatch>,
}

/// The ports that an end of a rule accepts.
pub(crate) struct EndPorts {
    /// The ports for each of [`Protocol::ALL`]. `None` if the end does not test ports.
    pub(crate) ports: Option<[Ranges; 3]>,
    /// Whether only packets with ports are accepted. An end that only excludes ports also accepts protocols without
    /// ports.
    pub(crate) needs: bool,
}

fn end_ports(entity: &ResolvedEntity, end: &ResolvedEnd, facts: &impl Facts) -> EndPorts {
    let needs = entity.ports.is_some();
    if !needs && end.not_ports.is_empty() {
        return EndPorts { ports: None, needs };
    }
    let ports = Protocol::ALL.map(|protocol| {
        let meant = entity.ports.as_deref();
        let meant = meant.map_or_else(Ranges::all, |ports| listed(ports, protocol, facts));
        if end.not_ports.is_empty() {
            meant
        } else {
            meant.intersection(&listed(&end.not_ports, protocol, facts).complement())
        }
    });
    EndPorts { ports: Some(ports), needs }
}

pub(crate) fn listed(ports: &[Ports], protocol: Protocol, facts: &impl Facts) -> Ranges {
    match ports {
        [Ports::Range(first, last)] => Ranges::union([(*first, *last)]),
        all => Ranges::union(all.iter().flat_map(|ports| port_ranges(*ports, protocol, facts))),
    }
}

fn port_ranges(ports: Ports, protocol: Protocol, facts: &impl Facts) -> Vec<(u16, u16)> {
    match ports {
        Ports::Range(first, last) => vec![(first, last)],
        Ports::Set(question) => facts
            .ports(question)
            .filter(|(of, _)| *of == protocol)
            .map(|(_, port)| (port, port))
            .collect(),
    }
}

pub(crate) fn match_set(
    rule: PacketTerms,
    family: Family,
    source: &EndPorts,
    destination: &EndPorts,
) -> MatchSet {
    let looks_at_ports = source.ports.is_some() || destination.ports.is_some();
    let needs_ports = source.needs || destination.needs;
    let of_protocol = |number: u8| {
        rule.protocol.is_none_or(|wanted| wanted == number)
            && rule.not_protocol.is_none_or(|unwanted| unwanted != number)
    };
    MatchSet(std::array::from_fn(|table| {
        let keys = if table == OTHERS {
            if needs_ports || rule.icmp.is_some() {
                return None;
            }
            let number = |number: u8| Ranges::union([(u16::from(number), u16::from(number))]);
            let wanted = rule.protocol.map_or_else(Ranges::all, number);
            let unwanted = rule.not_protocol.map(number).unwrap_or_default();
            let keys = wanted.intersection(&unwanted.complement());
            TableMatch { keys, sources: Ranges::all(), bare: true }
        } else if !of_protocol(KEYED[table]) {
            return None;
        } else if table < Protocol::ALL.len() {
            if rule.icmp.is_some() {
                return None;
            }
            let ports = |side: &EndPorts| {
                side.ports.as_ref().map_or_else(Ranges::all, |ports| ports[table].clone())
            };
            TableMatch { keys: ports(destination), sources: ports(source), bare: !looks_at_ports }
        } else {
            let is_icmp = KEYED[table] == icmp_of(family);
            if needs_ports || (rule.icmp.is_some() && !is_icmp) {
                return None;
            }
            let keys = |icmp: IcmpMatch| {
                Ranges::union([match (icmp.kind, icmp.code) {
                    (Some(kind), Some(code)) => (icmp_key(kind, code), icmp_key(kind, code)),
                    (Some(kind), None) => (icmp_key(kind, 0), icmp_key(kind, u8::MAX)),
                    (None, _) => (0, u16::MAX),
                }])
            };
            let wanted = rule.icmp.map_or_else(Ranges::all, keys);
            let unwanted = rule.not_icmp.filter(|_| is_icmp).map(keys).unwrap_or_default();
            // A later fragment has no type, so it matches only if every type matches.
            let keys = wanted.intersection(&unwanted.complement());
            let bare = keys.is_all();
            TableMatch { keys, sources: Ranges::all(), bare }
        };
        (!(keys.keys.is_empty() || keys.sources.is_empty()) || keys.bare).then_some(keys)
    }))
}
