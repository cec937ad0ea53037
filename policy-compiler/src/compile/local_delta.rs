//! The delta of local endpoints: pods that are attached to this node or detached from it. Policies, predicates and
//! addresses stay the same, and so do the rows of all other pods.
//!
//! The gain: the time to attach a pod does not depend on the policies of other pods. With 30 policies of 83 kB, the
//! tables for one more pod take 5 ms, and a whole compilation takes 1.2 s or more (`docs/performance.md`).

use std::collections::BTreeSet;

use super::address_delta::AddressDelta;
use super::state::CompileState;
use crate::common::Rebuild;
use crate::model::Model;
use crate::peers::Member;
use crate::resolve::LocalName;

impl CompileState {
    /// Replaces the local endpoints. This may change the predicates of a pod's addresses, because terms that only the
    /// local ends of rules use are evaluated only for local pods. The touched addresses are added to `delta`. Returns
    /// `Err` if a host endpoint is added or removed.
    pub(crate) fn apply_local_delta(
        &mut self,
        model: &Model,
        local: &BTreeSet<LocalName>,
        delta: &mut AddressDelta,
    ) -> Result<(), Rebuild> {
        if self.local == *local {
            return Ok(());
        }
        let differing = self.local.symmetric_difference(local).cloned();
        for name in differing.collect::<Vec<_>>() {
            if name.namespace.is_empty() {
                return Err(Rebuild);
            }
            self.pod_predicate_sets.remove(&name);
            let Some(pod) = model.endpoints.get(&name) else { continue };
            let member = Member::pod(model, &name, pod);
            let sets = [self.peer_predicate_set(&member)?, self.near_predicate_set(&member)?];
            let [before, after] = if local.contains(&name) { [0, 1] } else { [1, 0] };
            if sets[0] == sets[1] {
                continue;
            }
            self.count(&sets[after], Some(&sets[before]))?;
            let [was, is] = [before, after].map(|at| self.kinds.intern(true, &sets[at]));
            for address in &pod.addresses {
                self.replace_kind(*address, was, is)?;
                delta.hosts.insert(*address);
            }
        }
        self.local.clone_from(local);
        let own_pods = local.iter().filter_map(|name| model.endpoints.get(name));
        self.own_addresses = own_pods.flat_map(|pod| pod.addresses.iter().copied()).collect();
        Ok(())
    }
}
