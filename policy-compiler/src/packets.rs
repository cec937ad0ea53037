//! Sets of packets between two given ends: the packets that a rule matches, and the packets that are left after earlier
//! rules have taken theirs.
//!
//! They are built from the same match sets as rows, so they agree with the tables.

pub use crate::common::Ranges;
use crate::image::{KEYED, OTHERS};
use crate::model::{Family, NamedPort, PortMatch, Protocol, Rule, RuleEnd, Transport};
use crate::rows::{EndPorts, PacketTerms, TableMatch, match_set};

/// A set of packets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Packets([TablePackets; OTHERS + 1]);

/// The packets of one table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct TablePackets {
    /// Pairs of a set of keys and a set of source ports. A packet is in the set if one pair holds both its key and its
    /// source port.
    pairs: Vec<(Ranges, Ranges)>,
    /// Whether packets that show no key are in the set.
    bare: bool,
}

impl Packets {
    /// The packets of a family that a rule matches, provided that the rule's entities match both ends. `source` and
    /// `destination` are the named ports of the two ends.
    pub fn matching(
        rule: &Rule,
        family: Family,
        source: &[&NamedPort],
        destination: &[&NamedPort],
    ) -> Self {
        if !rule.families().any(|of| of == family) {
            return Self::default();
        }
        let terms = PacketTerms {
            protocol: rule.protocol,
            not_protocol: rule.not_protocol,
            icmp: rule.icmp,
            not_icmp: rule.not_icmp,
        };
        let [source, destination] = [(&rule.source, source), (&rule.destination, destination)]
            .map(|(end, named)| end_ports(end, named));
        let mut tables = match_set(terms, family, &source, &destination).0.map(TablePackets::new);
        // The table of other protocols must not hold the protocols that have their own tables, nor numbers above 255.
        let keyed = KEYED.map(|number| (u16::from(number), u16::from(number)));
        let possible = Ranges::union(keyed.into_iter().chain([(256, u16::MAX)])).complement();
        tables[OTHERS].bare = false;
        tables[OTHERS].keep(&possible);
        Self(tables)
    }

    /// Whether the set has no packet.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|table| table.pairs.is_empty() && !table.bare)
    }

    /// Adds the packets of another set.
    pub fn add(&mut self, other: Self) {
        for (table, other) in self.0.iter_mut().zip(other.0) {
            table.pairs.extend(other.pairs);
            table.bare |= other.bare;
        }
    }

    /// Removes the packets of another set.
    pub fn subtract(&mut self, other: &Self) {
        for (table, other) in self.0.iter_mut().zip(&other.0) {
            table.bare &= !other.bare;
            for (keys, sources) in &other.pairs {
                table.subtract(keys, sources);
            }
        }
    }

    /// The packets that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let both = |table: usize| {
            let (one, other) = (&self.0[table], &other.0[table]);
            let pairs = one.pairs.iter().flat_map(|(keys, sources)| {
                other.pairs.iter().filter_map(move |(other_keys, other_sources)| {
                    pair(keys.intersection(other_keys), sources.intersection(other_sources))
                })
            });
            TablePackets { pairs: pairs.collect(), bare: one.bare && other.bare }
        };
        Self(std::array::from_fn(both))
    }

    /// The number of pieces that represent the set. The cost of an operation grows with it.
    pub fn pieces(&self) -> usize {
        self.0.iter().map(|table| 1 + table.pairs.len()).sum()
    }

    /// Whether it holds more than half of the destination ports of one of [`Protocol::ALL`], each with every source
    /// port.
    pub fn has_most_ports(&self) -> bool {
        self.0[..Protocol::ALL.len()].iter().any(|table| {
            let whole = table.pairs.iter().filter(|(_, sources)| sources.is_all());
            let keys = Ranges::union(whole.flat_map(|(keys, _)| keys.iter()));
            let count: u32 = keys.iter().map(|(first, last)| u32::from(last - first) + 1).sum();
            count > u32::from(u16::MAX / 2) + 1
        })
    }

    /// One of the packets, if there is any.
    pub fn first(&self) -> Option<Transport> {
        (0..).zip(&self.0).find_map(|(number, table)| {
            let bare = || table.bare.then(|| KEYED.get(number).copied().map(Transport::bare));
            let Some((keys, sources)) = table.pairs.first() else { return bare().flatten() };
            let (key, source) = (keys.iter().next()?.0, sources.iter().next_back()?.1);
            let [kind, code] = key.to_be_bytes();
            Some(match (Protocol::ALL.get(number), KEYED.get(number)) {
                (Some(protocol), _) => Transport::ports(*protocol, source, key),
                (None, Some(icmp)) => Transport::icmp(*icmp, kind, code),
                (None, None) => Transport::bare(code),
            })
        })
    }
}

impl TablePackets {
    fn new(matched: Option<TableMatch>) -> Self {
        let Some(TableMatch { keys, sources, bare }) = matched else { return Self::default() };
        Self { pairs: pair(keys, sources).into_iter().collect(), bare }
    }

    /// Keeps only these keys.
    fn keep(&mut self, kept: &Ranges) {
        let pairs = std::mem::take(&mut self.pairs).into_iter();
        self.pairs = pairs.filter_map(|(keys, of)| pair(keys.intersection(kept), of)).collect();
    }

