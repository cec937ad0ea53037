//! The delta of predicates: policies use selectors and CIDRs that no policy used before. Members and addresses that
//! match a new selector or CIDR move to another class. All other addresses keep their identities.
//!
//! Only selectors and CIDRs can be added in this way. Every other new term (port names, services) needs a rebuild.
//!
//! The gain: a change of a policy and of its predicates takes 4.1 ms in the cluster of `docs/performance.md` (goal 5),
//! and a whole compilation takes 31 ms.

use std::collections::BTreeMap;

use ipnet::IpNet;

use super::address_delta::AddressDelta;
use super::state::CompileState;
use crate::common::Rebuild;
use crate::model::{Endpoint, Model, NetworkSet, ObjectName};
use crate::peers::{
    IdentityInterner, Member, PredicateSet, Predicates, PrefixEdit, TermsInUse, union,
};
use crate::resolve::{Predicate, PredicateId};
use crate::selector::Selector;

/// With more unused predicates than this plus a quarter of all, everything is compiled from nothing. The same holds for
/// port sets.
const MOST_UNUSED: usize = 16;

/// The predicates that have come into use.
#[derive(Default)]
struct NewPredicates {
    selectors: Vec<(PredicateId, Selector)>,
    nets: Vec<(PredicateId, IpNet)>,
}

/// A member that matches a new predicate.
struct MovedMember {
    is_endpoint: bool,
    nets: Vec<IpNet>,
    /// Its predicate set before the change.
    before: PredicateSet,
    /// The predicates that are added to it, ascending.
    added: Vec<PredicateId>,
}

impl CompileState {
    /// Adds the predicates that have come into use. `peers` are the terms that rules use for peers, and `anybody` are
    /// the terms that rules use for either end. The touched addresses are added to `delta`.
    pub(crate) fn apply_predicate_delta(
        &mut self,
        interner: &mut IdentityInterner,
        model: &Model,
        peers: &TermsInUse,
        anybody: &TermsInUse,
        delta: &mut AddressDelta,
    ) -> Result<(), Rebuild> {
        let added = self.new_predicates(peers, anybody)?;
        if added.selectors.is_empty() && added.nets.is_empty() {
            return Ok(());
        }
        let mut predicates = Predicates::clone(&self.peers.predicates);
        let known = predicates.all.len();
        let new = self.cache.vocabulary.predicates.get(known..).ok_or(Rebuild)?.to_vec();
        predicates.all.extend_from_slice(&new);
        let moved = self.find_moved_members(model, &added.selectors)?;
        self.predicate_keys.extend(interner.predicate_keys(&new));
        self.counts.resize(predicates.all.len(), 0);
        self.in_use.predicates.resize(predicates.all.len(), false);
        for (id, selector) in &added.selectors {
            self.in_use.predicates[*id as usize] = true;
            for index in [&mut self.peer_terms, &mut self.near_terms].into_iter().flatten() {
                index.add_selector(selector, *id);
            }
        }
        delta.predicates = Some(predicates);
        let mut edits = self.change_kinds(&moved, delta)?;
        for (id, net) in added.nets {
            self.in_use.predicates[id as usize] = peers.predicates.get(id as usize) == Some(&true);
            if self.atoms.add(net, id) {
                edits.push(PrefixEdit { net, was: None, is: None });
            }
            delta.nets.insert(net);
        }
        self.addresses.apply(&edits)
    }

