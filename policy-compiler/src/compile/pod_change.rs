//! The change of a pod of another node in the image in use: the pod is added, removed or changed.
//!
//! The identity of an address depends on the kinds of members that have it and on its atom. So the change of such a pod
//! changes a few cells of the address map and nothing else, provided that the image has a class for the predicate set
//! of each of its addresses. Workers see a stored identity at their next lookup. Flows store identities; a flow that
//! finds another identity is decided again. Every other change needs a new image. Until then, the addresses that such a
//! change touches are recorded.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use super::state::CompileState;
use crate::common::{Identity, Rebuild};
use crate::image::Image;
use crate::model::{Endpoint, Model, ObjectName};
use crate::peers::{IdentityInterner, Member, MemberKindId};

/// A pod that is added, removed or changed.
#[derive(Debug, Clone, Copy)]
pub struct PodChange<'m> {
    /// Its name.
    pub name: &'m ObjectName,
    /// The pod before the change, if it existed.
    pub before: Option<&'m Endpoint>,
    /// The pod after the change, if it exists.
    pub after: Option<&'m Endpoint>,
}

fn has_address(pod: Option<&Endpoint>, address: IpAddr) -> bool {
    pod.is_some_and(|pod| pod.addresses.contains(&address))
}

/// A store to a cell of the address map.
struct CellStore {
    address: Ipv4Addr,
    identity: Identity,
    class: u32,
}

impl CompileState {
    /// Stores a pod's change in the image in use. Returns `false` if the change was recorded for the next image
    /// instead; further changes are then recorded too, until that image exists. Returns `Err` if the next image must be
    /// built from nothing.
    pub(crate) fn update(
        &mut self,
        interner: &mut IdentityInterner,
        image: &Image,
        model: &Model,
        change: PodChange<'_>,
    ) -> Result<bool, Rebuild> {
        if self.serial != image.serial {
            return Err(Rebuild);
        }
        let touched = self.change_kinds_of_pod(model, change)?;
        let stores =
            if self.deferred.is_empty() { self.plan_stores(interner, &touched) } else { None };
        let Some(stores) = stores else {
            self.deferred.extend(touched);
            return Ok(false);
        };
        for CellStore { address, identity, class } in stores {
            let stored = identity != Identity::UNKNOWN
                && image.store_class(identity, class)
                && image.set_v4(address, identity);
            if !stored {
                return Err(Rebuild);
            }
        }
        Ok(true)
    }

    /// Records a pod's change for the next image.
    pub(crate) fn defer(&mut self, model: &Model, change: PodChange<'_>) -> Result<(), Rebuild> {
        let touched = self.change_kinds_of_pod(model, change)?;
        self.deferred.extend(touched);
        Ok(())
    }

    /// Replaces the pod's old kind by its new kind at every address that the pod had before the change or has after it.
    /// Returns these addresses.
    fn change_kinds_of_pod(
        &mut self,
        model: &Model,
        change: PodChange<'_>,
    ) -> Result<BTreeSet<IpAddr>, Rebuild> {
        let PodChange { name, before, after } = change;
        if self.local.contains(name) {
            return Err(Rebuild);
        }
        let [was, is] = self.change_kind(model, change)?;
        let mut touched = BTreeSet::new();
        for address in [before, after].into_iter().flatten().flat_map(|pod| &pod.addresses) {
            if self.own_addresses.contains(address) {
                return Err(Rebuild);
            }
            if touched.insert(*address) {
                let was = was.filter(|_| has_address(before, *address));
                let is = is.filter(|_| has_address(after, *address));
                self.replace_kind(*address, was, is)?;
            }
        }
        // The state now matches this model's endpoints. The model may differ in other objects, so their marks stay.
        self.marks[Model::ENDPOINTS] = model.endpoints.mark();
        if let Some(pod) = after {
            self.pods.record(model, name, pod);
        }
        Ok(touched)
    }

    /// The kinds of the pod before and after its change. Updates the counts of predicates.
    fn change_kind(
        &mut self,
        model: &Model,
        PodChange { name, before, after }: PodChange<'_>,
    ) -> Result<[Option<MemberKindId>; 2], Rebuild> {
        let [before, after] = [before, after].map(|pod| {
            let set = pod.map(|pod| self.peer_predicate_set(&Member::pod(model, name, pod)));
            set.transpose()
        });
        let [before, after] = [before?, after?];
        self.count(after.as_deref().unwrap_or_default(), before.as_ref())?;
        let kinds = [before, after].map(|set| self.kinds.intern(true, &set?));
        self.check_truths(0)?;
        Ok(kinds)
    }

    /// The stores that give these addresses the identities that follow from their new kinds. `None` if the image has no
    /// class for one of them, or if one is IPv6: the IPv6 half of the map is not changed while others read it.
    fn plan_stores(
        &mut self,
        interner: &mut IdentityInterner,
        touched: &BTreeSet<IpAddr>,
    ) -> Option<Vec<CellStore>> {
        let mut stores = Vec::with_capacity(touched.len());
        for address in touched {
            let IpAddr::V4(v4) = *address else { return None };
            let Some([set, around]) = self.predicate_sets_at(*address) else { continue };
            let class = *self.class_of.get(&set)?;
            let identity = interner.identity([&set, &around], &self.predicate_keys);
            stores.push(CellStore { address: v4, identity, class });
        }
        Some(stores)
    }
}
