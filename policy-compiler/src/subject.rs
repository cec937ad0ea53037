//! Subjects: what predicates see of those who may stand behind an address, whatever their addresses are.
//!
//! Two pods of one namespace with the same labels, service account and named ports are one subject; so are two network
//! sets with the same labels, and the endpoints of one service with the same ports. A cluster has far fewer subjects than
//! members, and predicates are evaluated once for each.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use ahash::AHashMap;

use crate::model::{
    Endpoint, HostEndpoint, Labels, Model, NAMESPACE, NamedPort, NetworkSet, ObjectName, Protocol,
    View,
};
use crate::selector::LabelSource;

/// Index of a subject in [`Subjects`].
pub(crate) type SubjectId = u32;

/// The name and labels of a namespace or of a service account.
pub(crate) type Named = (String, Option<Labels>);

/// See the module.
#[derive(Debug, Clone)]
pub(crate) enum Subject {
    /// A pod, by its namespace's and its service account's number.
    Pod { namespace: u32, account: Option<u32>, endpoint: Arc<Endpoint> },
    /// A network set, by its namespace's number, if it has one.
    Set { namespace: Option<u32>, set: Arc<NetworkSet> },
    /// A host endpoint, with the labels of its profiles.
    Host { inherited: Arc<Labels>, host: Arc<HostEndpoint> },
    /// An endpoint of a service.
    Service { service: ObjectName, ports: Arc<Vec<(Protocol, Option<u16>)>> },
}

impl PartialEq for Subject {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Pod { namespace, account, endpoint },
                Self::Pod { namespace: namespace_b, account: account_b, endpoint: b },
            ) => {
                (namespace, account) == (namespace_b, account_b)
                    && (Arc::ptr_eq(endpoint, b)
                        || (endpoint.labels == b.labels && endpoint.named_ports == b.named_ports))
            }
            (Self::Set { namespace, set }, Self::Set { namespace: namespace_b, set: b }) => {
                namespace == namespace_b && set.labels == b.labels
            }
            (Self::Host { inherited, host }, Self::Host { inherited: inherited_b, host: b }) => {
                inherited == inherited_b
                    && host.labels == b.labels
                    && host.named_ports == b.named_ports
            }
            (Self::Service { service, ports }, Self::Service { service: b, ports: ports_b }) => {
                service == b && ports == ports_b
            }
            _ => false,
        }
    }
}

impl Eq for Subject {}

impl Hash for Subject {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::mem::discriminant(self).hash(state);
        match self {
            Self::Pod { namespace, account, endpoint } => {
                (namespace, account, &endpoint.labels, &endpoint.named_ports).hash(state);
            }
            Self::Set { namespace, set } => (namespace, &set.labels).hash(state),
            Self::Host { inherited, host } => {
                (inherited, &host.labels, &host.named_ports).hash(state);
            }
            Self::Service { service, ports } => (service, ports).hash(state),
        }
    }
}

/// The numbers of subjects and of what they refer to, for the life of a compiler.
#[derive(Debug, Default)]
pub(crate) struct Subjects {
    names: AHashMap<Named, u32>,
    ids: AHashMap<Subject, SubjectId>,
    /// Namespaces and service accounts by their numbers.
    named: Vec<Named>,
    all: Vec<Subject>,
}

impl Subjects {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The number of a namespace or service account with these labels.
    pub(crate) fn name(&mut self, name: &str, labels: Option<&Labels>) -> u32 {
        let key = (name.to_owned(), labels.cloned());
        *self.names.entry(key).or_insert_with_key(|key| {
            self.named.push(key.clone());
            self.named.len() as u32 - 1
        })
    }

    /// The number of a subject.
    pub(crate) fn number(&mut self, subject: Subject) -> SubjectId {
        *self.ids.entry(subject).or_insert_with_key(|subject| {
            self.all.push(subject.clone());
            self.all.len() as u32 - 1
        })
    }

    /// The subject of this number.
    pub(crate) fn get(&self, id: SubjectId) -> Option<&Subject> {
        self.all.get(id as usize)
    }

