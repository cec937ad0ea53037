//! The chains of local endpoints: a list of policies together with the predicates that are true of the local end.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use ahash::AHashMap;

use crate::common::{ChainId, Identity, StableHasher};
use crate::image::{LocalEndpoint, LocalPredicateSets};
use crate::model::{Family, Model};
use crate::peers::{
    Addresses, AtomPredicates, MemberKinds, MemberPredicates, Members, PredicateSet, Predicates,
};
use crate::prefix_map::PrefixMap;
use crate::resolve::{LocalName, PredicateId, Resolved, ResolvedList};

/// The data from which the predicate sets of local pods are computed.
pub(crate) struct LocalPods<'a> {
    pub(crate) model: &'a Model,
    pub(crate) members: &'a Members<'a>,
    pub(crate) member_predicates: &'a MemberPredicates,
    pub(crate) kinds: &'a MemberKinds,
    pub(crate) atoms: &'a AtomPredicates,
    pub(crate) addresses: &'a Addresses,
    pub(crate) prefixes: &'a PrefixMap,
}

/// The predicate set of each address of a pod.
pub(crate) type PodPredicateSets = Vec<(Family, Identity, PredicateSet)>;

impl LocalPods<'_> {
    /// The predicate sets of all local pods.
    pub(crate) fn all(&self, names: &BTreeSet<LocalName>) -> AHashMap<LocalName, PodPredicateSets> {
        names
            .iter()
            .filter_map(|name| Some((name.clone(), self.pod_predicate_sets(name)?)))
            .collect()
    }

    /// The predicate sets of a pod's addresses, except for unknown addresses. `None` for a host endpoint, whose packets
    /// may have any local address.
    fn pod_predicate_sets(&self, name: &LocalName) -> Option<PodPredicateSets> {
        let pod = self.model.endpoints.get(name)?;
        let own = self.member_predicates.member(self.members.endpoint(name)?);
        let mut sets = Vec::with_capacity(pod.addresses.len());
        for address in &pod.addresses {
            let identity = Identity(self.prefixes.lookup(*address));
            if identity == Identity::UNKNOWN {
                continue;
            }
            let occupants = self.addresses.occupants((*address).into(), None);
            let atom =
                occupants.atom.map(|atom| self.atoms.predicate_set(atom)).unwrap_or_default();
            let set = self.kinds.local_predicate_set(own, &occupants.kinds, &atom);
            sets.push((Family::from_address(*address), identity, set));
        }
        Some(sets)
    }
}

/// A chain of the next image.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct NewChain {
    /// The index of its list.
    pub(crate) list: usize,
    /// See [`Chain::local`](crate::image::Chain::local).
    pub(crate) local: Option<LocalPredicateSets>,
    /// For a pod whose `local` is `None`, the predicates that its list uses at each of the pod's addresses.
    pub(crate) each_address: Vec<(Identity, PredicateSet)>,
}

/// The chains of all local endpoints.
pub(crate) struct Chains {
    pub(crate) endpoints: BTreeMap<Arc<LocalName>, LocalEndpoint>,
    pub(crate) all: Vec<NewChain>,
}

impl Chains {
    /// Finds the chains of all local endpoints. `pods` are the predicate sets of the local pods.
    pub(crate) fn new(
        resolved: &Resolved,
        predicates: &Predicates,
        pods: &AHashMap<LocalName, PodPredicateSets>,
    ) -> Self {
        let mut chains = Self { endpoints: BTreeMap::new(), all: Vec::new() };
        let mut endpoints = Vec::with_capacity(resolved.endpoints.len());
        let mut known: AHashMap<NewChain, ChainId> = AHashMap::new();
        // For each list, the predicates that it uses for the local end.
        let asked: Vec<Vec<PredicateId>> =
            resolved.lists.iter().map(|list| local_predicates(list, predicates)).collect();
        for (name, lists) in &resolved.endpoints {
            let mut local = LocalEndpoint { chains: BTreeMap::new(), revision: 0 };
            let mut hasher = StableHasher::default();
            for (at, index) in lists {
                let list = &resolved.lists[*index];
                let asked = &asked[*index];
                let mut made = NewChain { list: *index, local: None, each_address: Vec::new() };
                if asked.is_empty() {
                    made.local = Some(LocalPredicateSets::default());
                } else if let Some(sets) = pods.get(&**name) {
                    made.local = constant(sets, asked);
                    if made.local.is_none() {
                        let each = sets.iter();
                        made.each_address =
                            each.map(|(_, id, set)| (*id, restrict(set, asked))).collect();
                    }
                }
                list.revision().hash(&mut hasher);
                let same = made.local.iter().flatten();
                for set in same.chain(made.each_address.iter().map(|(_, set)| set)) {
                    let texts = set.iter().map(|p| &predicates.all[*p as usize]);
                    // The hash covers the predicates themselves, because their numbers depend on earlier compilations.
                    texts.collect::<BTreeSet<_>>().hash(&mut hasher);
                }
                let next = ChainId(chains.all.len() as u32);
                let chain = *known.entry(made).or_insert_with_key(|made| {
                    chains.all.push(made.clone());
                    next
                });
                local.chains.insert(*at, chain);
            }
            local.revision = hasher.finish();
            endpoints.push((Arc::clone(name), local));
        }
        chains.endpoints = endpoints.into_iter().collect();
        chains
    }
}

/// The predicates that a list uses for the local end, including those of its port sets, in ascending order.
fn local_predicates(list: &ResolvedList, predicates: &Predicates) -> Vec<PredicateId> {
    let port_sets = list.local.port_sets.iter();
    let ports = port_sets.flat_map(|port_set| predicates.possible_ports[*port_set as usize].iter());
    let mut all: Vec<PredicateId> =
        list.local.predicates.iter().copied().chain(ports.map(|port| port.2)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn restrict(set: &PredicateSet, asked: &[PredicateId]) -> PredicateSet {
    set.iter().copied().filter(|predicate| asked.binary_search(predicate).is_ok()).collect()
}

/// For each family, the predicates in `asked` that are true of a pod's addresses. `None` if they differ between two
/// addresses of one family.
fn constant(sets: &PodPredicateSets, asked: &[PredicateId]) -> Option<LocalPredicateSets> {
    let of_family = |family: Family| -> Option<PredicateSet> {
        let sets = sets.iter().filter(|(of, ..)| *of == family);
        let mut restricted = sets.map(|(_, _, set)| restrict(set, asked));
        let first = restricted.next().unwrap_or_default();
        restricted.all(|other| other == first).then_some(first)
    };
    Some([of_family(Family::V4)?, of_family(Family::V6)?])
}
