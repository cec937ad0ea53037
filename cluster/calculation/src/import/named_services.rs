//! The services that rules name. The model has the endpoints of these services only. No verdict depends on other
//! services, and slices change with every pod that is added or removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use manx_objects::contents::Contents;
use manx_objects::object::{Kind, Object};
use manx_policy_compiler::model::{ObjectName, Policy, Rule};

use super::{Cluster, member};

/// The services, each with the number of references from rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NamedServices(BTreeMap<ObjectName, usize>);

impl NamedServices {
    pub(super) fn add<'r>(&mut self, rules: impl IntoIterator<Item = &'r Rule>) {
        for service in rules.into_iter().flat_map(services) {
            *self.0.entry(service.clone()).or_default() += 1;
        }
    }

    pub(super) fn remove<'r>(&mut self, rules: impl IntoIterator<Item = &'r Rule>) {
        for service in rules.into_iter().flat_map(services) {
            let Some(count) = self.0.get_mut(service) else { continue };
            *count -= 1;
            if *count == 0 {
                self.0.remove(service);
            }
        }
    }
}

/// Returns the rules of a policy.
pub(super) fn rules(policy: &Policy) -> impl Iterator<Item = &Rule> {
    policy.ingress.iter().chain(&policy.egress).flatten()
}

/// Returns the services that a rule names.
pub(super) fn services(rule: &Rule) -> impl Iterator<Item = &ObjectName> {
    let entities = [&rule.source, &rule.destination].into_iter().flat_map(|end| &end.entities);
    entities.flatten().filter_map(|entity| entity.service.as_ref())
}

impl Cluster {
    /// Imports the endpoints of all services that rules name. All rules must be imported before.
    pub(super) fn import_services(&mut self, contents: &Contents) {
        if self.named_services.0.is_empty() {
            return;
        }
        for (key, stored) in contents.of_kind(Kind::EndpointSlice) {
            let Some(Object::EndpointSlice(slice)) = stored.state.valid() else { continue };
            let Some(service) = &slice.service else { continue };
            let name = ObjectName::new(&key.namespace, service);
            if self.named_services.0.contains_key(&name) {
                let service = self.model.services.entry(name).or_default();
                Arc::make_mut(service).insert(member::service_endpoints(slice));
            }
        }
    }

    /// Updates the endpoints of a service from its slices. The service gets endpoints only if a rule names it. Returns
    /// whether the model has changed.
    pub(super) fn put_service(&mut self, contents: &Contents, name: &ObjectName) -> bool {
        let mut now = BTreeSet::new();
        if self.named_services.0.contains_key(name) {
            for (_, stored) in contents.of_kind_in(Kind::EndpointSlice, &name.namespace) {
                if let Some(Object::EndpointSlice(slice)) = stored.state.valid()
                    && slice.service.as_ref() == Some(&name.name)
                {
                    now.insert(member::service_endpoints(slice));
                }
            }
        }
        let before = self.model.services.get(name);
        if before.map_or(now.is_empty(), |before| **before == now) {
            return false;
        }
        if now.is_empty() {
            self.model.services.remove(name);
        } else {
            self.model.services.insert(name.clone(), Arc::new(now));
        }
        true
    }
}