    /// What selectors see of a subject; nothing of a service's endpoints.
    pub(crate) fn view<'s>(&'s self, subject: &'s Subject) -> Option<View<'s>> {
        static NONE: Labels = Labels::new();
        let named = |id: u32| self.named.get(id as usize);
        let namespace = |id: u32| {
            named(id).map(|(name, labels)| (name.as_str(), labels.as_ref().unwrap_or(&NONE)))
        };
        match subject {
            Subject::Pod { namespace: id, account, endpoint } => Some(View {
                own: &endpoint.labels,
                namespace: namespace(*id),
                service_account: account
                    .and_then(named)
                    .map(|(name, labels)| (name.as_str(), labels.as_ref())),
                pod: true,
                inherited: &NONE,
            }),
            Subject::Set { namespace: id, set } => Some(View {
                own: &set.labels,
                namespace: id.and_then(namespace),
                service_account: None,
                pod: false,
                inherited: &NONE,
            }),
            Subject::Host { inherited, host } => Some(Model::host_view(host, inherited)),
            Subject::Service { .. } => None,
        }
    }
}

impl Subject {
    /// The port names that it gives numbers.
    pub(crate) fn named_ports(&self) -> impl Iterator<Item = &NamedPort> {
        let ports = match self {
            Self::Pod { endpoint, .. } => Some(&endpoint.named_ports),
            Self::Host { host, .. } => Some(&host.named_ports),
            Self::Set { .. } | Self::Service { .. } => None,
        };
        ports.into_iter().flatten()
    }
}

/// Subjects by what a selector must find in them.
pub(crate) struct Index<'s> {
    subjects: &'s Subjects,
    in_use: &'s [SubjectId],
    by_namespace: AHashMap<&'s str, Vec<SubjectId>>,
    /// By key, for those that were asked for: by value.
    by_label: AHashMap<String, AHashMap<String, Vec<SubjectId>>>,
}

impl<'s> Index<'s> {
    /// An index of the subjects `in_use`.
    pub(crate) fn new(subjects: &'s Subjects, in_use: &'s [SubjectId]) -> Self {
        let mut by_namespace: AHashMap<&str, Vec<SubjectId>> = AHashMap::new();
        for id in in_use {
            let namespace = match subjects.get(*id) {
                Some(Subject::Pod { namespace, .. }) => Some(*namespace),
                Some(Subject::Set { namespace, .. }) => *namespace,
                _ => None,
            };
            let name = namespace.and_then(|namespace| subjects.named.get(namespace as usize));
            if let Some((name, _)) = name {
                by_namespace.entry(name).or_default().push(*id);
            }
        }
        Self { subjects, in_use, by_namespace, by_label: AHashMap::new() }
    }

    /// The subjects that match a selector, in no order.
    pub(crate) fn matching(&mut self, selector: &crate::selector::Selector) -> Vec<SubjectId> {
        let mut matching = Vec::new();
        let subjects = self.subjects;
        let mut ask = |id: SubjectId| {
            let view = subjects.get(id).and_then(|subject| subjects.view(subject));
            if view.is_some_and(|view| selector.matches(&view)) {
                matching.push(id);
            }
        };
        if let Some(namespaces) = selector.required_values(NAMESPACE) {
            let ids = namespaces.into_iter().filter_map(|name| self.by_namespace.get(name));
            ids.flatten().for_each(|id| ask(*id));
        } else if let Some((key, values)) = selector.required_label() {
            let by_value = self.by_label.entry(key.to_owned()).or_insert_with_key(|key| {
                let mut by_value: AHashMap<String, Vec<SubjectId>> = AHashMap::new();
                for id in self.in_use {
                    let view = subjects.get(*id).and_then(|subject| subjects.view(subject));
                    if let Some(value) = view.as_ref().and_then(|view| view.label(key)) {
                        by_value.entry(value.to_owned()).or_default().push(*id);
                    }
                }
                by_value
            });
            match values {
                Some(values) => {
                    let ids = values.into_iter().filter_map(|value| by_value.get(value));
                    ids.flatten().for_each(|id| ask(*id));
                }
                None => by_value.values().flatten().for_each(|id| ask(*id)),
            }
        } else {
            self.in_use.iter().for_each(|id| ask(*id));
        }
        matching
    }
}
