//! Whether a rule matches a packet, given the facts about both addresses.

use std::sync::Arc;

use super::predicate::{PortSetId, PredicateId};
use super::rule::{Ports, ResolvedEnd, ResolvedEntity, ResolvedRule};
use crate::model::{Direction, Family, IcmpMatch, L4Header, Protocol, Transport, icmp_of};

/// The facts about an address.
pub(crate) trait Facts {
    /// Its family.
    fn family(&self) -> Family;
    /// Whether a predicate is true of the address.
    fn holds(&self, predicate: PredicateId) -> bool;
    /// Whether any of these predicates is true of the address. They must be in ascending order.
    fn holds_any(&self, predicates: &[PredicateId]) -> bool;
    /// The protocols and ports that a port set has at the address.
    fn ports(&self, port_set: PortSetId) -> impl Iterator<Item = (Protocol, u16)>;
}

impl ResolvedEntity {
    pub(crate) fn holds(&self, facts: &impl Facts) -> bool {
        self.families[facts.family() as usize]
            && self.wanted.iter().all(|predicate| facts.holds(*predicate))
            && !facts.holds_any(&self.unwanted)
    }
}

impl ResolvedEnd {
    /// The ports that the end tests: those of its entities, and the excluded ones. Ports that adjacent entities share
    /// occur once.
    pub(crate) fn ports(&self) -> impl Iterator<Item = &Ports> {
        let mut before = None;
        let of_entities = self.entities.iter().filter_map(move |entity| {
            let ports = entity.ports.as_ref()?;
            let is_new = before.replace(ports).is_none_or(|before| !Arc::ptr_eq(before, ports));
            is_new.then_some(ports)
        });
        of_entities.flat_map(|ports| ports.iter()).chain(&*self.not_ports)
    }

    /// The number of its entities, plus the number of predicates in them.
    pub(crate) fn size(&self) -> usize {
        let each = self.entities.iter().map(|it| 1 + it.wanted.len() + it.unwanted.len());
        each.sum()
    }

    /// The number of its port ranges and port sets.
    pub(crate) fn port_ranges(&self) -> usize {
        self.ports().count()
    }

    /// The port sets of the end.
    pub(crate) fn port_sets(&self) -> impl Iterator<Item = PortSetId> + '_ {
        self.ports().filter_map(|ports| match ports {
            Ports::Set(port_set) => Some(*port_set),
            Ports::Range(..) => None,
        })
    }
}

/// Whether a rule matches a packet. The law: the result is true if and only if one of the rule's match sets contains
/// the packet. (Rows are built from match sets. This function does not use them.)
pub(crate) fn matches(
    rule: &ResolvedRule,
    direction: Direction,
    local: &impl Facts,
    peer: &impl Facts,
    transport: Transport,
) -> bool {
    let Transport { protocol, l4 } = transport;
    let icmp = |wanted: IcmpMatch| match l4 {
        L4Header::Icmp { kind, code } => wanted.covers(kind, code),
        _ => wanted.kind.is_none(),
    };
    let is_icmp = protocol == icmp_of(peer.family());
    if rule.protocol.is_some_and(|wanted| wanted != protocol)
        || rule.not_protocol.is_some_and(|unwanted| unwanted == protocol)
        || rule.icmp.is_some_and(|wanted| !is_icmp || !icmp(wanted))
        || rule.not_icmp.is_some_and(|unwanted| {
            is_icmp && (icmp(unwanted) || !matches!(l4, L4Header::Icmp { .. }))
        })
    {
        return false;
    }
    let of_ports = Protocol::from_number(protocol);
    let ports = match (of_ports, l4) {
        (Some(of), L4Header::Ports { source, destination }) => Some((of, source, destination)),
        _ => None,
    };
    let (local_port, peer_port) = match (direction, ports) {
        (_, None) => (None, None),
        (Direction::Ingress, Some((of, source, destination))) => {
            (Some((of, destination)), Some((of, source)))
        }
        (Direction::Egress, Some((of, source, destination))) => {
            (Some((of, source)), Some((of, destination)))
        }
    };
    let has_ports = of_ports.is_some();
    end_matches(&rule.local, local, local_port, has_ports)
        && end_matches(&rule.peer, peer, peer_port, has_ports)
}

/// `has_ports` says whether the packet's protocol has ports, even if the packet does not show them.
fn end_matches(
    end: &ResolvedEnd,
    facts: &impl Facts,
    port: Option<(Protocol, u16)>,
    has_ports: bool,
) -> bool {
    let listed = |ports: &[Ports]| {
        port.is_some_and(|(protocol, number)| {
            ports.iter().any(|ports| match ports {
                Ports::Range(first, last) => (*first..=*last).contains(&number),
                Ports::Set(port_set) => {
                    facts.ports(*port_set).any(|answer| answer == (protocol, number))
                }
            })
        })
    };
    (end.not_ports.is_empty() || !has_ports || (port.is_some() && !listed(&end.not_ports)))
        && end
            .entities
            .iter()
            .any(|entity| entity.holds(facts) && entity.ports.as_deref().is_none_or(listed))
}
