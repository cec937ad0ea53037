//! Predicate sets: the predicates that are true of an address or of a member.

use std::sync::Arc;

use crate::model::{Family, Protocol};
use crate::resolve::{Facts, PortSetId, PossiblePorts, PredicateId};

/// A predicate set: the predicates that are true of an address or a member, in ascending order.
/// Equal sets may be shared.
pub(crate) type PredicateSet = Arc<[PredicateId]>;

/// The union of predicate sets.
pub(crate) fn union<'t>(sets: impl Iterator<Item = &'t PredicateId>) -> PredicateSet {
    let mut union: Vec<PredicateId> = sets.copied().collect();
    union.sort_unstable();
    union.dedup();
    union.into()
}

/// The facts about an address: its predicate set, its family, and its ports in each port set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AddressFacts<'a> {
    /// Its predicate set. The predicate of the family may be missing in it.
    pub(crate) predicates: &'a [PredicateId],
    /// The family.
    pub(crate) family: Family,
    /// The possible ports of each port set.
    pub(crate) possible_ports: &'a [PossiblePorts],
}

impl Facts for AddressFacts<'_> {
    fn family(&self) -> Family {
        self.family
    }

    fn holds(&self, predicate: PredicateId) -> bool {
        predicate == self.family as PredicateId || self.predicates.binary_search(&predicate).is_ok()
    }

    fn holds_any(&self, predicates: &[PredicateId]) -> bool {
        let (few, many) = match (self.predicates, predicates) {
            (own, others) if own.len() < others.len() => (own, others),
            (own, others) => (others, own),
        };
        few.iter().any(|predicate| many.binary_search(predicate).is_ok())
    }

    fn ports(&self, port_set: PortSetId) -> impl Iterator<Item = (Protocol, u16)> {
        // Both lists are in ascending order of predicate. A port set may have many more ports than an address, so the
        // address's predicates are searched in the port set.
        let possible = self.possible_ports.get(port_set as usize).map_or(&[][..], |ports| ports);
        let own =
            self.predicates.partition_point(|own| Some(own) < possible.first().map(|it| &it.2));
        let behind = possible
            .last()
            .map_or(own, |last| self.predicates.partition_point(|own| *own <= last.2));
        let own = self.predicates.get(own..behind).unwrap_or_default();
        own.iter().filter_map(|own| {
            let at = possible.binary_search_by_key(own, |port| port.2).ok()?;
            possible.get(at).map(|(protocol, port, _)| (*protocol, *port))
        })
    }
}

/// The family of a predicate set.
pub(crate) fn family(set: &[PredicateId]) -> Option<Family> {
    Family::ALL.into_iter().find(|family| set.binary_search(&(*family as u32)).is_ok())
}