    /// The predicates that have come into use. Returns `Err` if another kind of term has come into use, or if too many
    /// predicates are unused.
    fn new_predicates(
        &self,
        peers: &TermsInUse,
        anybody: &TermsInUse,
    ) -> Result<NewPredicates, Rebuild> {
        let known = self.peers.predicates.all.len();
        let questions = anybody.port_sets.iter().zip(&peers.port_sets).enumerate();
        for (at, (used, of_peers)) in questions {
            if *used && self.in_use.port_sets.get(at) != Some(of_peers) {
                return Err(Rebuild);
            }
        }
        let all = &self.cache.vocabulary.predicates;
        let is_answer = |predicate: &Predicate| {
            matches!(predicate, Predicate::NamesPort { .. } | Predicate::ServicePort { .. })
        };
        let predicates = anybody.predicates.iter().zip(all);
        let unused = predicates.filter(|(used, it)| !**used && !is_answer(it)).count();
        let questions = anybody.port_sets.iter().filter(|used| !**used).count();
        if unused > MOST_UNUSED + all.len() / 4
            || questions > MOST_UNUSED + anybody.port_sets.len() / 4
        {
            return Err(Rebuild);
        }
        let mut added = NewPredicates::default();
        for (at, (used, of_peers)) in anybody.predicates.iter().zip(&peers.predicates).enumerate() {
            if !*used || (at < known && self.in_use.predicates.get(at) == Some(of_peers)) {
                continue;
            }
            let id = at as PredicateId;
            match all.get(at).ok_or(Rebuild)? {
                Predicate::Members(selector) if at >= known && *of_peers => {
                    added.selectors.push((id, selector.clone()));
                }
                // Families and nets are already evaluated for every address, so it does not matter which end of a rule
                // uses them.
                Predicate::Family(_) | Predicate::Net(_) if at < known => {}
                Predicate::Net(net) => added.nets.push((id, net.trunc())),
                _ => return Err(Rebuild),
            }
        }
        Ok(added)
    }

    /// Finds the members that match new predicates.
    fn find_moved_members(
        &mut self,
        model: &Model,
        added: &[(PredicateId, Selector)],
    ) -> Result<Vec<MovedMember>, Rebuild> {
        if added.is_empty() {
            return Ok(Vec::new());
        }
        let mut pods: BTreeMap<&ObjectName, (&Endpoint, Vec<PredicateId>)> = BTreeMap::new();
        let mut sets: BTreeMap<&ObjectName, (&NetworkSet, Vec<PredicateId>)> = BTreeMap::new();
        let mut looks = 0;
        for (id, selector) in added {
            let candidates = self.pods.candidates(model, selector);
            looks += candidates.len() + model.network_sets.len();
            self.check_truths(looks)?;
            for (name, pod) in candidates {
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
                if selector.matches(&Model::host_view(host)) {
                    return Err(Rebuild);
                }
            }
        }
        let mut moved = Vec::with_capacity(pods.len() + sets.len());
        for (name, (pod, added)) in pods {
            let member = Member::pod(model, name, pod);
            let predicate_set = if self.local.contains(name) {
                self.near_predicate_set(&member)?
            } else {
                self.peer_predicate_set(&member)?
            };
            let nets = pod.addresses.iter().map(|address| IpNet::from(*address)).collect();
            moved.push(MovedMember { is_endpoint: true, nets, before: predicate_set, added });
        }
        for (name, (set, added)) in sets {
            let predicate_set = self.near_predicate_set(&Member::set(model, name, set))?;
            let nets = set.nets.iter().map(IpNet::trunc).collect();
            moved.push(MovedMember { is_endpoint: false, nets, before: predicate_set, added });
        }
        Ok(moved)
    }

    /// Gives members their new kinds. Returns the edits of prefixes that are not single hosts.
    fn change_kinds(
        &mut self,
        moved: &[MovedMember],
        delta: &mut AddressDelta,
    ) -> Result<Vec<PrefixEdit>, Rebuild> {
        let mut edits = Vec::new();
        for MovedMember { is_endpoint, nets, before: predicate_set, added } in moved {
            let was = self.kinds.intern(*is_endpoint, predicate_set);
            let is = self
                .kinds
                .intern(*is_endpoint, &union(predicate_set.iter().chain(added)))
                .ok_or(Rebuild)?;
            for id in added {
                self.counts[*id as usize] += 1;
            }
            for net in nets {
                let edit = PrefixEdit { net: *net, was, is: Some(is) };
                self.edit_prefix(edit, &mut edits, delta)?;
            }
        }
        Ok(edits)
    }
}
