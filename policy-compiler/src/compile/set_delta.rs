//! The delta of network sets that are added, changed or removed. Addresses outside their networks keep their
//! identities.
//!
//! The gain: a new set takes 0.4 to 0.5 ms (goal 5), and a whole compilation takes 40 to 48 ms (`docs/performance.md`).

use std::collections::BTreeSet;
use std::sync::Arc;

use ipnet::IpNet;

use super::address_delta::AddressDelta;
use super::state::CompileState;
use crate::common::Rebuild;
use crate::model::{Mark, Model, NetworkSet, ObjectName};
use crate::peers::{Member, PredicateSet, PrefixEdit};

impl CompileState {
    /// Whether a model with these marks differs from the compile state only in network sets and policies.
    pub(crate) fn can_update_to(&self, marks: &[Mark; 8]) -> bool {
        let pairs = self.marks.iter().zip(marks).enumerate();
        pairs.into_iter().all(|(at, (own, other))| at == Model::NETWORK_SETS || own == other)
    }

    /// Applies the changes of network sets. The touched addresses are added to `delta`.
    pub(crate) fn apply_set_delta(
        &mut self,
        model: &Model,
        delta: &mut AddressDelta,
    ) -> Result<(), Rebuild> {
        let changed = model.network_sets.since(&self.marks[Model::NETWORK_SETS]).ok_or(Rebuild)?;
        let mut edits = Vec::new();
        for (name, before) in changed {
            let after = model.network_sets.get(name);
            if before == after {
                continue;
            }
            let was = self.set_predicate_set(model, name, before)?;
            let is = self.set_predicate_set(model, name, after)?;
            let [was, is] = [was, is].map(|predicate_set| self.kinds.intern(false, &predicate_set));
            // A set without a kind (no selector in use matches it) has no entry at any prefix.
            let gone = nets(before.filter(|_| was.is_some()));
            let come = nets(after.filter(|_| is.is_some()));
            let stay = |net: &&IpNet| was == is && gone.contains(*net) && come.contains(*net);
            for net in gone.union(&come).filter(|net| !stay(net)) {
                let was = was.filter(|_| gone.contains(net));
                let is = is.filter(|_| come.contains(net));
                self.edit_prefix(PrefixEdit { net: *net, was, is }, &mut edits, delta)?;
            }
        }
        self.marks[Model::NETWORK_SETS] = model.network_sets.mark();
        self.addresses.apply(&edits)
    }

    /// The predicate set of a network set, or an empty one if there is no such set.
    fn set_predicate_set(
        &mut self,
        model: &Model,
        name: &ObjectName,
        set: Option<&Arc<NetworkSet>>,
    ) -> Result<PredicateSet, Rebuild> {
        let predicate_set = set.map(|set| self.near_predicate_set(&Member::set(model, name, set)));
        predicate_set.unwrap_or_else(|| Ok(PredicateSet::default()))
    }
}

/// The networks of a set, without host bits.
fn nets(set: Option<&Arc<NetworkSet>>) -> BTreeSet<IpNet> {
    set.into_iter().flat_map(|set| &set.nets).map(IpNet::trunc).collect()
}
