//! The members that selectors match (each selector is evaluated once), and facts about the input.

use std::collections::HashMap;

use manx_objects::object::{Object, ObjectKey, Pairs};
use manx_policy_compiler::model::{NAMESPACE, NAMESPACE_PREFIX, ORCHESTRATOR};
use manx_policy_compiler::selector::Selector;

use super::asked::Asked;
use super::skipped::{SkippedKind, skipped_kinds};
use crate::check::scene::{Member, Role, Scene};
use crate::check::selected::Selected;

/// See the module.
pub(super) struct Found<'f, 'm> {
    pub(super) scene: &'m Scene<'m>,
    pub(super) selected: &'f mut Selected<'m>,
    /// The workloads and services with their own labels. Selectors never match these labels.
    pub(super) labelled: Vec<(&'m ObjectKey, &'m Pairs)>,
    pub(super) skipped: Vec<SkippedKind<'m>>,
    /// Whether the input is only a part of a cluster, such as a chart's output: it has neither a Node nor kube-system.
    pub(super) is_piece: bool,
    matches: HashMap<Selector, Matches<'m>>,
}

/// What a selector matches: whether it matches an endpoint, and the first match of each other role.
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
        }
    }

    /// Returns the members in the namespaces that a selector requires.
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

    /// Returns the members that a selector matches, or `None` if the bound of [`Selected`] is reached.
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

    /// Returns whether the input has members of the type that a selector is meant for. For example, a selector of pods
    /// cannot be checked if the input has no pods.
    pub(super) fn has_what_is_meant(&self, selector: &Selector) -> bool {
        let endpoints = || self.members().iter().filter(|member| member.role != Role::Set);
        let only_pods = |key: &str| {
            [NAMESPACE, ORCHESTRATOR].contains(&key) || key.starts_with(NAMESPACE_PREFIX)
        };
        let asks_for_pods = selector.required_labels().iter().any(|(key, _)| only_pods(key));
        endpoints().any(|member| member.labels.pod)
            || (!asks_for_pods && endpoints().next().is_some())
    }

    /// Returns whether a peer's selector may be meant for namespaces outside the input. This is so if the input is only
    /// a part of a cluster, and the selector is meant neither for namespaces of that part nor for members without a
    /// namespace.
    pub(super) fn lacks_place_of(&self, asked: Asked<'_>) -> bool {
        let has = |name: &&str| self.scene.namespaces().contains_key(*name);
        self.is_piece
            && !asked.subject
            && match asked.selector.required_values(NAMESPACE) {
                Some(names) => !names.iter().any(has),
                None => !asked.selector.conjuncts().contains(&&Selector::not_has(NAMESPACE)),
            }
    }
}
