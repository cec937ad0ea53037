//! What selectors match, and why they match nothing; each is looked up once.

use std::collections::HashMap;

use manx_objects::State;
use manx_objects::code::Code;
use manx_objects::object::{Object, ObjectKey, Pairs};
use manx_policy_compiler::model::{NAMESPACE, NAMESPACE_PREFIX, ORCHESTRATOR};
use manx_policy_compiler::selector::Selector;

use super::skipped::{SkippedKind, skipped_kinds};
use super::why::why;
use super::{Asked, Language};
use crate::check::scene::{Member, Role, Scene};

/// How many comparisons of a part with a member are spent on reasons: enough for every selector of all but very large
/// inputs in which almost nothing fits.
const MOST_COMPARISONS: usize = 3_000_000;

/// What a reason depends on: the selector, whose policy it is, whether it is the policy's own, and whether the policy is
/// cluster-wide.
type Key = (Selector, Language, bool, bool);

/// See the module.
pub(super) struct Found<'m> {
    pub(super) scene: &'m Scene<'m>,
    pub(super) members: &'m [Member<'m>],
    /// The members that have a namespace, by it.
    by_namespace: HashMap<&'m str, Vec<&'m Member<'m>>>,
    /// The workloads and services with their own labels, which no selector sees.
    pub(super) labelled: Vec<(&'m ObjectKey, &'m Pairs)>,
    pub(super) skipped: Vec<SkippedKind<'m>>,
    /// Whether the input is a piece of a cluster, as what a chart makes: it has neither a Node nor kube-system.
    pub(super) is_piece: bool,
    matches: HashMap<Selector, Matches<'m>>,
    reasons: HashMap<Key, Option<(Code, String)>>,
    comparisons: usize,
}

/// What a selector matches: whether an endpoint, and the first others if not.
#[derive(Clone, Copy, Default)]
pub(super) struct Matches<'m> {
    pub(super) endpoint: bool,
    pub(super) on_host: Option<&'m Member<'m>>,
    pub(super) set: Option<&'m Member<'m>>,
}

impl<'m> Found<'m> {
    pub(super) fn new(scene: &'m Scene<'m>, members: &'m [Member<'m>]) -> Self {
        let mut by_namespace: HashMap<&str, Vec<&Member<'_>>> = HashMap::new();
        for member in members {
            if let Some(namespace) = member.namespace() {
                by_namespace.entry(namespace).or_default().push(member);
            }
        }
        let labelled = scene.contents().objects.iter().filter_map(|(key, stored)| {
            let State::Valid(object) = &stored.state else { return None };
            let labels = match &**object {
                Object::Workload(workload) => &workload.labels,
                Object::Service(service) => &service.labels,
                _ => return None,
            };
            (!labels.is_empty()).then_some((key, labels))
        });
        Self {
            scene,
            members,
            by_namespace,
            labelled: labelled.collect(),
            skipped: skipped_kinds(scene.contents()),
            is_piece: scene.nodes().is_empty() && !scene.namespaces().contains_key("kube-system"),
            matches: HashMap::new(),
            reasons: HashMap::new(),
            comparisons: 0,
        }
    }

    /// The members that a selector may match by the namespaces that it requires.
    pub(super) fn candidates<'f>(
        &'f self,
        selector: &'f Selector,
    ) -> Box<dyn Iterator<Item = &'m Member<'m>> + 'f> {
        match selector.required_values(NAMESPACE) {
            None => Box::new(self.members.iter()),
            Some(namespaces) => {
                let each = namespaces.into_iter().filter_map(|name| self.by_namespace.get(name));
                Box::new(each.flatten().copied())
            }
        }
    }

    /// What a selector matches.
    pub(super) fn find(&mut self, selector: &Selector) -> Matches<'m> {
        if let Some(found) = self.matches.get(selector) {
            return *found;
        }
        let mut found = self.search(selector, |member| selector.matches(&member.labels));
        if !found.endpoint {
            found = self.search(selector, |member| member.fits(selector));
        }
        self.matches.insert(selector.clone(), found);
        found
    }

    fn search(&self, selector: &Selector, fits: impl Fn(&Member<'_>) -> bool) -> Matches<'m> {
        let mut found = Matches::default();
        for member in self.candidates(selector).filter(|member| fits(member)) {
            match member.role {
                Role::Endpoint => {
                    found.endpoint = true;
                    break;
                }
                Role::OnHost => found.on_host = found.on_host.or(Some(member)),
                Role::Set => found.set = found.set.or(Some(member)),
            }
        }
        found
    }

    /// Whether the input has anything of what a selector is meant for. A selector of pods says nothing without pods.
    pub(super) fn has_what_is_meant(&self, selector: &Selector) -> bool {
        let endpoints = || self.members.iter().filter(|member| member.role != Role::Set);
        let only_pods = |key: &str| {
            [NAMESPACE, ORCHESTRATOR].contains(&key) || key.starts_with(NAMESPACE_PREFIX)
        };
        let asks_for_pods = selector.required_labels().iter().any(|(key, _)| only_pods(key));
        endpoints().any(|member| member.labels.pod)
            || (!asks_for_pods && endpoints().next().is_some())
    }

    /// Why a selector matches nothing, and the code of the problem. `None`: it may be meant for what the input lacks.
    pub(super) fn why(&mut self, asked: Asked<'_>) -> Option<(Code, String)> {
        let of_cluster = asked.namespace.is_empty();
        let key = (asked.selector.clone(), asked.language, asked.subject, of_cluster);
        if let Some(reason) = self.reasons.get(&key) {
            return reason.clone();
        }
        self.comparisons += self.members.len() * (asked.selector.conjuncts().len() + 1)
            + self.labelled.len()
            + self.scene.namespaces().len();
        let reason = if self.comparisons > MOST_COMPARISONS {
            let reason = "nothing in the input fits all of it".to_owned();
            (!asked.looks_beyond(self)).then_some((Code::SelectorMatchesNothing, reason))
        } else {
            why(asked, self)
        };
        self.reasons.insert(key, reason.clone());
        reason
    }
}
