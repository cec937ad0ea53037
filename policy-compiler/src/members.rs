//! Who stands behind which addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;

use crate::model::{Model, NetworkSet, ObjectName};
use crate::resolve::{Predicate, Question, Resolved};
use crate::subject::{Subject, SubjectId, Subjects};

/// The members of a cluster as subjects.
pub(crate) struct Members {
    /// Addresses and the subjects that have them; of host endpoints and services, too.
    pub(crate) hosts: Vec<(IpAddr, SubjectId)>,
    /// Network sets and their subjects.
    pub(crate) sets: Vec<(SubjectId, Arc<NetworkSet>)>,
    /// The subjects in use, ascending.
    pub(crate) in_use: Vec<SubjectId>,
    /// Those of them that are pods or host endpoints, ascending.
    pub(crate) endpoints: BTreeSet<SubjectId>,
    /// The subject of each local endpoint.
    pub(crate) local: AHashMap<ObjectName, SubjectId>,
}

impl Members {
    /// The members of `model`; of services those that `resolved` asks of.
    pub(crate) fn of(subjects: &mut Subjects, model: &Model, resolved: &Resolved) -> Self {
        let mut members = Self {
            hosts: Vec::with_capacity(model.endpoints.len()),
            sets: Vec::with_capacity(model.network_sets.len()),
            in_use: Vec::new(),
            endpoints: BTreeSet::new(),
            local: AHashMap::new(),
        };
        let mut in_use = Vec::with_capacity(model.endpoints.len());
        members.pods(subjects, model, resolved);
        for (name, host) in &model.host_endpoints {
            let inherited = Arc::new(model.inherited(host));
            let id = subjects.number(Subject::Host { inherited, host: Arc::clone(host) });
            members.hosts.extend(host.addresses.iter().map(|address| (*address, id)));
            members.endpoints.insert(id);
            let name = ObjectName::new("", name.as_str());
            if resolved.endpoints.contains_key(&name) {
                members.local.insert(name, id);
            }
        }
        for (name, set) in &model.network_sets {
            let namespace = (!name.namespace.is_empty()).then(|| {
                subjects.name(&name.namespace, Some(model.namespace_labels(&name.namespace)))
            });
            let id = subjects.number(Subject::Set { namespace, set: Arc::clone(set) });
            members.sets.push((id, Arc::clone(set)));
            in_use.push(id);
        }
        for name in services(resolved) {
            for some in model.services.get(name).into_iter().flat_map(|all| all.iter()) {
                let ports = Arc::new(some.ports.iter().copied().collect());
                let id = subjects.number(Subject::Service { service: name.clone(), ports });
                members.hosts.extend(some.addresses.iter().map(|address| (*address, id)));
                in_use.push(id);
            }
        }
        in_use.extend(&members.endpoints);
        in_use.sort_unstable();
        in_use.dedup();
        members.in_use = in_use;
        members
    }

    fn pods(&mut self, subjects: &mut Subjects, model: &Model, resolved: &Resolved) {
        let mut current: Option<(&str, u32)> = None;
        let mut endpoints = Vec::new();
        for (name, endpoint) in &model.endpoints {
            let namespace = match current {
                Some((same, namespace)) if same == name.namespace => namespace,
                _ => subjects.name(&name.namespace, Some(model.namespace_labels(&name.namespace))),
            };
            current = Some((&name.namespace, namespace));
            let account = endpoint.service_account.as_deref().map(|account| {
                let key = ObjectName::new(name.namespace.as_str(), account);
                subjects.name(account, model.service_accounts.get(&key))
            });
            let subject = Subject::Pod { namespace, account, endpoint: Arc::clone(endpoint) };
            let id = subjects.number(subject);
            self.hosts.extend(endpoint.addresses.iter().map(|address| (*address, id)));
            endpoints.push(id);
            if resolved.endpoints.contains_key(name) {
                self.local.insert(name.clone(), id);
            }
        }
        self.endpoints = endpoints.into_iter().collect();
    }
}

fn services(resolved: &Resolved) -> BTreeSet<&ObjectName> {
    let of_predicates = resolved.predicates.iter().filter_map(|predicate| match predicate {
        Predicate::Service(service) => Some(service),
        _ => None,
    });
    let of_questions = resolved.questions.iter().filter_map(|question| match question {
        Question::Service(service) => Some(service),
        Question::Named { .. } => None,
    });
    of_predicates.chain(of_questions).collect()
}
