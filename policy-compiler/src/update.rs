//! One pod's coming, going or change, in the image that is in use.
//!
//! What the image says of an address depends on the kinds of members that have it and on its atom. So a pod of another node
//! that comes or goes changes a few cells of the address map and nothing else, as long as what is true of its addresses then
//! is true of a class that the image has. Workers see each store at their next lookup; flows remember identities, and are
//! judged again when they find another one. Everything else takes a new image.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ahash::AHashMap;

use crate::addresses::Addresses;
use crate::chains::PodPredicateSets;
use crate::classes::{KindId, Kinds};
use crate::identity::{IdentityInterner, PredicateKey};
use crate::image::{Identity, Image, PeerTables};
use crate::members::Member;
use crate::model::{Endpoint, LabelView, Mark, Model, NAMESPACE, ORCHESTRATOR, ObjectName};
use crate::pods::PodIndex;
use crate::predicates::{AtomPredicates, PredicateSet, Predicates, TermsInUse};
use crate::resolve::{LocalName, PortSet, PortSetId, Predicate, PredicateId, ResolveCache};
use crate::selector::Selector;

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

/// What the last image rests on.
#[derive(Debug)]
pub(crate) struct Basis {
    pub(crate) serial: u64,
    /// What it was made of, or brought up to.
    pub(crate) marks: [Mark; 8],
    pub(crate) peers: Arc<PeerTables>,
    pub(crate) kinds: Kinds,
    /// By predicate of how many pods and hosts it is true; of port names it is read.
    pub(crate) counts: Vec<u32>,
    pub(crate) atoms: AtomPredicates,
    pub(crate) addresses: Addresses,
    pub(crate) class_of: AHashMap<PredicateSet, u32>,
    /// By predicate what it says.
    pub(crate) predicate_keys: Vec<PredicateKey>,
    /// What policies say, in the numbers of all the rest.
    pub(crate) cache: ResolveCache,
    /// What was asked of those who are not local endpoints.
    pub(crate) in_use: TermsInUse,
    pub(crate) local: BTreeSet<LocalName>,
    /// What is true of the local pods themselves.
    pub(crate) pod_predicate_sets: AHashMap<LocalName, PodPredicateSets>,
    /// The local pods' addresses: what is true there of the local end is part of its chains.
    pub(crate) own_addresses: BTreeSet<IpAddr>,
    /// The kinds at addresses that have changed since, in the place of those in `addresses`.
    pub(crate) moved: BTreeMap<Ipv4Addr, Vec<KindId>>,
    /// What is asked of peers; made when first needed, as the next.
    pub(crate) peer_terms: Option<TermIndex>,
    /// All that is asked of anybody.
    pub(crate) near_terms: Option<TermIndex>,
    /// With more classes than these all is made anew: some may be nobody's any more.
    pub(crate) most_classes: usize,
    pub(crate) pods: PodIndex,
}

/// What may be asked of a pod, by a label that it must have: the namespace, where one is named.
#[derive(Debug, Default)]
pub(crate) struct TermIndex {
    /// By key and value.
    of: AHashMap<String, AHashMap<String, Vec<Term>>>,
    anywhere: Vec<Term>,
}

#[derive(Debug, Clone, Copy)]
enum Term {
    Predicate(PredicateId),
    PortSet(PortSetId),
}

impl TermIndex {
    pub(crate) fn new(predicates: &[Predicate], questions: &[PortSet], asked: &TermsInUse) -> Self {
        let mut all = Self::default();
        let of_peers = (0..).zip(predicates).zip(&asked.predicates).filter(|(_, asked)| **asked);
        for ((id, predicate), _) in of_peers {
            if let Predicate::Members(selector) = predicate {
                all.add(Some(selector), Term::Predicate(id));
            }
        }
        let of_peers = (0..).zip(questions).zip(&asked.port_sets).filter(|(_, asked)| **asked);
        for ((id, question), _) in of_peers {
            if let PortSet::Named { selector, .. } = question {
                all.add(selector.as_ref(), Term::PortSet(id));
            }
        }
        all
    }

    /// Adds a selector that is asked from now on.
    pub(crate) fn add_selector(&mut self, selector: &Selector, id: PredicateId) {
        self.add(Some(selector), Term::Predicate(id));
    }

    fn add(&mut self, selector: Option<&Selector>, asked: Term) {
        let required = selector.map(Selector::required_labels).unwrap_or_default();
        let of_values = required.into_iter().filter(|(key, _)| *key != ORCHESTRATOR);
        let of_values = of_values.filter_map(|(key, values)| Some((key, values?)));
        // Of namespaces there are most; all pods are of one orchestrator.
        let best = match selector.and_then(|it| it.required_values(NAMESPACE)) {
            Some(values) => Some((NAMESPACE, values)),
            None => of_values.min_by_key(|(_, values)| values.len()),
        };
        let Some((key, values)) = best else { return self.anywhere.push(asked) };
        for value in values {
            let of_key = self.of.entry(key.to_owned()).or_default();
            of_key.entry(value.to_owned()).or_default().push(asked);
        }
    }

    /// What may be asked of one that has these labels.
    fn terms_for<'a>(&'a self, view: &'a LabelView<'_>) -> impl Iterator<Item = Term> + 'a {
        let of_keys = self.of.iter().filter_map(|(key, of)| of.get(view.value(key)?));
        of_keys.flatten().chain(&self.anywhere).copied()
    }
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

/// What is true of a member, of all that an index holds; `None` if it gives an answer that nobody gave.
pub(crate) fn member_predicate_set(
    by_label: &TermIndex,
    predicates: &Predicates,
    questions: &[PortSet],
    member: &Member<'_>,
) -> Option<PredicateSet> {
    let view = member.view()?;
    let mut truth = Vec::new();
    for asked in by_label.terms_for(&view) {
        match asked {
            Term::Predicate(id) => {
                if let Predicate::Members(selector) = predicates.all.get(id as usize)?
                    && selector.matches(&view)
                {
                    truth.push(id);
                }
            }
            Term::PortSet(id) => {
                let PortSet::Named { selector, name } = questions.get(id as usize)? else {
                    continue;
                };
                if selector.as_ref().is_some_and(|selector| !selector.matches(&view)) {
                    continue;
                }
                let answers = predicates.possible_ports.get(id as usize)?;
                for port in member.named_ports().filter(|port| port.name == *name) {
                    let given = (port.protocol, port.port);
                    truth.push(answers.iter().find(|it| (it.0, it.1) == given)?.2);
                }
            }
        }
    }
    truth.sort_unstable();
    truth.dedup();
    Some(truth.into())
}