    fn subtract(&mut self, keys: &Ranges, sources: &Ranges) {
        let (other_keys, other_sources) = (keys.complement(), sources.complement());
        let pairs = std::mem::take(&mut self.pairs).into_iter();
        let left = pairs.flat_map(|(own, of)| {
            let beside = pair(own.intersection(&other_keys), of.clone());
            let within = pair(own.intersection(keys), of.intersection(&other_sources));
            [beside, within].into_iter().flatten()
        });
        self.pairs = left.collect();
    }
}

/// A pair of these two sets, or `None` if one of them is empty.
fn pair(keys: Ranges, sources: Ranges) -> Option<(Ranges, Ranges)> {
    (!keys.is_empty() && !sources.is_empty()).then_some((keys, sources))
}

fn end_ports(end: &RuleEnd, named: &[&NamedPort]) -> EndPorts {
    let needs = !end.ports.is_empty();
    if !needs && end.not_ports.is_empty() {
        return EndPorts { ports: None, needs };
    }
    let ports = Protocol::ALL.map(|protocol| {
        let meant = if needs { ranges(&end.ports, protocol, named) } else { Ranges::all() };
        meant.intersection(&ranges(&end.not_ports, protocol, named).complement())
    });
    EndPorts { ports: Some(ports), needs }
}

fn ranges(ports: &[PortMatch], protocol: Protocol, named: &[&NamedPort]) -> Ranges {
    Ranges::union(ports.iter().flat_map(|port| -> Vec<(u16, u16)> {
        match port {
            PortMatch::Range { first, last } => vec![(*first, *last)],
            PortMatch::Named(name) => {
                let is_it = |it: &&&NamedPort| it.name == *name && it.protocol == protocol;
                named.iter().filter(is_it).map(|it| (it.port, it.port)).collect()
            }
        }
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::{Action, IcmpMatch};

    const TCP: Option<u8> = Some(6);

    fn ports(protocol: Option<u8>, source: Option<(u16, u16)>, destination: (u16, u16)) -> Packets {
        let range = |(first, last)| PortMatch::Range { first, last };
        let mut rule = Rule { protocol, ..Rule::every_packet(0, Action::Allow) };
        rule.destination.ports = vec![range(destination)];
        rule.source.ports = source.into_iter().map(range).collect();
        Packets::matching(&rule, Family::V4, &[], &[])
    }

    fn has(packets: &Packets, source: u16, key: u16) -> bool {
        packets.0[0].pairs.iter().any(|(keys, of)| keys.contains(key) && of.contains(source))
    }

    proptest! {
        #[test]
        fn a_packet_is_in_what_the_operations_say(
            all in prop::collection::vec(((0u16..6, 0u16..6), (0u16..6, 0u16..6)), 3),
        ) {
            let order = |(a, b): (u16, u16)| (a.min(b), a.max(b));
            let sets: Vec<Packets> =
                all.iter().map(|(of, to)| ports(TCP, Some(order(*of)), order(*to))).collect();
            let mut result = sets[0].clone();
            result.add(sets[1].clone());
            let both = result.intersection(&sets[2]);
            result.subtract(&sets[2]);
            for (source, key) in (0..7).flat_map(|source| (0..7).map(move |key| (source, key))) {
                let [one, two, three] = [0, 1, 2].map(|at: usize| has(&sets[at], source, key));
                prop_assert_eq!(has(&result, source, key), (one || two) && !three);
                prop_assert_eq!(has(&both, source, key), (one || two) && three);
            }
        }
    }

    #[test]
    fn ranges_of_ports_leave_the_packets_that_show_no_port() {
        let every = Rule::every_packet(0, Action::Allow);
        let tcp = Rule { protocol: TCP, ..every.clone() };
        let mut left = Packets::matching(&tcp, Family::V4, &[], &[]);
        assert!(left.has_most_ports());
        left.subtract(&ports(TCP, None, (0, u16::MAX)));
        assert_eq!(left.first(), Some(Transport::bare(6)));
        let mut left = Packets::matching(&every, Family::V6, &[], &[]);
        for number in 0..=u8::MAX {
            assert!(!left.is_empty());
            let rule = Rule { protocol: Some(number), ..every.clone() };
            left.subtract(&Packets::matching(&rule, Family::V6, &[], &[]));
        }
        // Rules for IPv6 cannot name ICMP of IPv4.
        assert_eq!(left.first(), Some(Transport::icmp(1, 0, 0)));
        let ping = Rule {
            protocol: Some(1),
            icmp: Some(IcmpMatch { kind: Some(8), code: None }),
            ..every.clone()
        };
        let ping = Packets::matching(&ping, Family::V4, &[], &[]);
        assert_eq!((ping.first(), ping.has_most_ports()), (Some(Transport::icmp(1, 8, 0)), false));
        let named = NamedPort { name: "web".to_owned(), protocol: Protocol::Tcp, port: 8080 };
        let mut rule = tcp;
        rule.destination.ports = vec![PortMatch::Named("web".to_owned())];
        assert!(Packets::matching(&rule, Family::V4, &[&named], &[]).is_empty());
        let web = Packets::matching(&rule, Family::V4, &[], &[&named]);
        assert_eq!(web.first(), Some(Transport::ports(Protocol::Tcp, u16::MAX, 8080)));
    }
}
