//! Sets of services in a normal form. A service is a protocol with a port, an ICMP type with a code, or a protocol
//! without ports. A set of services is a set of packets.

use std::fmt;

use manx_oracle::Packet;
use manx_policy_compiler::image::{Decisions, PathId, Run};
use manx_policy_compiler::model::{Family, ICMP, ICMPV6, Protocol};
use manx_policy_compiler::packets::Ranges;

/// The protocol numbers that have a kind of their own. The last of [`KINDS`], for other protocols, never contains them.
const OWN_KIND: [u8; 5] = [6, 17, 132, ICMP, ICMPV6];

/// The names of the kinds of service, in order: three kinds with ports, ICMP with types and codes, and the other
/// protocols by number.
pub const KINDS: [&str; 5] = ["TCP", "UDP", "SCTP", "ICMP", "other protocols"];

/// The index of ICMP in [`KINDS`].
pub const OF_ICMP: usize = 3;

/// The index of the other protocols in [`KINDS`].
pub const OF_OTHERS: usize = 4;

/// A set of packets. For each [kind](KINDS), it has ranges of keys: destination ports, ICMP types with codes, or
/// protocol numbers. Equal sets are equal values, and their texts are equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PacketSet(pub [Ranges; 5]);

impl PacketSet {
    /// Returns every packet.
    pub fn all() -> Self {
        Self(std::array::from_fn(|_| Ranges::all()))
    }

    /// Returns the packets whose path through a chain `wanted` accepts.
    pub(super) fn from_decisions(decisions: &Decisions, wanted: impl Fn(PathId) -> bool) -> Self {
        let [tcp, udp, sctp] = &decisions.ports;
        let kinds = [tcp, udp, sctp, &decisions.icmp, &decisions.others];
        let wanted = |runs: &[Run]| {
            let runs = runs.iter().filter(|run| wanted(run.path));
            Ranges::union(runs.map(|run| (run.first, run.last)))
        };
        Self(kinds.map(|runs| wanted(runs)))
    }

    /// Returns the packets that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|kind| self.0[kind].intersection(&other.0[kind])))
    }

    /// Returns whether the set is empty.
    pub fn is_none(&self) -> bool {
        self.0.iter().all(Ranges::is_empty)
    }

    /// Returns whether the set contains every packet.
    pub fn is_all(&self) -> bool {
        self.0.iter().all(Ranges::is_all)
    }

    /// Returns whether the set contains a packet of this kind and key.
    pub fn contains(&self, kind: usize, key: u16) -> bool {
        self.0.get(kind).is_some_and(|keys| keys.contains(key))
    }

    /// Returns the packets that are not in the set.
    #[must_use]
    pub fn complement(&self) -> Self {
        Self(std::array::from_fn(|kind| self.0[kind].complement()))
    }

    /// Returns a packet of the set, if the set is not empty. A packet to a well-known port is preferred.
    pub fn example(&self, family: Family) -> Option<Packet> {
        const KNOWN: [u16; 4] = [80, 443, 53, 8080];
        let (kind, keys) = self.0.iter().enumerate().find(|(_, keys)| !keys.is_empty())?;
        let known = KNOWN.into_iter().find(|port| kind < OF_ICMP && keys.contains(*port));
        let first = keys.iter().map(|(first, last)| first.max(1).min(last)).next();
        Some(packet(kind, known.or(first)?, family))
    }
}

/// Returns the packet of a [kind](KINDS) with this key. Its source port is that of the matrix.
pub fn packet(kind: usize, key: u16, family: Family) -> Packet {
    match (Protocol::ALL.get(kind), key.to_be_bytes()) {
        (Some(protocol), _) => Packet::to_port(protocol.number(), Some(key)),
        (None, [icmp_type, code]) if kind == OF_ICMP => {
            let number = if family == Family::V4 { ICMP } else { ICMPV6 };
            Packet::icmp(number, icmp_type, code)
        }
        (None, [_, number]) => Packet::bare(number),
    }
}

impl fmt::Display for PacketSet {
    /// Writes `all`, `none`, or the shorter of two texts: the content (`TCP 80, 443-445; UDP 53`) or the complement
    /// (`all but UDP 53`).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            return f.write_str("none");
        }
        if self.is_all() {
            return f.write_str("all");
        }
        let (inside, outside) = (listed(self), listed(&self.complement()));
        if inside.len() <= outside.len() + "all but ".len() {
            f.write_str(&inside)
        } else {
            write!(f, "all but {outside}")
        }
    }
}

