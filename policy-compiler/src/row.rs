//! What happens to each protocol and port, given the rules whose peers match.

use std::collections::BTreeSet;

use crate::image::PathId;
use crate::model::Protocol;

/// The packets that a rule claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Reach {
    /// Every packet.
    Everything,
    /// Every packet of a protocol, also those that do not show their ports.
    Protocol(Protocol),
    /// The packets of a protocol whose destination port is shown and within both ends.
    Ports(Protocol, u16, u16),
}

/// A row: for every packet the path that decides it. Equal rows are equal values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RowContent {
    /// For each of [`Protocol::ALL`] the first port of each interval, ascending from 0, and its path; neighbours differ.
    pub(crate) ports: [Vec<(u16, PathId)>; 3],
    /// For each of them the path of packets that do not show their ports.
    pub(crate) portless: [PathId; 3],
    /// The path of every other protocol.
    pub(crate) other: PathId,
}

impl RowContent {
    /// The row in which the first claim that reaches a packet decides it, and `default` where none does.
    pub(crate) fn build(claims: &[(Reach, PathId)], default: PathId) -> Self {
        let first = |wanted: &[Reach]| {
            let claim = claims.iter().find(|(reach, _)| wanted.contains(reach));
            claim.map_or(default, |(_, path)| *path)
        };
        Self {
            ports: Protocol::ALL.map(|protocol| intervals(claims, protocol, default)),
            portless: Protocol::ALL
                .map(|protocol| first(&[Reach::Everything, Reach::Protocol(protocol)])),
            other: first(&[Reach::Everything]),
        }
    }
}

/// Sweeps over the ports with the claims that are in force at each kept in order: the earliest decides.
fn intervals(
    claims: &[(Reach, PathId)],
    protocol: Protocol,
    default: PathId,
) -> Vec<(u16, PathId)> {
    let mut edges: Vec<(u32, usize, bool)> = Vec::new();
    for (order, (reach, _)) in claims.iter().enumerate() {
        let (first, last) = match reach {
            Reach::Everything => (0, u16::MAX),
            Reach::Protocol(p) if *p == protocol => (0, u16::MAX),
            Reach::Ports(p, first, last) if *p == protocol && first <= last => (*first, *last),
            Reach::Protocol(_) | Reach::Ports(..) => continue,
        };
        edges.push((u32::from(first), order, true));
        edges.push((u32::from(last) + 1, order, false));
    }
    edges.sort_unstable();
    let mut in_force = BTreeSet::new();
    let mut intervals = vec![(0, default)];
    for at_one_port in edges.chunk_by(|a, b| a.0 == b.0) {
        for (_, order, opens) in at_one_port {
            if *opens {
                in_force.insert(*order);
            } else {
                in_force.remove(order);
            }
        }
        let Some(start) = at_one_port.first().and_then(|edge| u16::try_from(edge.0).ok()) else {
            break;
        };
        let path = in_force.first().and_then(|order| claims.get(*order)).map_or(default, |c| c.1);
        if start == 0 {
            intervals.clear();
        }
        if intervals.last().is_none_or(|(_, last)| *last != path) {
            intervals.push((start, path));
        }
    }
    intervals
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reach() -> impl Strategy<Value = Reach> {
        let protocol = prop::sample::select(Protocol::ALL.to_vec());
        let port = prop_oneof![0u16..20, 65_520u16..=65_535];
        prop_oneof![
            1 => Just(Reach::Everything),
            2 => protocol.clone().prop_map(Reach::Protocol),
            8 => (protocol, port.clone(), port)
                .prop_map(|(protocol, a, b)| Reach::Ports(protocol, a.min(b), a.max(b))),
        ]
    }

    proptest! {
        #[test]
        fn the_first_claim_that_reaches_a_port_decides_it(
            reaches in prop::collection::vec(reach(), 0..12),
        ) {
            let claims: Vec<(Reach, PathId)> =
                reaches.iter().enumerate().map(|(i, r)| (*r, PathId(i as u32 / 2))).collect();
            let default = PathId(99);
            let row = RowContent::build(&claims, default);
            for (index, protocol) in Protocol::ALL.into_iter().enumerate() {
                let intervals = &row.ports[index];
                prop_assert_eq!(intervals[0].0, 0);
                prop_assert!(intervals.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 != w[1].1));
                for port in (0..=21).chain(65_518..=65_535) {
                    let expected = claims.iter().find(|(reach, _)| match reach {
                        Reach::Everything => true,
                        Reach::Protocol(p) => *p == protocol,
                        Reach::Ports(p, first, last) => {
                            *p == protocol && (*first..=*last).contains(&port)
                        }
                    });
                    let found = intervals[intervals.partition_point(|i| i.0 <= port) - 1].1;
                    prop_assert_eq!(found, expected.map_or(default, |c| c.1));
                }
            }
        }
    }
}
