//! The members that selectors may match, and the reasons why selectors match nothing. Each is calculated once.

use std::collections::HashMap;

use manx_objects::code::Code;
use manx_objects::object::{Object, ObjectKey, Pairs};
use manx_policy_compiler::model::{NAMESPACE, NAMESPACE_PREFIX, ORCHESTRATOR};
use manx_policy_compiler::selector::Selector;

use super::skipped::{SkippedKind, skipped_kinds};
use super::why::why;
use super::{Asked, Language};
use crate::check::scene::{Member, Role, Scene};
use crate::check::selected::Selected;

/// The largest number of comparisons of a part with a member that are spent on reasons. It is enough for every
/// selector, except in very large inputs in which almost no selector matches.
const MOST_COMPARISONS: usize = 3_000_000;

/// The inputs of a reason: the selector, its policy's language, whether it is the policy's own selector, and whether
/// the policy is cluster-wide.
type Key = (Selector, Language, bool, bool);

/// See the module.
pub(super) struct Found<'f, 'm> {
    pub(super) scene: &'m Scene<'m>,
    pub(super) selected: &'f mut Selected<'m>,
    /// The workloads and services with their own labels, which no selector matches.
    pub(super) labelled: Vec<(&'m ObjectKey, &'m Pairs)>,
    pub(super) skipped: Vec<SkippedKind<'m>>,
    /// Whether the input is only a part of a cluster, such as a chart's output: it has neither a Node nor kube-system.
    pub(super) is_piece: bool,
    matches: HashMap<Selector, Matches<'m>>,
    reasons: HashMap<Key, Option<(Code, String)>>,
    comparisons: usize,
}

/// The result of a selector: whether it matches an endpoint, and the first match of each other role.
#[derive(Clone, Copy, Default)]
pub(super) struct Matches<'m> {
    pub(super) endpoint: bool,
    pub(super) on_host: Option<&'m Member<'m>>,
    pub(super) set: Option<&'m Member<'m>>,
}

impl<'f, 'm> Found<'f, 'm> {
    pub(super) fn new(scene: &'m Scene<'m>, selected: &'f mut Selected<'m>) -> Self {
        let labelled = scene.contents().all_valid().filter_map(|(key, object)| {
            let labels = match object {
                Object::Workload(workload) => &workload.labels,
                Object::Service(service) => &service.labels,
                _ => return None,
            };
            (!labels.is_empty()).then_some((key, labels))
        });
        Self {
            scene,
            selected,
            labelled: labelled.collect(),
            skipped: skipped_kinds(scene.contents()),
            is_piece: scene.nodes().is_empty() && !scene.namespaces().contains_key("kube-system"),
            matches: HashMap::new(),
            reasons: HashMap::new(),
            comparisons: 0,
        }
    }

    /// The members in the namespaces that a selector requires.
    pub(super) fn candidates<'s>(
        &'s self,
        selector: &'s Selector,
    ) -> Box<dyn Iterator<Item = &'m Member<'m>> + 's> {
        match selector.required_values(NAMESPACE) {
            None => Box::new(self.members().iter()),
            Some(namespaces) => Box::new(self.selected.within(namespaces)),
        }
    }

    pub(super) fn members(&self) -> &'m [Member<'m>] {
        self.selected.members
    }

    /// The members that a selector matches. `None` if they are not known, see [`Selected`].
    pub(super) fn find(&mut self, selector: &Selector) -> Option<Matches<'m>> {
        if let Some(found) = self.matches.get(selector) {
            return Some(*found);
        }
        let all = self.selected.find(selector)?;
        let first = |role| {
            let mut those = all.iter().map(|it| &self.members()[*it]);
            those.find(|member| member.role == role)
        };
        let found = Matches {
            endpoint: first(Role::Endpoint).is_some(),
            on_host: first(Role::OnHost),
            set: first(Role::Set),
        };
        self.matches.insert(selector.clone(), found);
        Some(found)
    }

    /// Whether the input has members of the kind that a selector is meant for. A selector of pods cannot be checked
    /// without pods.
    pub(super) fn has_what_is_meant(&self, selector: &Selector) -> bool {
        let endpoints = || self.members().iter().filter(|member| member.role != Role::Set);
        let only_pods = |key: &str| {
            [NAMESPACE, ORCHESTRATOR].contains(&key) || key.starts_with(NAMESPACE_PREFIX)
        };
        let asks_for_pods = selector.required_labels().iter().any(|(key, _)| only_pods(key));
        endpoints().any(|member| member.labels.pod)
            || (!asks_for_pods && endpoints().next().is_some())
    }

    /// The reason why a selector matches nothing, and the code of the problem. `None`: the selector may be meant for
    /// objects that the input does not contain.
    pub(super) fn why(&mut self, asked: Asked<'_>) -> Option<(Code, String)> {
        let of_cluster = asked.namespace.is_empty();
        let key = (asked.selector.clone(), asked.language, asked.subject, of_cluster);
        if let Some(reason) = self.reasons.get(&key) {
            return reason.clone();
        }
        self.comparisons += self.members().len() * (asked.selector.conjuncts().len() + 1)
            + self.labelled.len()
            + self.scene.namespaces().len();
        let reason = if self.comparisons > MOST_COMPARISONS {
            let reason = "nothing in the input fits all of it".to_owned();
            let is_meant = !asked.looks_beyond(self);
            if !is_meant {
                self.selected.leave_out();
            }
            is_meant.then_some((Code::SelectorMatchesNothing, reason))
        } else {
            why(asked, self)
        };
        self.reasons.insert(key, reason.clone());
        reason
    }
}
