//! Policies that ask what nobody had asked: whom it is true of moves to another class, and what is said of everybody else
//! stands.
//!
//! Selectors and CIDRs are answered so, of IPv4 addresses. What else is new, names of ports and services, takes all anew.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::Ipv4Net;

use crate::addresses::Edit;
use crate::identity::Interner;
use crate::members::Member;
use crate::model::{Endpoint, Model, NetworkSet, ObjectName};
use crate::predicates::{InUse, Predicates, Truth, union};
use crate::resolve::{Predicate, PredicateId};
use crate::selector::Selector;
use crate::touched::{Touched, v4};
use crate::update::Standing;

/// So many predicates may be without use, and a quarter of all.
const MOST_UNUSED: usize = 16;

/// What nobody had asked.
#[derive(Default)]
struct Anew {
    selectors: Vec<(PredicateId, Selector)>,
    nets: Vec<(PredicateId, Vec<Ipv4Net>)>,
}

/// A member of whom something new is true.
struct Moved {
    is_endpoint: bool,
    nets: Vec<Ipv4Net>,
    /// What was true of it.
    truth: Truth,
    /// What is now besides, ascending.
    anew: Vec<PredicateId>,
}

impl Standing {
    /// Makes what stands answer all that `peers` and `anybody` ask, but for the addresses that this touches. `None` where all is to be made
    /// anew, and then this is not to be used any more.
    pub(crate) fn answer(
        &mut self,
        interner: &mut Interner,
        model: &Model,
        peers: &InUse,
        anybody: &InUse,
        touched: &mut Touched,
    ) -> Option<()> {
        let anew = self.anew(peers, anybody)?;
        if anew.selectors.is_empty() && anew.nets.is_empty() {
            return Some(());
        }
        let mut predicates = Predicates::clone(&self.peers.predicates);
        let known = predicates.all.len();
        let new = self.resolved.vocabulary.predicates.get(known..)?.to_vec();
        predicates.all.extend_from_slice(&new);
        let moved = self.moved(model, &anew.selectors)?;
        self.said.extend(interner.said(&new));
        self.counts.resize(predicates.all.len(), 0);
        self.asked.predicates.resize(predicates.all.len(), false);
        for (id, selector) in &anew.selectors {
            self.asked.predicates[*id as usize] = true;
            for index in [&mut self.by_label, &mut self.of_near].into_iter().flatten() {
                index.add_selector(selector, *id);
            }
        }
        touched.predicates = Some(predicates);
        let mut edits = self.change_kinds(&moved, touched)?;
        for (id, nets) in anew.nets {
            self.asked.predicates[id as usize] = peers.predicates.get(id as usize) == Some(&true);
            for net in nets {
                if self.atoms.add(net.into(), id) {
                    edits.push(Edit { net, was: None, is: None });
                }
                touched.nets.insert(net);
            }
        }
        self.addresses.change(&edits)
    }

    /// What is new; `None` if something else is, or too much is not in use any more.
    fn anew(&self, peers: &InUse, anybody: &InUse) -> Option<Anew> {
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
        let mut anew = Anew::default();
        for (at, (used, of_peers)) in anybody.predicates.iter().zip(&peers.predicates).enumerate() {
            if !*used || (at < known && self.asked.predicates.get(at) == Some(of_peers)) {
                continue;
            }
            let id = at as PredicateId;
            match all.get(at)? {
                Predicate::Members(selector) if at >= known && *of_peers => {
                    anew.selectors.push((id, selector.clone()));
                }
                // Whoever asks, it is known of every address.
                Predicate::Family(_) | Predicate::Nets(_) if at < known => {}
                Predicate::Nets(nets) => {
                    anew.nets.push((id, nets.iter().map(|net| v4(*net)).collect::<Option<_>>()?));
                }
                _ => return None,
            }
        }
        Some(anew)
    }

    /// The members of whom new predicates are true.
    fn moved(&mut self, model: &Model, anew: &[(PredicateId, Selector)]) -> Option<Vec<Moved>> {
        if anew.is_empty() {
            return Some(Vec::new());
        }
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
                if selector.matches(&Model::host_view(host)) {
                    return None;
                }
            }
        }
        let mut moved = Vec::with_capacity(pods.len() + sets.len());
        for (name, (pod, anew)) in pods {
            let member = Member::pod(model, name, pod);
            let truth = if self.local.contains(name) {
                self.truth_of_near(&member)?
            } else {
                self.truth_of_peer(&member)?
            };
            let nets = pod.addresses.iter().map(|address| match address {
                IpAddr::V4(address) => Some(Ipv4Net::from(*address)),
                IpAddr::V6(_) => None,
            });
            moved.push(Moved {
                is_endpoint: true,
                nets: nets.collect::<Option<_>>()?,
                truth,
                anew,
            });
        }
        for (name, (set, anew)) in sets {
            let truth = self.truth_of_near(&Member::set(model, name, set))?;
            let nets = set.nets.iter().map(|net| v4(*net)).collect::<Option<_>>()?;
            moved.push(Moved { is_endpoint: false, nets, truth, anew });
        }
        Some(moved)
    }

    /// Gives members their new kinds.
    fn change_kinds(&mut self, moved: &[Moved], touched: &mut Touched) -> Option<Vec<Edit>> {
        let mut edits = Vec::new();
        for Moved { is_endpoint, nets, truth, anew } in moved {
            let was = self.kinds.of(*is_endpoint, truth);
            let is = self.kinds.of(*is_endpoint, &union(truth.iter().chain(anew)))?;
            for id in anew {
                self.counts[*id as usize] += 1;
            }
            for net in nets {
                if net.prefix_len() == 32 {
                    self.replace_kind(net.addr(), was, Some(is))?;
                    touched.hosts.insert(net.addr());
                } else {
                    edits.push(Edit { net: *net, was, is: Some(is) });
                    touched.nets.insert(*net);
                }
            }
        }
        Some(edits)
    }
}
