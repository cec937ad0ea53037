//! The chains of local endpoints: their lists of policies, with what is true of themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use ahash::AHashMap;

use crate::addresses::Addresses;
use crate::classes::Kinds;
use crate::image::{ChainId, Identity, Local, LocalFacts};
use crate::members::Members;
use crate::model::{Family, Model};
use crate::predicates::{AtomTruths, Predicates, Truth, Truths};
use crate::prefix_map::PrefixMap;
use crate::resolve::{LocalName, PredicateId, Resolved, ResolvedList};
use crate::stable::Stable;

/// What is true of local endpoints themselves.
pub(crate) struct LocalEnds<'a> {
    pub(crate) model: &'a Model,
    pub(crate) members: &'a Members<'a>,
    pub(crate) truths: &'a Truths,
    pub(crate) kinds: &'a Kinds,
    pub(crate) atoms: &'a AtomTruths,
    pub(crate) addresses: &'a Addresses,
    pub(crate) prefixes: &'a PrefixMap,
}

/// What is true of each address of a pod.
pub(crate) type PodTruths = Vec<(Family, Identity, Truth)>;

impl LocalEnds<'_> {
    /// The truths of pods.
    pub(crate) fn pods(&self, names: &BTreeSet<LocalName>) -> AHashMap<LocalName, PodTruths> {
        names.iter().filter_map(|name| Some((name.clone(), self.truths_of(name)?))).collect()
    }

    /// The truths of a pod's addresses, but for those of whom nobody knows enough. `None` for a host endpoint: its end of a
    /// packet may be any address.
    fn truths_of(&self, name: &LocalName) -> Option<PodTruths> {
        let pod = self.model.endpoints.get(name)?;
        let own = self.truths.of_member(self.members.endpoint(name)?);
        let mut truths = Vec::with_capacity(pod.addresses.len());
        for address in &pod.addresses {
            let identity = Identity(self.prefixes.lookup(*address));
            if identity == Identity::UNKNOWN {
                continue;
            }
            let holders = self.addresses.holders(*address, None);
            let atom = holders.atom.map(|atom| self.atoms.of(atom)).unwrap_or_default();
            let truth = self.kinds.local_truth(own, &holders.kinds, &atom);
            truths.push((Family::of(*address), identity, truth));
        }
        Some(truths)
    }
}

/// A chain as it is being made.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Made {
    /// Index of its list.
    pub(crate) list: usize,
    /// See [`Chain::local`](crate::image::Chain::local).
    pub(crate) local: Option<LocalFacts>,
    /// Where `local` is `None`, of a pod what is true, of all that its list asks, of each of its addresses.
    pub(crate) each: Vec<(Identity, Truth)>,
}

/// The chains of all local endpoints.
pub(crate) struct Chains {
    pub(crate) endpoints: BTreeMap<Arc<LocalName>, Local>,
    pub(crate) all: Vec<Made>,
}

impl Chains {
    /// `pods` is what is true of local pods.
    pub(crate) fn of(
        resolved: &Resolved,
        predicates: &Predicates,
        pods: &AHashMap<LocalName, PodTruths>,
    ) -> Self {
        let mut chains = Self { endpoints: BTreeMap::new(), all: Vec::new() };
        let mut endpoints = Vec::with_capacity(resolved.endpoints.len());
        let mut known: AHashMap<Made, ChainId> = AHashMap::new();
        for (name, lists) in &resolved.endpoints {
            let mut local = Local { chains: BTreeMap::new(), revision: 0 };
            let mut hasher = Stable::default();
            for (at, index) in lists {
                let list = &resolved.lists[*index];
                let asked = asked(list, predicates);
                let mut made = Made { list: *index, local: None, each: Vec::new() };
                if asked.is_empty() {
                    made.local = Some(LocalFacts::default());
                } else if let Some(truths) = pods.get(&**name) {
                    made.local = constant(truths, &asked);
                    if made.local.is_none() {
                        let each = truths.iter();
                        made.each =
                            each.map(|(_, id, truth)| (*id, restrict(truth, &asked))).collect();
                    }
                }
                list.revision().hash(&mut hasher);
                let same = made.local.iter().flatten();
                for truth in same.chain(made.each.iter().map(|(_, truth)| truth)) {
                    let texts = truth.iter().map(|p| &predicates.all[*p as usize]);
                    // Their numbers depend on what was asked before.
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

/// The predicates that a list asks of the local end, answers to its questions among them.
fn asked(list: &ResolvedList, predicates: &Predicates) -> BTreeSet<PredicateId> {
    let questions = list.local.questions.iter();
    let answers = questions.flat_map(|question| predicates.answers[*question as usize].iter());
    list.local.predicates.iter().copied().chain(answers.map(|answer| answer.2)).collect()
}

fn restrict(truth: &Truth, asked: &BTreeSet<PredicateId>) -> Truth {
    truth.iter().copied().filter(|predicate| asked.contains(predicate)).collect()
}

/// What is true, of all that is asked, for each family, if it is the same for all addresses of that.
fn constant(truths: &PodTruths, asked: &BTreeSet<PredicateId>) -> Option<LocalFacts> {
    let of_family = |family: Family| -> Option<Truth> {
        let truths = truths.iter().filter(|(of, ..)| *of == family);
        let mut restricted = truths.map(|(_, _, truth)| restrict(truth, asked));
        let first = restricted.next().unwrap_or_default();
        restricted.all(|other| other == first).then_some(first)
    };
    Some([of_family(Family::V4)?, of_family(Family::V6)?])
}
