//! Policies that ask what nobody had asked: whom it is true of moves to another class, and what is said of everybody else
//! stands.
//!
//! Selectors alone are answered so, of pods and of network sets whose networks are single IPv4 addresses. What else is new,
//! CIDRs, names of ports and services, takes all anew.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::changes::Changes;
use crate::classes::NewClass;
use crate::compile::SPARE_IDENTITIES;
use crate::identity::{Interner, Key};
use crate::image::{Identity, NO_CLASS, Peers};
use crate::members::Member;
use crate::model::{Endpoint, Model, NetworkSet, ObjectName};
use crate::predicates::{InUse, Predicates, Truth, union};
use crate::resolve::{Predicate, PredicateId};
use crate::selector::Selector;
use crate::update::{ByLabel, Standing, truth};

/// So many predicates may be without use, and a quarter of all.
const MOST_UNUSED: usize = 16;

/// A member of whom something new is true.
struct Moved<'m> {
    /// Of a pod.
    name: Option<&'m ObjectName>,
    addresses: Vec<Ipv4Addr>,
    /// What was true of it.
    truth: Truth,
    /// What is now besides, ascending.
    anew: Vec<PredicateId>,
}

impl Standing {
    /// Makes what stands answer all that `peers` and `anybody` ask: of each class that this takes the one that it comes from.
    /// `None` where all is to be made anew, and then this is not to be used any more.
    pub(crate) fn answer(
        &mut self,
        interner: &mut Interner,
        model: &Model,
        peers: &InUse,
        anybody: &InUse,
    ) -> Option<Vec<NewClass>> {
        let anew = self.anew(peers, anybody)?;
        if anew.is_empty() {
            return Some(Vec::new());
        }
        let mut predicates = self.peers.predicates.clone();
        let known = predicates.all.len();
        let new = self.resolved.vocabulary.predicates.get(known..)?.to_vec();
        predicates.all.extend_from_slice(&new);
        let moved = self.moved(model, &anew)?;
        self.said.extend(interner.said(&new));
        self.counts.resize(predicates.all.len(), 0);
        self.asked.predicates.resize(predicates.all.len(), false);
        for (id, _) in &anew {
            self.asked.predicates[*id as usize] = true;
        }
        self.by_label = None;
        let touched = self.change_kinds(&moved)?;
        let from = self.identify(interner, known, predicates, &touched)?;
        self.follow_local(model, &moved, &touched)?;
        Some(from)
    }

    /// The selectors that are new; `None` if something else is, or too much is not in use any more.
    fn anew(&self, peers: &InUse, anybody: &InUse) -> Option<Vec<(PredicateId, Selector)>> {
        let known = self.peers.predicates.all.len();
        let questions = anybody.questions.iter().zip(&peers.questions).enumerate();
        for (at, (used, of_peers)) in questions {
            if *used && self.asked.questions.get(at) != Some(of_peers) {
                return None;
            }
        }
        let all = &self.resolved.vocabulary.predicates;
        let is_answer = |predicate: &Predicate| {
            matches!(predicate, Predicate::NamesPort { .. } | Predicate::ServicePort { .. })
        };
        let predicates = anybody.predicates.iter().zip(all);
        let unused = predicates.filter(|(used, it)| !**used && !is_answer(it)).count();
        let questions = anybody.questions.iter().filter(|used| !**used).count();
        if unused > MOST_UNUSED + all.len() / 4
            || questions > MOST_UNUSED + anybody.questions.len() / 4
        {
            return None;
        }
        let mut anew = Vec::new();
        for (at, (used, of_peers)) in anybody.predicates.iter().zip(&peers.predicates).enumerate() {
            if !*used || (at < known && self.asked.predicates.get(at) == Some(of_peers)) {
                continue;
            }
            match all.get(at)? {
                Predicate::Members(selector) if at >= known && *of_peers => {
                    anew.push((at as PredicateId, selector.clone()));
                }
                _ => return None,
            }
        }
        Some(anew)
    }

