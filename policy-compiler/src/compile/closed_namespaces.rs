//! Chooses the namespaces whose local endpoints are compiled, if the policies of all endpoints together are too
//! expensive: they have too many rules, or too many predicates are true of the same addresses or pods (*truths*). The
//! endpoints of one namespace are compiled together or not at all. Namespaces with the smallest policies are chosen
//! first, so that large policies of other namespaces do not affect them. The node's own endpoints always stay. An
//! endpoint that is left out gets no tables: nothing passes for it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Mark, Model};
use crate::peers::{Members, Weights, most_truths};
use crate::resolve::{LocalName, PolicyOrder, ResolveCache, Resolved, Terms, resolve};

/// The weights of all namespaces may add up to the largest allowed number of truths, divided by this number. The
/// reason: one truth of an address may count three times, for the member, for the surroundings of the address, and for
/// the address itself.
pub(crate) const SHARE: usize = 3;

/// The policies of all namespaces together may have at most this [price](crate::resolve::Resolved::prices). A
/// compilation from nothing then takes about a second.
const MOST_PRICE: usize = 2 << 20;

/// The namespaces that are not compiled (closed).
#[derive(Debug)]
pub(crate) struct ClosedNamespaces {
    /// The limit for the price of the policies of all namespaces together.
    pub(crate) most_price: usize,
    /// Whether the number of truths of each namespace is limited. This begins when a compilation has counted too many
    /// truths.
    pub(crate) bounds_truths: bool,
    closed: BTreeSet<String>,
    /// The local endpoints of the closed namespaces.
    pub(crate) left_out: BTreeSet<LocalName>,
    /// The inputs of the last decision.
    decided: Option<DecisionInputs>,
}

/// The inputs of a decision: policies, network sets, the namespaces of the local endpoints, and the local endpoints of
/// closed namespaces. If only other objects have changed, the decision is not repeated.
#[derive(Debug, PartialEq)]
struct DecisionInputs {
    marks: [Mark; 2],
    namespaces: BTreeSet<String>,
    closed: BTreeSet<LocalName>,
}

impl DecisionInputs {
    fn new(model: &Model, local: &BTreeSet<LocalName>, closed: &BTreeSet<String>) -> Self {
        let namespaces = local.iter().map(|name| name.namespace.clone()).collect();
        let is_closed = |name: &&LocalName| closed.contains(&name.namespace);
        let closed = local.iter().filter(is_closed).cloned().collect();
        Self { marks: [model.policies.mark(), model.network_sets.mark()], namespaces, closed }
    }
}

impl Default for ClosedNamespaces {
    fn default() -> Self {
        let (closed, left_out) = Default::default();
        let (most_price, bounds_truths, decided) = (MOST_PRICE, false, None);
        Self { most_price, bounds_truths, closed, left_out, decided }
    }
}

impl ClosedNamespaces {
    /// Whether the price of the policies is above the limit.
    pub(crate) fn is_too_dear(&self, model: &Model, resolved: &Resolved) -> bool {
        resolved.prices(model).into_values().sum::<usize>() > self.most_price
    }

    /// The local endpoints that are compiled.
    pub(crate) fn admitted<'l>(
        &mut self,
        model: &Model,
        local: &'l BTreeSet<LocalName>,
    ) -> Cow<'l, BTreeSet<LocalName>> {
        let is_decided = || self.decided == Some(DecisionInputs::new(model, local, &self.closed));
        if !self.closed.is_empty() && !is_decided() {
            self.review(model, local);
        }
        let is_closed = |name: &&LocalName| self.closed.contains(&name.namespace);
        self.left_out = local.iter().filter(is_closed).cloned().collect();
        if self.left_out.is_empty() {
            return Cow::Borrowed(local);
        }
        Cow::Owned(local.difference(&self.left_out).cloned().collect())
    }

    /// Whether any namespace is closed.
    pub(crate) fn is_closing(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Decides again which namespaces are closed. If no namespace is closed now, the number of truths is no longer
    /// limited.
    pub(crate) fn review(&mut self, model: &Model, local: &BTreeSet<LocalName>) {
        self.decide(model, local, SHARE);
        self.bounds_truths &= self.is_closing();
    }

    /// Decides which namespaces are closed. If truths are limited, all namespaces together get the largest allowed
    /// number of truths, divided by `share`.
    pub(crate) fn decide(&mut self, model: &Model, local: &BTreeSet<LocalName>, share: usize) {
        let truths = if self.bounds_truths { most_truths(model) / share } else { usize::MAX };
        self.closed = closed(model, local, [truths, self.most_price]);
        self.decided = Some(DecisionInputs::new(model, local, &self.closed));
    }
}

/// The terms that the policies of a namespace use.
struct NamespaceTerms<'n> {
    /// The fraction of the limit of truths or of the limit of price that the namespace uses, whichever is larger.
    part: f64,
    namespace: &'n str,
    terms: Terms,
    /// The weights of the predicates and of the port sets among these terms.
    each: [Vec<usize>; 2],
    price: usize,
}

/// Returns the namespaces to close, so that the others stay within the limits of truths and price. Namespaces that use
/// the smallest part of the limits stay open first.
fn closed(
    model: &Model,
    local: &BTreeSet<LocalName>,
    [mut truths_left, mut price_left]: [usize; 2],
) -> BTreeSet<String> {
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
    let prices = resolved.prices(model);
    let weighed = asked.into_iter().map(|(namespace, terms)| {
        let price = prices.get(namespace).copied().unwrap_or_default();
        let each = weights.of_terms(&terms, &cache.vocabulary);
        let sum = each.iter().flatten().sum::<usize>();
        let part = (sum as f64 / truths_left as f64).max(price as f64 / price_left as f64);
        NamespaceTerms { part, namespace, terms, each, price }
    });
    let mut namespaces: Vec<NamespaceTerms<'_>> = weighed.collect();
    namespaces.sort_by(|a, b| {
        let own_first = b.namespace.is_empty().cmp(&a.namespace.is_empty());
        own_first.then(a.part.total_cmp(&b.part))
    });

    let mut paid = Terms::default();
    let mut closed = BTreeSet::new();
    for NamespaceTerms { namespace, terms, each: [of_predicates, of_port_sets], price, .. } in
        namespaces
    {
        let predicates = terms.predicates.iter().zip(of_predicates);
        let predicates = predicates.filter(|(it, _)| paid.predicates.binary_search(it).is_err());
        let port_sets = terms.port_sets.iter().zip(of_port_sets);
        let port_sets = port_sets.filter(|(it, _)| paid.port_sets.binary_search(it).is_err());
        let sum: usize = predicates.chain(port_sets).map(|(_, weight)| weight).sum();
        if (sum > truths_left || price > price_left) && !namespace.is_empty() {
            closed.insert(namespace.to_owned());
            continue;
        }
        truths_left = truths_left.saturating_sub(sum);
        price_left = price_left.saturating_sub(price);
        paid.extend(&terms);
        paid.sort();
    }
    closed
}
