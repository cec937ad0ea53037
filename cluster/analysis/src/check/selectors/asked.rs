//! A selector to check: the selector of a policy, or of a peer in a rule.

use manx_objects::NAMESPACE_NAME;
use manx_objects::object::{Object, ObjectKey};
use manx_policy_compiler::model::{KUBERNETES, NAMESPACE, ORCHESTRATOR, SERVICE_ACCOUNT};
use manx_policy_compiler::selector::{LabelSource, Selector};

use crate::check::scene::Role;

/// The API of a policy. It determines the names of the policy's fields.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Language {
    Kubernetes,
    /// `ClusterNetworkPolicy`, and the older kinds that it replaces.
    Cluster,
    Calico,
}

impl Language {
    /// Returns a selector that matches a namespace by its name.
    pub(super) fn by_name(self, namespace: &str) -> String {
        match self {
            Self::Calico => format!("projectcalico.org/name == \"{namespace}\""),
            Self::Kubernetes | Self::Cluster => format!("{NAMESPACE_NAME}: {namespace}"),
        }
    }

    /// Returns the name of the field that selects pods by their own labels.
    pub(super) const fn of_pods(self) -> &'static str {
        match self {
            Self::Calico => "selector",
            Self::Kubernetes | Self::Cluster => "podSelector",
        }
    }

    /// Returns the name of the field that lists addresses.
    pub(super) const fn of_addresses(self) -> &'static str {
        match self {
            Self::Kubernetes => "an ipBlock",
            Self::Cluster => "networks",
            Self::Calico => "nets",
        }
    }
}

/// A selector to check.
#[derive(Clone, Copy)]
pub(super) struct Asked<'s> {
    pub(super) selector: &'s Selector,
    pub(super) language: Language,
    /// The policy's namespace. It is empty if the policy has none.
    pub(super) namespace: &'s str,
    /// Whether this is the selector of the policy itself. If not, it is the selector of a peer.
    pub(super) subject: bool,
}

impl<'s> Asked<'s> {
    pub(super) fn new(
        key: &'s ObjectKey,
        object: &Object,
        selector: &'s Selector,
        subject: bool,
    ) -> Self {
        let language = match object {
            Object::NetworkPolicy(_) => Language::Kubernetes,
            Object::ClusterNetworkPolicy(_) => Language::Cluster,
            _ => Language::Calico,
        };
        Self { selector, language, namespace: &key.namespace, subject }
    }

    /// Returns whether the selector may be meant for a member of this role. The selector of a
    /// policy is never meant for a network set.
    pub(super) fn may_mean(self, role: Role) -> bool {
        !self.subject || role != Role::Set
    }

    /// Returns whether the selector has no conditions.
    pub(super) fn is_bare(self) -> bool {
        self.selector.matches(&Bare(self.namespace))
    }
}

/// A pod without labels of its own, in a namespace. A selector that matches it has no conditions.
struct Bare<'a>(&'a str);

impl LabelSource for Bare<'_> {
    fn label(&self, key: &str) -> Option<&str> {
        match key {
            NAMESPACE => Some(self.0),
            ORCHESTRATOR => Some(KUBERNETES),
            SERVICE_ACCOUNT => Some("default"),
            _ => None,
        }
    }
}
