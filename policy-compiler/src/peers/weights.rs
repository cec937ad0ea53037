//! The weight of a predicate: an upper bound of the number of members and addresses of which the predicate is true. It
//! is computed without evaluating the predicate for each member.

use std::collections::BTreeSet;

use ahash::AHashMap;
use ipnet::IpNet;

use super::members::{Members, Position};
use super::prefixes::{Prefix, V4, V6, v4, v6};
use super::selector_index::SelectorIndex;
use crate::model::{Model, ObjectName};
use crate::resolve::{PortSet, Predicate, Terms, Vocabulary};
use crate::selector::Selector;

/// The weight of one pod: a predicate that is true of it counts once for the pod, and once for each of two addresses.
const OF_POD: usize = 3;

/// Computes the weights of predicates.
pub(crate) struct Weights<'m> {
    model: &'m Model,
    members: &'m Members<'m>,
    index: SelectorIndex<'m>,
    /// The prefixes of members that are not network sets.
    common: AllPrefixes,
    /// The nets of the terms whose weights are being computed, and the prefixes of the network sets that these terms
    /// match.
    own: AllPrefixes,
    /// For each port name, the largest number of ports to which a single member gives it.
    ports: AHashMap<&'m str, usize>,
}

/// For each member, by position, the number of prefixes that lie in its nets.
type Inside = AHashMap<Position, usize>;

/// Prefixes in ascending order.
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

    /// The number of these prefixes that lie in a net.
    fn inside(&self, net: IpNet) -> usize {
        match net {
            IpNet::V4(net) => inside(&self.v4, v4(net)),
            IpNet::V6(net) => inside(&self.v6, v6(net)),
        }
    }
}

/// The number of prefixes in `all` that lie in `outer`. A prefix sorts directly before the prefixes inside it, so these
/// are adjacent.
fn inside<P: Prefix>(all: &[P], outer: P) -> usize {
    let behind = &all[all.partition_point(|it| *it < outer)..];
    behind.partition_point(|it| outer.contains(*it))
}

impl<'m> Weights<'m> {
    pub(crate) fn new(model: &'m Model, members: &'m Members<'m>) -> Self {
        let mut common = AllPrefixes::default();
        for member in members.all.iter().filter(|member| !member.is_set()) {
            member.for_each_net(|net| common.add(net));
        }
        common.sort();
        let mut ports = AHashMap::new();
        for member in &members.all {
            let mut own: AHashMap<&str, usize> = AHashMap::new();
            member.named_ports().for_each(|port| *own.entry(&port.name).or_default() += 1);
            for (name, count) in own {
                let most = ports.entry(name).or_default();
                *most = count.max(*most);
            }
        }
        let index = SelectorIndex::new(members);
        Self { model, members, index, common, own: AllPrefixes::default(), ports }
    }

    /// The weight of each of these terms, first the predicates and then the port sets. They depend on two groups of
    /// prefixes: the prefixes of members that are not network sets, and the prefixes that these terms bring themselves
    /// (their nets, and the network sets that they match). The prefixes of other terms are left out.
    pub(crate) fn of_terms(&mut self, terms: &Terms, vocabulary: &Vocabulary) -> [Vec<usize>; 2] {
        let predicates = || terms.predicates.iter().map(|it| &vocabulary.predicates[*it as usize]);
        let port_sets = || terms.port_sets.iter().map(|it| &vocabulary.port_sets[*it as usize]);
        let selectors = predicates().filter_map(|it| match it {
            Predicate::Members(selector) => Some(selector),
            _ => None,
        });
        let mut sets = BTreeSet::new();
        for selector in selectors {
            self.index.count(selector, |at| sets.extend([at]));
        }
        self.own = AllPrefixes::default();
        for set in sets.into_iter().filter_map(|at| self.members.all.get(at)) {
            set.for_each_net(|net| self.own.add(net));
        }
        for predicate in predicates() {
            if let Predicate::Net(net) = predicate {
                self.own.add(*net);
            }
        }
        self.own.sort();
        let mut inside = AHashMap::new();
        let of_predicates = predicates().map(|it| self.of_predicate(it, &mut inside)).collect();
        [of_predicates, port_sets().map(|it| self.of_port_set(it, &mut AHashMap::new())).collect()]
    }

    fn inside(&self, net: IpNet) -> usize {
        self.common.inside(net) + self.own.inside(net)
    }

    fn of_predicate(&mut self, predicate: &Predicate, inside: &mut Inside) -> usize {
        match predicate {
            Predicate::Net(net) => self.inside(*net),
            Predicate::Members(selector) => self.of_selector(selector, inside),
            Predicate::Service(name) => self.of_service(name, |_| 1),
            // All addresses have a family, and named ports are weighed with their port sets, so these predicates have
            // no weight.
            Predicate::Family(_) | Predicate::NamesPort { .. } | Predicate::ServicePort { .. } => 0,
        }
    }

    fn of_port_set(&mut self, port_set: &PortSet, inside: &mut Inside) -> usize {
        match port_set {
            PortSet::Named { selector, name } => {
                let ports = self.ports.get(name.as_str()).copied().unwrap_or_default();
                let all = self.members.services * OF_POD;
                let selector = selector.as_ref();
                ports * selector.map_or(all, |selector| self.of_selector(selector, inside))
            }
            PortSet::Service(name) => self.of_service(name, |ports| ports),
        }
    }

    fn of_selector(&mut self, selector: &Selector, inside: &mut Inside) -> usize {
        let mut others = Vec::new();
        let pods = self.index.count(selector, |position| others.push(position));
        let mut in_nets = 0_usize;
        for position in &others {
            let known = inside.get(position).copied();
            in_nets += known.unwrap_or_else(|| {
                let mut sum = 0;
                if let Some(member) = self.members.all.get(*position) {
                    member.for_each_net(|net| sum += self.inside(net));
                }
                inside.insert(*position, sum);
                sum
            });
        }
        // A predicate is true of an address only once, even if several sets contain it.
        pods * OF_POD + others.len() + in_nets.min(self.common.len() + self.own.len())
    }

    /// The weight of a term about a service. `truths` returns the weight of one address, given the number of its ports.
    fn of_service(&self, name: &ObjectName, truths: impl Fn(usize) -> usize) -> usize {
        let all = self.model.services.get(name).into_iter().flat_map(|all| all.iter());
        all.map(|some| (1 + some.addresses.len()) * truths(some.ports.len())).sum()
    }
}
