//! Finds objects that match a selector's labels but are outside the selector's place: they are in another namespace, or
//! are not pods. Describes selectors that would match these objects.

use manx_objects::NAMESPACE_NAME;
use manx_objects::object::Pairs;
use manx_policy_compiler::model::{
    KUBERNETES, LabelView, NAMESPACE, NAMESPACE_PREFIX, ORCHESTRATOR,
};
use manx_policy_compiler::selector::{LabelSource, Labels, Selector};

use super::asked::Language;
use super::skipped::SkippedKind;
use super::why::Question;
use crate::check::parts::{Part, Whose, listed};
use crate::check::scene::{Member, Role};

impl<'m> Question<'_, 'm> {
    /// Returns a member that matches the selector in everything except its place.
    pub(super) fn fits_elsewhere(&self) -> Option<&'m Member<'m>> {
        let of_namespace = |part: &&Part<'_>| part.whose() == Whose::Namespace;
        if self.rest.iter().all(|part| of_namespace(&part)) {
            return None;
        }
        let fits = |member: &&Member<'_>| {
            // A namespaceSelector of Calico can also match members without a namespace.
            let outside = member.namespace().is_none() && self.asked.language == Language::Calico;
            let mut parts = self.rest.iter().filter(|part| !(outside && of_namespace(part)));
            parts.all(|part| part.0.matches(&member.labels))
        };
        let may_be =
            |member: &&Member<'_>| member.role != Role::OnHost && self.asked.may_mean(member.role);
        self.found.members().iter().filter(may_be).find(fits)
    }

    /// Returns a text about a member that matches in everything except its place: the selector or the field that would
    /// reach it.
    pub(super) fn reach(&self, member: &Member<'_>) -> String {
        let title = member.title();
        let language = self.asked.language;
        if !self.place.iter().all(|part| self.is_imposed(part.0)) {
            return format!("{title} fits all but where it is");
        }
        match member.namespace() {
            None if self.asked.subject => {
                format!("{title} fits, and only a GlobalNetworkPolicy selects it")
            }
            Some(_) if self.asked.subject => {
                format!("{title} fits, and a policy selects in its own namespace only")
            }
            None if language == Language::Calico => {
                format!("{title} fits: namespaceSelector: global() reaches it")
            }
            Some(namespace) if language == Language::Calico => {
                let by_name = language.by_name(namespace);
                format!("{title} fits: namespaceSelector: {by_name} reaches it")
            }
            Some(namespace) if member.labels.pod => {
                let by_name = language.by_name(namespace);
                format!(
                    "{title} fits: a namespaceSelector beside the podSelector reaches it (matchLabels: {{{by_name}}})"
                )
            }
            _ => {
                let addresses = language.of_addresses();
                format!(
                    "{title} fits, and this kind of policy selects pods only: its addresses can be named in {addresses}"
                )
            }
        }
    }

    /// Returns whether a part limits the selector's place because of the policy's kind, not because the selector names
    /// a label.
    fn is_imposed(&self, part: &Selector) -> bool {
        *part == Selector::equals(NAMESPACE, self.asked.namespace)
            || *part == Selector::has(NAMESPACE)
            || (*part == Selector::equals(ORCHESTRATOR, KUBERNETES)
                && self.asked.language != Language::Calico)
    }

    /// Returns a text about other objects with a label that the part requires, if no member in the selector's place has
    /// this label.
    pub(super) fn other_place_of(&self, part: Part<'_>) -> Option<String> {
        if !part.asks_for_label() {
            return None;
        }
        match part.whose() {
            Whose::Namespace => self.in_place_of_namespaces(part),
            Whose::Own => self.in_place_of_pods(part),
            Whose::Account | Whose::AccountName => None,
        }
    }

    /// Returns a text about other objects with a label that no namespace of a pod has.
    fn in_place_of_namespaces(&self, part: Part<'_>) -> Option<String> {
        let namespaces = self.found.scene.namespaces();
        let there = namespaces.iter().find(|(_, labels)| part.0.matches(&OfNamespace(labels)));
        if let Some((name, _)) = there {
            return Some(format!("namespace {name} has it, and no pod that this may match"));
        }
        let language = self.asked.language;
        let values = part.label().map(|label| label.values).unwrap_or_default();
        let is_name = |name: &&&str| **name == "kube-system" || namespaces.contains_key(**name);
        if let Some(name) = values.iter().find(is_name) {
            let by_name = language.by_name(name);
            return Some(format!("namespace {name} is selected by {by_name}"));
        }
        let mut pods = self.found.members().iter().filter(|member| member.labels.pod);
        let member = pods.find(|pod| part.0.matches(&OfNamespace(pod.labels.own)))?;
        let field = language.of_pods();
        Some(format!("{} has it, and only a {field} looks at labels of pods", member.title()))
    }

    /// Returns a text about other objects with a label that no pod in the selector's place has.
    fn in_place_of_pods(&self, part: Part<'_>) -> Option<String> {
        let namespaces = self.found.scene.namespaces();
        let labelled = self.found.labelled.iter().find(|(key, labels)| {
            part.0.matches(&OfObject(labels))
                && namespaces
                    .get(&key.namespace)
                    .is_some_and(|it| self.may_be_in(&key.namespace, it))
        });
        if let Some((key, _)) = labelled {
            return Some(format!("{key} has it in its own metadata, and its pods do not have it"));
        }
        let (name, _) = namespaces.iter().find(|(_, labels)| part.0.matches(*labels))?;
        Some(if self.asked.subject && self.asked.language == Language::Kubernetes {
            format!("namespace {name} has it, and a podSelector looks at labels of pods only")
        } else {
            format!(
                "namespace {name} has it, and only a namespaceSelector looks at labels of namespaces"
            )
        })
    }
}

