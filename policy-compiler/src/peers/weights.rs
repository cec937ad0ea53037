//! What a predicate costs: at least as many truths as come of it, without making one of them.

use ipnet::IpNet;

use super::members::{Member, Members};
use super::prefixes::{Prefix, V4, V6, v4, v6};
use super::selector_index::SelectorIndex;
use crate::model::{Model, ObjectName};
use crate::resolve::{PortSet, Predicate, Vocabulary};
use crate::selector::Selector;

/// A pod's truth counts once for the pod and once for each of its two addresses.
const OF_POD: usize = 3;

/// Weighs predicates.
pub(crate) struct Weights<'m> {
    model: &'m Model,
    index: SelectorIndex<'m>,
    prefixes: AllPrefixes,
    /// The prefixes in the nets of each member behind the pods.
    inside: Vec<usize>,
    pods: usize,
}

/// The prefixes that have an identity, or may have one, ascending.
#[derive(Default)]
struct AllPrefixes {
    v4: Vec<V4>,
    v6: Vec<V6>,
}

impl AllPrefixes {
    fn add(&mut self, net: IpNet) {
        match net {
            IpNet::V4(net) => self.v4.push(v4(net)),
            IpNet::V6(net) => self.v6.push(v6(net)),
        }
    }

    fn sort(&mut self) {
        self.v4.sort_unstable();
        self.v4.dedup();
        self.v6.sort_unstable();
        self.v6.dedup();
    }

    fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// How many are in a net.
    fn inside(&self, net: IpNet) -> usize {
        match net {
            IpNet::V4(net) => inside(&self.v4, v4(net)),
            IpNet::V6(net) => inside(&self.v6, v6(net)),
        }
    }
}

/// A prefix sorts directly before those in it.
fn inside<P: Prefix>(all: &[P], outer: P) -> usize {
    let behind = &all[all.partition_point(|it| *it < outer)..];
    behind.partition_point(|it| outer.contains(*it))
}

impl<'m> Weights<'m> {
    pub(crate) fn new(model: &'m Model, members: &'m Members<'m>, vocabulary: &Vocabulary) -> Self {
        let mut prefixes = AllPrefixes::default();
        members.all.iter().for_each(|member| member.for_each_net(|net| prefixes.add(net)));
        for predicate in &vocabulary.predicates {
            if let Predicate::Net(net) = predicate {
                prefixes.add(*net);
            }
        }
        prefixes.sort();
        let of_member = |member: &Member<'_>| {
            let mut sum = 0_usize;
            member.for_each_net(|net| sum += prefixes.inside(net));
            sum
        };
        let behind_pods = members.all.get(members.sets..members.services).unwrap_or_default();
        let inside = behind_pods.iter().map(of_member).collect();
        Self { model, index: SelectorIndex::new(members), prefixes, inside, pods: members.sets }
    }

    /// What all addresses cost, whatever policies ask.
    pub(crate) fn of_none(&self) -> usize {
        self.prefixes.len()
    }

    pub(crate) fn of_predicate(&mut self, predicate: &Predicate) -> usize {
        match predicate {
            Predicate::Net(net) => self.prefixes.inside(*net),
            Predicate::Members(selector) => self.of_selector(selector),
            Predicate::Service(name) => self.of_service(name, |_| 1),
            // The families are those of all addresses; named ports are weighed with their port sets.
            Predicate::Family(_) | Predicate::NamesPort { .. } | Predicate::ServicePort { .. } => 0,
        }
    }

    pub(crate) fn of_port_set(&mut self, port_set: &PortSet) -> usize {
        match port_set {
            PortSet::Named { selector: Some(selector), .. } => self.of_selector(selector),
            PortSet::Named { selector: None, .. } => self.pods * OF_POD,
            PortSet::Service(name) => self.of_service(name, |ports| ports),
        }
    }

    fn of_selector(&mut self, selector: &Selector) -> usize {
        let Self { index, prefixes, inside, pods, .. } = self;
        let (mut others, mut in_nets) = (0, 0_usize);
        let matched = index.count(selector, |position| {
            others += 1;
            in_nets += inside.get(position - *pods).copied().unwrap_or_default();
        });
        // Sets that overlap make an address true only once.
        matched * OF_POD + others + in_nets.min(prefixes.len())
    }

    /// `truths`: how many an address has, by the number of its ports.
    fn of_service(&self, name: &ObjectName, truths: impl Fn(usize) -> usize) -> usize {
        let all = self.model.services.get(name).into_iter().flat_map(|all| all.iter());
        all.map(|some| (1 + some.addresses.len()) * truths(some.ports.len())).sum()
    }
}