    /// The members of whom new predicates are true.
    fn moved<'m>(
        &mut self,
        model: &'m Model,
        anew: &[(PredicateId, Selector)],
    ) -> Option<Vec<Moved<'m>>> {
        let mut pods: BTreeMap<&ObjectName, (&Endpoint, Vec<PredicateId>)> = BTreeMap::new();
        let mut sets: BTreeMap<&ObjectName, (&NetworkSet, Vec<PredicateId>)> = BTreeMap::new();
        for (id, selector) in anew {
            for (name, pod) in self.pods.that_may_match(model, selector) {
                if selector.matches(&model.pod_view(name, pod)) {
                    pods.entry(name).or_insert((pod, Vec::new())).1.push(*id);
                }
            }
            for (name, set) in &model.network_sets {
                if selector.matches(&model.set_view(name, set)) {
                    sets.entry(name).or_insert((set, Vec::new())).1.push(*id);
                }
            }
            for host in model.host_endpoints.values() {
                if selector.matches(&Model::host_view(host, &model.inherited(host))) {
                    return None;
                }
            }
        }
        let Predicates { all, .. } = &self.peers.predicates;
        let questions = &self.resolved.vocabulary.questions;
        // Of those who are near all is known that is asked of anybody.
        let everything = InUse {
            predicates: vec![true; all.len()],
            questions: vec![true; self.peers.predicates.answers.len()],
        };
        let (mut of_peers, mut of_near) = (None, None);
        let mut moved = Vec::with_capacity(pods.len() + sets.len());
        for (name, (pod, anew)) in pods {
            let is_near = self.local.contains(name);
            let index = if is_near {
                of_near.get_or_insert_with(|| ByLabel::of(all, questions, &everything))
            } else {
                of_peers.get_or_insert_with(|| ByLabel::of(all, questions, &self.asked))
            };
            let member = Member::pod(model, name, pod);
            let truth = truth(index, &self.peers.predicates, questions, &member)?;
            let addresses = pod.addresses.iter().map(|address| match address {
                IpAddr::V4(address) => Some(*address),
                IpAddr::V6(_) => None,
            });
            let addresses = addresses.collect::<Option<_>>()?;
            moved.push(Moved { name: Some(name), addresses, truth, anew });
        }
        for (name, (set, anew)) in sets {
            let index = of_near.get_or_insert_with(|| ByLabel::of(all, questions, &everything));
            let member = Member::set(model, name, set);
            let truth = truth(index, &self.peers.predicates, questions, &member)?;
            let addresses = set.nets.iter().map(|net| match net.addr() {
                // What is true of a local pod's address itself is part of its chains.
                IpAddr::V4(address) if net.prefix_len() == 32 => {
                    (!self.own.contains(&net.addr())).then_some(address)
                }
                _ => None,
            });
            let addresses = addresses.collect::<Option<_>>()?;
            moved.push(Moved { name: None, addresses, truth, anew });
        }
        Some(moved)
    }

    /// Gives members their new kinds; the addresses that they have.
    fn change_kinds(&mut self, moved: &[Moved<'_>]) -> Option<BTreeSet<Ipv4Addr>> {
        let mut touched = BTreeSet::new();
        for Moved { name, addresses, truth, anew } in moved {
            let is_endpoint = name.is_some();
            let was = self.kinds.of(is_endpoint, truth);
            let is = self.kinds.of(is_endpoint, &union(truth.iter().chain(anew)))?;
            for id in anew {
                self.counts[*id as usize] += 1;
            }
            for address in addresses {
                self.replace_kind(*address, was, Some(is))?;
                touched.insert(*address);
            }
        }
        Some(touched)
    }

    /// Gives addresses their new identities, and identities their classes; whence the new classes come.
    fn identify(
        &mut self,
        interner: &mut Interner,
        known: usize,
        predicates: Predicates,
        touched: &BTreeSet<Ipv4Addr>,
    ) -> Option<Vec<NewClass>> {
        let before = Arc::clone(&self.peers);
        let prefixes = before.prefixes.clone();
        let mut truths = before.class_truths.to_vec();
        let mut classes: Vec<u32> =
            before.classes.iter().map(|class| class.load(Ordering::Relaxed)).collect();
        let mut identities = before.identities;
        let mut from = Vec::new();
        for address in touched {
            let Some([truth, around]) = self.truth_at(*address) else { continue };
            let class = if let Some(class) = self.class_of.get(&truth) {
                *class
            } else {
                let is_old = |id: &PredicateId| (*id as usize) < known;
                let old: Truth = truth.iter().copied().filter(is_old).collect();
                let differs = truth.iter().copied().filter(|id| !is_old(id)).collect();
                from.push(NewClass { from: Some(*self.class_of.get(&old)?), differs });
                truths.push(truth.clone());
                let class = truths.len() as u32 - 1;
                self.class_of.insert(truth.clone(), class);
                class
            };
            let identity = interner.identity(Key::of([&truth, &around], &self.said));
            if identity == Identity::UNKNOWN {
                return None;
            }
            let at = identity.0.checked_sub(before.first_identity)? as usize;
            if classes.len() <= at + SPARE_IDENTITIES / 2 {
                classes.resize(at + SPARE_IDENTITIES + at / 8, NO_CLASS);
            }
            if std::mem::replace(&mut classes[at], class) == NO_CLASS {
                identities += 1;
            }
            if !prefixes.set_v4(address.to_bits(), identity.0) {
                return None;
            }
        }
        self.peers = Arc::new(Peers {
            prefixes,
            changes: Changes::default(),
            first_identity: before.first_identity,
            classes: classes.into_iter().map(AtomicU32::new).collect(),
            class_truths: truths.into(),
            predicates,
            identities,
        });
        Some(from)
    }
    /// What is true of the local pods themselves.
    fn follow_local(
        &mut self,
        model: &Model,
        moved: &[Moved<'_>],
        touched: &BTreeSet<Ipv4Addr>,
    ) -> Option<()> {
        let is_touched =
            |it: &IpAddr| matches!(it, IpAddr::V4(address) if touched.contains(address));
        for (name, truths) in &mut self.pod_truths {
            let addresses = &model.endpoints.get(name)?.addresses;
            if !addresses.iter().any(is_touched) {
                continue;
            }
            // Of those that are unknown there are none.
            if truths.len() != addresses.len() {
                return None;
            }
            let anew = moved.iter().find(|it| it.name == Some(name)).map(|it| &it.anew);
            for (address, (_, identity, truth)) in addresses.iter().zip(truths) {
                *identity = Identity(self.peers.prefixes.lookup(*address));
                if let Some(anew) = anew {
                    *truth = union(truth.iter().chain(anew));
                }
            }
        }
        Some(())
    }
}