fn listed(services: &PacketSet) -> String {
    let kinds = services.0.iter().enumerate().filter(|(_, keys)| !keys.is_empty());
    let texts = kinds.map(|(kind, keys)| {
        if keys.is_all() {
            return KINDS[kind].to_owned();
        }
        let ranges = keys.iter();
        match kind {
            OF_ICMP => {
                format!("ICMP {}", ranges.flat_map(icmp).collect::<Vec<_>>().join(", "))
            }
            OF_OTHERS => {
                format!("protocol {}", ranges.filter_map(numbers).collect::<Vec<_>>().join(", "))
            }
            _ => format!("{} {}", KINDS[kind], ranges.map(range).collect::<Vec<_>>().join(", ")),
        }
    });
    texts.collect::<Vec<_>>().join("; ")
}

fn range((first, last): (u16, u16)) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// Returns ICMP types and codes as text: `8` or `8-12` for types with all their codes, and `3/1` or `3/1-4` for some
/// codes of one type.
fn icmp((first, last): (u16, u16)) -> Vec<String> {
    let ([from, first_code], [to, last_code]) = (first.to_be_bytes(), last.to_be_bytes());
    let coded = |icmp_type: u8, first: u8, last: u8| {
        format!("{icmp_type}/{}", range((first.into(), last.into())))
    };
    let is_whole = |from: u8, to: u8| (from, to) == (0, u8::MAX);
    if from == to && !is_whole(first_code, last_code) {
        return vec![coded(from, first_code, last_code)];
    }
    let mut texts = Vec::new();
    let mut whole = (u16::from(from), u16::from(to));
    if first_code != 0 {
        texts.push(coded(from, first_code, u8::MAX));
        whole.0 += 1;
    }
    let tail = (last_code != u8::MAX).then(|| coded(to, 0, last_code));
    if tail.is_some() {
        whole.1 = whole.1.saturating_sub(1);
    }
    if whole.0 <= whole.1 {
        texts.push(range(whole));
    }
    texts.extend(tail);
    texts
}

/// Returns a range of protocol numbers as text. Numbers at either end of the range are left out if they have their own
/// kind.
fn numbers((first, last): (u16, u16)) -> Option<String> {
    let mut others = (first..=last.min(u8::MAX.into()))
        .filter(|number| !OWN_KIND.iter().any(|own| u16::from(*own) == *number));
    let first = others.next()?;
    Some(range((first, others.next_back().unwrap_or(first))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn services(kinds: [&[(u16, u16)]; 5]) -> PacketSet {
        PacketSet(kinds.map(|ranges| Ranges::union(ranges.iter().copied())))
    }

    const ALL: &[(u16, u16)] = &[(0, u16::MAX)];

    #[test]
    fn a_set_has_one_text_and_it_is_the_shorter_one() {
        let none: &[(u16, u16)] = &[];
        for (kinds, text) in [
            ([none; 5], "none"),
            ([ALL; 5], "all"),
            ([&[(80, 80), (443, 445)], &[(53, 53)], none, none, none], "TCP 80, 443-445; UDP 53"),
            ([ALL, none, none, none, none], "TCP"),
            ([&[(0, 79), (81, 65535)], ALL, ALL, ALL, ALL], "all but TCP 80"),
            ([none, none, none, &[(0x0800, 0x08ff)], none], "ICMP 8"),
            ([none, none, none, &[(0x0301, 0x0301), (0x0304, 0x0306)], none], "ICMP 3/1, 3/4-6"),
            ([none, none, none, &[(0x0304, 0x0602)], none], "ICMP 3/4-255, 4-5, 6/0-2"),
            ([none, none, none, none, &[(47, 47), (57, 58)]], "protocol 47, 57"),
            ([none, none, none, none, ALL], "other protocols"),
        ] {
            assert_eq!(services(kinds).to_string(), text);
        }
    }

    #[test]
    fn an_example_is_a_packet_of_the_set() {
        let web = services([&[(79, 81)], &[], &[], &[], &[]]);
        assert_eq!(web.example(Family::V4), Some(Packet::to_port(6, Some(80))));
        assert_eq!(PacketSet::default().example(Family::V4), None);
        let echo = services([&[], &[], &[], &[(0x0800, 0x0800)], &[]]);
        assert_eq!(echo.example(Family::V6), Some(Packet::icmp(58, 8, 0)));
        let other = web.complement().example(Family::V4);
        assert_eq!(other, Some(Packet::to_port(6, Some(443))));
    }
}
