//! One pod's coming, going or change, in the image that is in use.
//!
//! What the image says of an address depends on the kinds of members that have it and on its atom. So a pod of another node
//! that comes or goes changes a few cells of the address map and nothing else, as long as what is true of its addresses then
//! is true of a class that the image has. Workers see each store at their next lookup; flows remember identities, and are
//! judged again when they find another one. Everything else takes a new image.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use super::basis::Basis;
use super::term_index::{TermIndex, member_predicate_set};
use crate::common::Identity;
use crate::image::Image;
use crate::model::{Endpoint, Model, ObjectName};
use crate::peers::{IdentityInterner, KindId, Member, PredicateSet};
use crate::resolve::Predicate;

/// A pod that comes, goes or changes.
#[derive(Debug, Clone, Copy)]
pub struct PodChange<'m> {
    /// Its name.
    pub name: &'m ObjectName,
    /// What it was, if it was there.
    pub before: Option<&'m Endpoint>,
    /// What it is, if it is there.
    pub after: Option<&'m Endpoint>,
}

fn has_address(pod: Option<&Endpoint>, address: IpAddr) -> bool {
    pod.is_some_and(|pod| pod.addresses.contains(&address))
}

/// A cell of the address map to be.
struct CellStore {
    address: Ipv4Addr,
    identity: Identity,
    class: u32,
}

impl Basis {
    /// Makes the change; `None` where that takes another image, and then this one is not to be changed any more.
    pub(crate) fn update(
        &mut self,
        interner: &mut IdentityInterner,
        image: &Image,
        model: &Model,
        change: PodChange<'_>,
    ) -> Option<()> {
        let PodChange { name, before, after } = change;
        if self.serial != image.serial || self.local.contains(name) {
            return None;
        }
        let (mut was, mut is) = (None, None);
        if let Some(pod) = after {
            let truth = self.peer_predicate_set(&Member::pod(model, name, pod))?;
            truth.iter().for_each(|it| self.counts[*it as usize] += 1);
            is = self.kinds.intern(true, &truth);
        }
        if let Some(pod) = before {
            let truth = self.peer_predicate_set(&Member::pod(model, name, pod))?;
            for it in truth.iter() {
                let count = self.counts[*it as usize].checked_sub(1)?;
                // A number that nobody gives the name any more: nobody asks for it in an image made now.
                let names =
                    matches!(image.peers.predicates.all[*it as usize], Predicate::NamesPort { .. });
                if names && count == 0 {
                    return None;
                }
                self.counts[*it as usize] = count;
            }
            was = self.kinds.intern(true, &truth);
        }
        let addresses = |pod: Option<&'_ Endpoint>| -> Vec<IpAddr> {
            pod.into_iter().flat_map(|pod| pod.addresses.iter().copied()).collect()
        };
        let touched: BTreeSet<IpAddr> = [before, after].into_iter().flat_map(addresses).collect();
        let mut stores = Vec::with_capacity(touched.len());
        for address in touched {
            let IpAddr::V4(v4) = address else { return None };
            if self.own_addresses.contains(&address) {
                return None;
            }
            let was = was.filter(|_| has_address(before, address));
            let is = is.filter(|_| has_address(after, address));
            self.replace_kind(v4, was, is)?;
            let Some([truth, around]) = self.predicate_sets_at(v4) else { continue };
            let class = *self.class_of.get(&truth)?;
            let identity = interner.identity([&truth, &around], &self.predicate_keys);
            stores.push(CellStore { address: v4, identity, class });
        }
        for CellStore { address, identity, class } in stores {
            let stored = identity != Identity::UNKNOWN
                && image.store_class(identity, class)
                && image.set_v4(address, identity);
            if !stored {
                return None;
            }
        }
        // Of all else it does not know whether it has changed.
        self.marks[Model::ENDPOINTS] = model.endpoints.mark();
        if let Some(pod) = after {
            self.pods.record(model, name, pod);
        }
        Some(())
    }

    /// At an address a member's kind becomes another, comes or goes; `None` if what was is not there.
    pub(crate) fn replace_kind(
        &mut self,
        address: Ipv4Addr,
        was: Option<KindId>,
        is: Option<KindId>,
    ) -> Option<()> {
        let addresses = &self.addresses;
        let here = self.moved.entry(address).or_insert_with(|| addresses.kinds_at(address));
        if let Some(was) = was {
            here.swap_remove(here.iter().position(|kind| *kind == was)?);
        }
        here.extend(is);
        Some(())
    }

    /// What is true of an address, and around it; `None`: nobody knows.
    pub(crate) fn predicate_sets_at(&self, address: Ipv4Addr) -> Option<[PredicateSet; 2]> {
        let moved = self.moved.get(&address).map(Vec::as_slice);
        let holders = self.addresses.holders(address.into(), moved);
        if holders.unknown {
            return None;
        }
        let atom = holders.atom.map(|atom| self.atoms.predicate_set(atom)).unwrap_or_default();
        Some(self.kinds.predicate_sets(&holders.kinds, &atom))
    }

    /// What is true of a pod of another node; `None` if it gives an answer that the image does not know.
    pub(crate) fn peer_predicate_set(&mut self, pod: &Member<'_>) -> Option<PredicateSet> {
        let Self { peer_terms: by_label, cache: resolved, in_use: asked, peers, .. } = self;
        let questions = &resolved.vocabulary.port_sets;
        let by_label =
            by_label.get_or_insert_with(|| TermIndex::new(&peers.predicates.all, questions, asked));
        member_predicate_set(by_label, &peers.predicates, questions, pod)
    }
}