impl Question<'_, '_> {
    /// Returns a text about the kinds that Manx does not read and whose pods the selector may match. Returns `None` if
    /// the selector's place has no objects of such kinds.
    pub(super) fn makers(&self) -> Option<String> {
        let found = self.found;
        let places = found.scene.namespaces();
        let looks_at = |namespace: &str| {
            let named = Labels::from([(NAMESPACE_NAME.to_owned(), namespace.to_owned())]);
            let labels = places.get(namespace).unwrap_or(&named);
            self.may_be_in(namespace, labels)
        };
        let mut anywhere = None;
        let makes = |skipped: &&SkippedKind<'_>| {
            skipped.namespaces.iter().any(|namespace| match *namespace {
                "" => *anywhere.get_or_insert_with(|| places.keys().any(|name| looks_at(name))),
                name => looks_at(name),
            })
        };
        let makers = found.skipped.iter().filter(makes);
        let makers: Vec<String> = makers.map(|it| format!("{} ({})", it.kind, it.group)).collect();
        (!makers.is_empty()).then(|| listed(makers, ", "))
    }

    /// Returns whether the selector may match a pod of a namespace, whatever labels the pod has.
    fn may_be_in(&self, namespace: &str, labels: &Labels) -> bool {
        let own = Labels::new();
        let namespace = Some((namespace, labels));
        let view =
            LabelView { own: &own, namespace, service_account: None, pod: true, inherited: &[] };
        let of_namespace = self.rest.iter().filter(|part| part.whose() == Whose::Namespace);
        self.place.iter().chain(of_namespace).all(|part| part.0.matches(&view))
    }
}

/// Labels that are matched as labels of a namespace.
struct OfNamespace<'l>(&'l Labels);

impl LabelSource for OfNamespace<'_> {
    fn label(&self, key: &str) -> Option<&str> {
        self.0.label(key.strip_prefix(NAMESPACE_PREFIX)?)
    }
}

/// The labels of an object (a workload or a service) that selectors never match.
struct OfObject<'l>(&'l Pairs);

impl LabelSource for OfObject<'_> {
    fn label(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }
}
