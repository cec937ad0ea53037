//! Which local endpoints are compiled, if the policies of all together are true of too much: an address of each of many
//! sets, or a pod of each of many selectors. The endpoints of a namespace stay or go together, and the namespaces that
//! ask least come first. So a namespace that asks no more than its share has it, whatever others ask. An endpoint that is
//! left out gets no tables: nothing passes for it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Mark, Model};
use crate::peers::{Members, Weights, most_truths};
use crate::resolve::{LocalName, PolicyOrder, ResolveCache, Terms, resolve};

/// A truth of an address may be counted three times, as that of a member, of its surroundings and of itself.
const COUNTED: usize = 3;

/// The endpoints that are left out.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    pub(crate) left_out: BTreeSet<LocalName>,
    /// Policies and network sets, as they were then.
    decided: Option<[Mark; 2]>,
}

impl Admission {
    /// Those that are compiled. Who is left out may differ only if policies or network sets do.
    pub(crate) fn admitted<'l>(
        &mut self,
        model: &Model,
        local: &'l BTreeSet<LocalName>,
    ) -> Cow<'l, BTreeSet<LocalName>> {
        if !self.left_out.is_empty() && self.decided != Some(state(model)) {
            self.decide(model, local);
        }
        if self.left_out.is_empty() {
            return Cow::Borrowed(local);
        }
        self.left_out.retain(|name| local.contains(name));
        Cow::Owned(local.difference(&self.left_out).cloned().collect())
    }

    /// Decides who is left out.
    pub(crate) fn decide(&mut self, model: &Model, local: &BTreeSet<LocalName>) {
        self.left_out = left_out(model, local);
        self.decided = Some(state(model));
    }

    /// Leaves out all.
    pub(crate) fn close(&mut self, model: &Model, local: &BTreeSet<LocalName>) {
        self.left_out.clone_from(local);
        self.decided = Some(state(model));
    }
}

fn state(model: &Model) -> [Mark; 2] {
    [model.policies.mark(), model.network_sets.mark()]
}

/// See the module.
fn left_out(model: &Model, local: &BTreeSet<LocalName>) -> BTreeSet<LocalName> {
    let (mut cache, mut order) = (ResolveCache::default(), PolicyOrder::default());
    let resolved = resolve(model, local, &mut cache, &mut order, false);
    let members = Members::from_model(model);
    let vocabulary = &cache.vocabulary;
    let mut weights = Weights::new(model, &members, vocabulary);

    let mut asked: BTreeMap<&str, Terms> = BTreeMap::new();
    for (name, lists) in &resolved.endpoints {
        let asked = asked.entry(&name.namespace).or_default();
        for list in lists.values().filter_map(|list| resolved.lists.get(*list)) {
            asked.extend(&list.peer);
            asked.extend(&list.local);
        }
        asked.sort();
    }
    let of_predicates: Vec<usize> =
        vocabulary.predicates.iter().map(|it| weights.of_predicate(it)).collect();
    let of_port_sets: Vec<usize> =
        vocabulary.port_sets.iter().map(|it| weights.of_port_set(it)).collect();

    let sum = |terms: &Terms| {
        let predicates = terms.predicates.iter().map(|it| of_predicates[*it as usize]);
        predicates.chain(terms.port_sets.iter().map(|it| of_port_sets[*it as usize])).sum::<usize>()
    };
    let mut namespaces: Vec<(&str, Terms)> = asked.into_iter().collect();
    // Those of the node itself come first.
    namespaces.sort_by_cached_key(|(namespace, terms)| (!namespace.is_empty(), sum(terms)));
    let mut left = (most_truths(model) / COUNTED).saturating_sub(weights.of_none());
    let mut paid = Terms::default();
    let mut closed = BTreeSet::new();
    for (namespace, mut terms) in namespaces {
        terms.remove(&paid);
        match left.checked_sub(sum(&terms)) {
            Some(rest) => {
                left = rest;
                paid.extend(&terms);
                paid.sort();
            }
            None => drop(closed.insert(namespace)),
        }
    }
    local.iter().filter(|name| closed.contains(&*name.namespace)).cloned().collect()
}
