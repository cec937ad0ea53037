//! The terms that may hold for a member, found by a label that they require.

use ahash::AHashMap;

use crate::common::Rebuild;
use crate::model::LabelView;
use crate::peers::{Member, PredicateSet, Predicates, TermsInUse};
use crate::resolve::{PortSet, PortSetId, Predicate, PredicateId};
use crate::selector::{NAMESPACE, ORCHESTRATOR, Selector};

/// The terms, by a label that each of them requires. A term that requires a namespace is found by the namespace.
#[derive(Debug, Default)]
pub(crate) struct TermIndex {
    /// The terms that require one of some values of a key, by key and value.
    of: AHashMap<String, AHashMap<String, Vec<Term>>>,
    anywhere: Vec<Term>,
}

#[derive(Debug, Clone, Copy)]
enum Term {
    Predicate(PredicateId),
    PortSet(PortSetId),
}

impl TermIndex {
    pub(crate) fn new(predicates: &[Predicate], port_sets: &[PortSet], term: &TermsInUse) -> Self {
        let mut all = Self::default();
        let of_peers = (0..).zip(predicates).zip(&term.predicates).filter(|(_, term)| **term);
        for ((id, predicate), _) in of_peers {
            if let Predicate::Members(selector) = predicate {
                all.add(Some(selector), Term::Predicate(id));
            }
        }
        let of_peers = (0..).zip(port_sets).zip(&term.port_sets).filter(|(_, term)| **term);
        for ((id, port_set), _) in of_peers {
            if let PortSet::Named { selector, .. } = port_set {
                all.add(selector.as_ref(), Term::PortSet(id));
            }
        }
        all
    }

    /// Adds a selector that has come into use.
    pub(crate) fn add_selector(&mut self, selector: &Selector, id: PredicateId) {
        self.add(Some(selector), Term::Predicate(id));
    }

    fn add(&mut self, selector: Option<&Selector>, term: Term) {
        let required = selector.map(Selector::required_labels).unwrap_or_default();
        let of_values = required.into_iter().filter(|(key, _)| *key != ORCHESTRATOR);
        let of_values = of_values.filter_map(|(key, values)| Some((key, values?)));
        // Namespaces divide members best, while all pods have the same orchestrator.
        let best = match selector.and_then(|it| it.required_values(NAMESPACE)) {
            Some(values) => Some((NAMESPACE, values)),
            None => of_values.min_by_key(|(_, values)| values.len()),
        };
        let Some((key, values)) = best else { return self.anywhere.push(term) };
        for value in values {
            let of_key = self.of.entry(key.to_owned()).or_default();
            of_key.entry(value.to_owned()).or_default().push(term);
        }
    }

    /// The terms that may hold for a member with these labels.
    fn terms_for<'a>(&'a self, view: &'a LabelView<'_>) -> impl Iterator<Item = Term> + 'a {
        let of_keys = self.of.iter().filter_map(|(key, of)| of.get(view.value(key)?));
        of_keys.flatten().chain(&self.anywhere).copied()
    }
}

/// The predicate set of a member, evaluated for the terms of an index. Returns `Err` if the member gives a name to a
/// port number that no member named when the predicates were evaluated.
pub(crate) fn member_predicate_set(
    index: &TermIndex,
    predicates: &Predicates,
    port_sets: &[PortSet],
    member: &Member<'_>,
) -> Result<PredicateSet, Rebuild> {
    let view = member.view().ok_or(Rebuild)?;
    let mut set = Vec::new();
    for term in index.terms_for(&view) {
        match term {
            Term::Predicate(id) => {
                if let Predicate::Members(selector) =
                    predicates.all.get(id as usize).ok_or(Rebuild)?
                    && selector.matches(&view)
                {
                    set.push(id);
                }
            }
            Term::PortSet(id) => {
                let PortSet::Named { selector, name } =
                    port_sets.get(id as usize).ok_or(Rebuild)?
                else {
                    continue;
                };
                if selector.as_ref().is_some_and(|selector| !selector.matches(&view)) {
                    continue;
                }
                let ports = predicates.possible_ports.get(id as usize).ok_or(Rebuild)?;
                for port in member.named_ports().filter(|port| port.name == *name) {
                    let given = (port.protocol, port.port);
                    let known = ports.iter().find(|it| (it.0, it.1) == given);
                    set.push(known.ok_or(Rebuild)?.2);
                }
            }
        }
    }
    set.sort_unstable();
    set.dedup();
    Ok(set.into())
}
