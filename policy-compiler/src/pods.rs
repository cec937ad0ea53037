//! Which pods a selector may match, without a look at all of them.

use std::sync::Arc;

use ahash::AHashMap;

use crate::model::{
    Endpoint, Labels, Model, NAMESPACE, NAMESPACE_PREFIX, ORCHESTRATOR, ObjectName,
    SERVICE_ACCOUNT, SERVICE_ACCOUNT_PREFIX, View,
};
use crate::selector::Selector;

/// The pods by their own labels; made when first needed, as it takes a look at all.
#[derive(Debug, Default)]
pub(crate) struct Pods {
    /// Of all pods that were there since.
    names: Vec<ObjectName>,
    /// By key and value their places in `names`; some may be gone, or have other labels.
    of: AHashMap<String, AHashMap<String, Vec<u32>>>,
}

/// Names without a pod are kept up to this many and as many as there are pods.
const SPARE: usize = 1024;

static NONE: Labels = Labels::new();

impl Pods {
    /// A pod came, or changed. What it was before does no harm.
    pub(crate) fn note(&mut self, model: &Model, name: &ObjectName, pod: &Endpoint) {
        if self.names.is_empty() {
            return;
        }
        if self.names.len() > model.endpoints.len() * 2 + SPARE {
            *self = Self::default();
            return;
        }
        self.add(name, pod);
    }

    fn add(&mut self, name: &ObjectName, pod: &Endpoint) {
        let place = self.names.len() as u32;
        self.names.push(name.clone());
        for (key, value) in pod.labels.iter() {
            if !self.of.contains_key(key) {
                self.of.insert(key.clone(), AHashMap::new());
            }
            let Some(of_key) = self.of.get_mut(key) else { continue };
            match of_key.get_mut(value) {
                Some(places) => places.push(place),
                None => drop(of_key.insert(value.clone(), vec![place])),
            }
        }
    }

    /// Pods of a model, those among them that a selector matches.
    pub(crate) fn that_may_match<'m>(
        &mut self,
        model: &'m Model,
        selector: &Selector,
    ) -> Vec<(&'m ObjectName, &'m Arc<Endpoint>)> {
        if let Some(namespaces) = selector.required_values(NAMESPACE) {
            return namespaces.into_iter().flat_map(|it| in_namespace(model, it)).collect();
        }
        let required = selector.required_labels();
        let of_namespace = required.iter().find(|(key, _)| key.starts_with(NAMESPACE_PREFIX));
        if let Some((key, Some(values))) = of_namespace {
            let has = |(name, labels): &(&'m String, &'m Labels)| {
                let namespace = Some((name.as_str(), *labels));
                let view = View {
                    own: &NONE,
                    namespace,
                    service_account: None,
                    pod: false,
                    inherited: &NONE,
                };
                view.value(key).is_some_and(|value| values.contains(&value))
            };
            // A pod's namespace may be missing; then it has no labels, but a name.
            if !values.is_empty() && !key.ends_with("projectcalico.org/name") {
                let namespaces = model.namespaces.iter().filter(has);
                return namespaces.flat_map(|(name, _)| in_namespace(model, name)).collect();
            }
        }
        let own = required.iter().find(|(key, _)| {
            !matches!(*key, NAMESPACE | ORCHESTRATOR | SERVICE_ACCOUNT)
                && !key.starts_with(NAMESPACE_PREFIX)
                && !key.starts_with(SERVICE_ACCOUNT_PREFIX)
        });
        let Some((key, values)) = own else { return model.endpoints.iter().collect() };
        if self.names.is_empty() {
            model.endpoints.iter().for_each(|(name, pod)| self.add(name, pod));
        }
        let Some(of_key) = self.of.get(*key) else { return Vec::new() };
        let mut places: Vec<u32> = match values {
            Some(values) => {
                values.iter().filter_map(|it| of_key.get(*it)).flatten().copied().collect()
            }
            None => of_key.values().flatten().copied().collect(),
        };
        places.sort_unstable();
        places.dedup();
        // A pod that has changed has several places.
        let names = places.iter().filter_map(|place| self.names.get(*place as usize));
        let mut names: Vec<_> = names.collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter().filter_map(|name| model.endpoints.get_key_value(name)).collect()
    }
}

fn in_namespace<'m>(
    model: &'m Model,
    namespace: &str,
) -> impl Iterator<Item = (&'m ObjectName, &'m Arc<Endpoint>)> {
    let from = ObjectName::new(namespace, "");
    let namespace = from.namespace.clone();
    model.endpoints.range(from..).take_while(move |(name, _)| name.namespace == namespace)
}
