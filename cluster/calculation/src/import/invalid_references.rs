//! The invalid objects to which rules may refer. A rule with such a reference fails closed.

use std::collections::BTreeSet;

use manx_policy_compiler::model::{Model, NetworkSet, ObjectName, Tier};
use manx_policy_compiler::selector::Selector;

use manx_objects::State;
use manx_objects::contents::Contents;
use manx_objects::object::Kind;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct InvalidReferences<'a> {
    /// Network sets whose labels are known but whose nets are not.
    sets: Vec<(ObjectName, NetworkSet)>,
    /// Whether the labels of any network set are not known.
    unlabelled_set: bool,
    /// The namespaces with an invalid `EndpointSlice`. The slice may belong to any service there.
    services: BTreeSet<&'a str>,
    /// The names of invalid tiers. Objects cannot change the built-in tiers, so these are never
    /// included.
    tiers: BTreeSet<&'a str>,
    /// Whether there is an invalid Node.
    node: bool,
}

impl<'a> InvalidReferences<'a> {
    pub(super) fn new(contents: &'a Contents) -> Self {
        let invalid = |kind| {
            let all = contents.of_kind(kind).map(|(key, stored)| (key, &stored.state));
            all.filter(|(_, state)| matches!(state, State::Invalid(_))).map(|(key, _)| key)
        };
        // The labels of an invalid namespace are not known, so any selector may match the sets in
        // it.
        let broken: BTreeSet<&str> =
            invalid(Kind::Namespace).map(|key| key.name.as_str()).collect();
        let mut references = Self {
            services: invalid(Kind::EndpointSlice).map(|key| key.namespace.as_str()).collect(),
            tiers: invalid(Kind::Tier)
                .map(|key| key.name.as_str())
                .filter(|name| Tier::built_in(name).is_none())
                .collect(),
            node: invalid(Kind::Node).next().is_some(),
            ..Self::default()
        };
        let sets =
            contents.of_kind(Kind::NetworkSet).chain(contents.of_kind(Kind::GlobalNetworkSet));
        for (key, stored) in sets {
            let nowhere = broken.contains(key.namespace.as_str());
            match &stored.state {
                State::Valid(_) => references.unlabelled_set |= nowhere,
                State::Invalid(invalid) => match &invalid.labels {
                    Some(labels) if !nowhere => {
                        let name = ObjectName::new(&key.namespace, &key.name);
                        let set = NetworkSet { labels: labels.to_map(), ..NetworkSet::default() };
                        references.sets.push((name, set));
                    }
                    _ => references.unlabelled_set = true,
                },
            }
        }
        references
    }

    pub(super) fn tier(&self, name: &str) -> bool {
        self.tiers.contains(name)
    }

    pub(super) fn service(&self, namespace: &str) -> bool {
        self.services.contains(namespace)
    }

    /// Returns whether a selector matches a set whose nets are not known.
    pub(super) fn set(&self, selector: &Selector, model: &Model) -> bool {
        self.sets.iter().any(|(name, set)| selector.matches(&model.set_view(name, set)))
    }

    /// Returns whether the labels and addresses of any node are not known.
    pub(super) fn any_node(&self) -> bool {
        self.node
    }

    /// Returns whether there is a set that any selector might match.
    pub(super) fn any_set(&self) -> bool {
        self.unlabelled_set
    }
}
