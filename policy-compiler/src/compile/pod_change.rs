//! The change of a pod of another node, in the image in use: it comes, goes or changes.
//!
//! The identity of an address depends on the kinds of members that have it and on its atom. So the change of such a pod
//! changes a few cells of the address map and nothing else, if the image has a class for the predicate set of each of
//! its addresses. Workers see a store at their next lookup. Flows remember identities; a flow that finds another
//! identity is decided again. Every other change needs a new image.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use super::basis::Basis;
use crate::common::{Identity, Rebuild};
use crate::image::Image;
use crate::model::{Endpoint, Model, ObjectName};
use crate::peers::{IdentityInterner, KindId, Member};
use crate::resolve::Predicate;

/// A pod that comes, goes or changes.
#[derive(Debug, Clone, Copy)]
pub struct PodChange<'m> {
    /// Its name.
    pub name: &'m ObjectName,
    /// What it was before, if it existed.
    pub before: Option<&'m Endpoint>,
    /// What it is now, if it exists.
    pub after: Option<&'m Endpoint>,
}

fn has_address(pod: Option<&Endpoint>, address: IpAddr) -> bool {
    pod.is_some_and(|pod| pod.addresses.contains(&address))
}

/// A store into a cell of the address map.
struct CellStore {
    address: Ipv4Addr,
    identity: Identity,
    class: u32,
}

impl Basis {
    /// Stores a pod's change in the image in use. `Err`: the change needs a new image.
    pub(crate) fn update(
        &mut self,
        interner: &mut IdentityInterner,
        image: &Image,
        model: &Model,
        change: PodChange<'_>,
    ) -> Result<(), Rebuild> {
        let PodChange { name, after, .. } = change;
        if self.serial != image.serial || self.local.contains(name) {
            return Err(Rebuild);
        }
        let kinds = self.change_kind(model, change)?;
        let stores = self.plan_stores(interner, change, kinds)?;
        for CellStore { address, identity, class } in stores {
            let stored = identity != Identity::UNKNOWN
                && image.store_class(identity, class)
                && image.set_v4(address, identity);
            if !stored {
                return Err(Rebuild);
            }
        }
        // Only the endpoints are known to be as in this model, so the other marks stay.
        self.marks[Model::ENDPOINTS] = model.endpoints.mark();
        if let Some(pod) = after {
            self.pods.record(model, name, pod);
        }
        Ok(())
    }

    /// The kinds of the pod before and after its change. Updates the counts of predicates.
    fn change_kind(
        &mut self,
        model: &Model,
        PodChange { name, before, after }: PodChange<'_>,
    ) -> Result<[Option<KindId>; 2], Rebuild> {
        let (mut was, mut is) = (None, None);
        if let Some(pod) = after {
            let set = self.peer_predicate_set(&Member::pod(model, name, pod))?;
            set.iter().for_each(|it| self.counts[*it as usize] += 1);
            is = self.kinds.intern(true, &set);
        }
        if let Some(pod) = before {
            let set = self.peer_predicate_set(&Member::pod(model, name, pod))?;
            for it in set.iter() {
                let count = self.counts[*it as usize].checked_sub(1).ok_or(Rebuild)?;
                // A new image would not have the port number that no member gives this name any more.
                let names_port =
                    matches!(self.peers.predicates.all[*it as usize], Predicate::NamesPort { .. });
                if names_port && count == 0 {
                    return Err(Rebuild);
                }
                self.counts[*it as usize] = count;
            }
            was = self.kinds.intern(true, &set);
        }
        Ok([was, is])
    }

    /// The stores that the pod's addresses before and after the change need.
    fn plan_stores(
        &mut self,
        interner: &mut IdentityInterner,
        PodChange { before, after, .. }: PodChange<'_>,
        [was, is]: [Option<KindId>; 2],
    ) -> Result<Vec<CellStore>, Rebuild> {
        let pods = [before, after].into_iter().flatten();
        let touched: BTreeSet<IpAddr> =
            pods.flat_map(|pod| pod.addresses.iter().copied()).collect();
        let mut stores = Vec::with_capacity(touched.len());
        for address in touched {
            let IpAddr::V4(v4) = address else { return Err(Rebuild) };
            if self.own_addresses.contains(&address) {
                return Err(Rebuild);
            }
            let was = was.filter(|_| has_address(before, address));
            let is = is.filter(|_| has_address(after, address));
            self.replace_kind(v4, was, is)?;
            let Some([set, around]) = self.predicate_sets_at(v4) else { continue };
            let class = *self.class_of.get(&set).ok_or(Rebuild)?;
            let identity = interner.identity([&set, &around], &self.predicate_keys);
            stores.push(CellStore { address: v4, identity, class });
        }
        Ok(stores)
    }
}
