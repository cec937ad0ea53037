//! Atoms: the parts into which the prefixes in use divide the address space.
//!
//! The prefixes in use are the nets of all compiled policies, and two prefixes that each contain a whole family.

use ahash::AHashMap;
use ipnet::IpNet;

use super::predicate_set::PredicateSet;
use crate::resolve::{Predicate, PredicateId};

/// The predicates of families and nets, by prefix. Each predicate is true of all addresses of an atom, or of none of
/// them (see `addresses`).
#[derive(Debug)]
pub(crate) struct AtomPredicates {
    by_net: AHashMap<IpNet, Vec<PredicateId>>,
}

impl AtomPredicates {
    pub(crate) fn new(predicates: &[Predicate]) -> Self {
        let mut by_net: AHashMap<IpNet, Vec<PredicateId>> = AHashMap::new();
        for (id, predicate) in (0..).zip(predicates) {
            match predicate {
                Predicate::Family(family) => {
                    by_net.entry(family.everything()).or_default().push(id);
                }
                Predicate::Net(net) => by_net.entry(*net).or_default().push(id),
                _ => {}
            }
        }
        Self { by_net }
    }

    /// Adds a predicate that is true of the addresses in a net. Returns whether the net is new.
    pub(crate) fn add(&mut self, net: IpNet, predicate: PredicateId) -> bool {
        let here = self.by_net.entry(net).or_default();
        here.push(predicate);
        here.len() == 1
    }

    /// Every prefix in use.
    pub(crate) fn prefixes(&self) -> impl Iterator<Item = IpNet> + '_ {
        self.by_net.keys().copied()
    }

    /// The predicates that are true of the addresses in exactly this prefix in use, not those of larger prefixes.
    pub(super) fn made_true_by(&self, net: IpNet) -> &[PredicateId] {
        self.by_net.get(&net).map_or(&[], Vec::as_slice)
    }

    /// The predicate set of an atom: the predicates of all prefixes in use that contain the atom.
    pub(crate) fn predicate_set(&self, atom: IpNet) -> PredicateSet {
        let mut set = Vec::new();
        let mut net = Some(atom);
        while let Some(here) = net {
            set.extend(self.by_net.get(&here).into_iter().flatten());
            net = here.supernet();
        }
        set.sort_unstable();
        set.dedup();
        set.into()
    }
}
