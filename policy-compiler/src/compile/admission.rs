//! Which local endpoints are compiled, if the policies of all together are true of too much: an address of each of many
//! sets, or a pod of each of many selectors. The endpoints of a namespace stay or go together, and the namespaces that
//! ask least come first, so what others ask costs a namespace nothing that asks little. The node's own endpoints always
//! stay. An endpoint that is left out gets no tables: nothing passes for it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Mark, Model};
use crate::peers::{Members, Weights, most_truths};
use crate::resolve::{LocalName, PolicyOrder, ResolveCache, Terms, resolve};

/// Weights may add up to one part of this many of the truths that may be counted: a truth of an address may count three
/// times, as that of a member, of its surroundings and of itself.
pub(crate) const SHARE: usize = 3;

/// The namespaces that are closed.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    closed: BTreeSet<String>,
    /// The local endpoints of these.
    pub(crate) left_out: BTreeSet<LocalName>,
    /// What it was when that was decided.
    decided: Option<State>,
}

/// What a decision rests on: policies, network sets, and the namespaces of the local endpoints. Pods that come and go
/// elsewhere count at the next one.
#[derive(Debug, PartialEq)]
struct State {
    marks: [Mark; 2],
    namespaces: BTreeSet<String>,
}

impl State {
    fn new(model: &Model, local: &BTreeSet<LocalName>) -> Self {
        let namespaces = local.iter().map(|name| name.namespace.clone()).collect();
        Self { marks: [model.policies.mark(), model.network_sets.mark()], namespaces }
    }
}

impl Admission {
    /// Those that are compiled.
    pub(crate) fn admitted<'l>(
        &mut self,
        model: &Model,
        local: &'l BTreeSet<LocalName>,
    ) -> Cow<'l, BTreeSet<LocalName>> {
        if !self.closed.is_empty() && self.decided != Some(State::new(model, local)) {
            self.decide(model, local, SHARE);
        }
        let is_closed = |name: &&LocalName| self.closed.contains(&name.namespace);
        self.left_out = local.iter().filter(is_closed).cloned().collect();
        if self.left_out.is_empty() {
            return Cow::Borrowed(local);
        }
        Cow::Owned(local.difference(&self.left_out).cloned().collect())
    }

    /// Whether some namespace is closed.
    pub(crate) fn is_closing(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Decides who is left out, by one part of `share` of what may be counted.
    pub(crate) fn decide(&mut self, model: &Model, local: &BTreeSet<LocalName>, share: usize) {
        self.closed = closed(model, local, share);
        self.decided = Some(State::new(model, local));
    }
}

/// See the module.
fn closed(model: &Model, local: &BTreeSet<LocalName>, share: usize) -> BTreeSet<String> {
    let (mut cache, mut order) = (ResolveCache::default(), PolicyOrder::default());
    let resolved = resolve(model, local, &mut cache, &mut order, false);
    let members = Members::from_model(model);
    let mut weights = Weights::new(model, &members);

    let mut asked: BTreeMap<&str, Terms> = BTreeMap::new();
    for (name, lists) in &resolved.endpoints {
        let asked = asked.entry(&name.namespace).or_default();
        for list in lists.values().filter_map(|list| resolved.lists.get(*list)) {
            asked.extend(&list.peer);
            asked.extend(&list.local);
        }
        asked.sort();
    }
    let weighed = asked.into_iter().map(|(namespace, terms)| {
        let each = weights.of_terms(&terms, &cache.vocabulary);
        let sum = each.iter().flatten().sum::<usize>();
        (sum, namespace, terms, each)
    });
    let mut namespaces: Vec<_> = weighed.collect();
    namespaces.sort_by_key(|(sum, namespace, ..)| (!namespace.is_empty(), *sum));

    let mut left = most_truths(model) / share;
    let mut paid = Terms::default();
    let mut closed = BTreeSet::new();
    for (_, namespace, terms, [of_predicates, of_port_sets]) in namespaces {
        let predicates = terms.predicates.iter().zip(of_predicates);
        let predicates = predicates.filter(|(it, _)| paid.predicates.binary_search(it).is_err());
        let port_sets = terms.port_sets.iter().zip(of_port_sets);
        let port_sets = port_sets.filter(|(it, _)| paid.port_sets.binary_search(it).is_err());
        let sum: usize = predicates.chain(port_sets).map(|(_, weight)| weight).sum();
        if sum > left && !namespace.is_empty() {
            closed.insert(namespace.to_owned());
            continue;
        }
        left = left.saturating_sub(sum);
        paid.extend(&terms);
        paid.sort();
    }
    closed
}
