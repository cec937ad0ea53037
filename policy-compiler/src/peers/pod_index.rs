//! Finds the pods that a selector may match, without reading all pods.

use std::sync::Arc;

use ahash::AHashMap;

use crate::common::Pinned;
use crate::model::{Endpoint, LabelView, Model, ObjectName};
use crate::selector::{Labels, NAMESPACE, NAMESPACE_PREFIX, Selector, is_reserved};

/// The pods by their own labels. It is built at first use, because building reads all pods. Pods with the same label
/// set share one entry.
#[derive(Debug, Default)]
pub(crate) struct PodIndex {
    names: Names,
    /// For each label set, the indexes in `names` of its pods. Some of these pods may no longer exist, or may have
    /// other labels now.
    sets: Vec<Vec<u32>>,
    /// The index of each label set in `sets`.
    numbers: AHashMap<Pinned<Arc<Labels>>, u32>,
    /// The indexes of the label sets that contain a label, by the label's key and value.
    of: AHashMap<String, AHashMap<String, Vec<u32>>>,
}

/// The names of pods in one string, because a cluster has many pods.
#[derive(Debug, Default)]
struct Names {
    /// The namespace and the name of each pod.
    text: String,
    /// For each pod, the end of its namespace and the end of its name in `text`.
    ends: Vec<[usize; 2]>,
}

impl Names {
    fn len(&self) -> usize {
        self.ends.len()
    }

    fn push(&mut self, ObjectName { namespace, name }: &ObjectName) {
        self.text.push_str(namespace);
        let middle = self.text.len();
        self.text.push_str(name);
        self.ends.push([middle, self.text.len()]);
    }

    fn at(&self, place: u32) -> Option<ObjectName> {
        let [middle, end] = *self.ends.get(place as usize)?;
        let before = (place as usize).checked_sub(1).and_then(|before| self.ends.get(before));
        let start = before.map_or(0, |[_, end]| *end);
        Some(ObjectName::new(self.text.get(start..middle)?, self.text.get(middle..end)?))
    }
}

/// When there are more names than twice the number of pods plus this, the index is dropped and built again at its next
/// use.
const SPARE: usize = 1024;

static NO_LABELS: Labels = Labels::new();

impl PodIndex {
    /// Adds a pod that is new or has changed. Its old entry may stay.
    pub(crate) fn record(&mut self, model: &Model, name: &ObjectName, pod: &Endpoint) {
        if self.names.len() == 0 {
            return;
        }
        if self.names.len() > model.endpoints.len() * 2 + SPARE {
            *self = Self::default();
            return;
        }
        self.add(name, &pod.labels);
    }

    fn add(&mut self, name: &ObjectName, labels: &Arc<Labels>) {
        let place = self.names.len() as u32;
        self.names.push(name);
        let Self { sets, of, .. } = self;
        let number = *self.numbers.entry(Pinned(Arc::clone(labels))).or_insert_with(|| {
            let number = sets.len() as u32;
            for (key, value) in labels.iter() {
                if !of.contains_key(key) {
                    of.insert(key.clone(), AHashMap::new());
                }
                let Some(of_key) = of.get_mut(key) else { continue };
                match of_key.get_mut(value) {
                    Some(sets) => sets.push(number),
                    None => drop(of_key.insert(value.clone(), vec![number])),
                }
            }
            sets.push(Vec::new());
            number
        });
        if let Some(places) = sets.get_mut(number as usize) {
            places.push(place);
        }
    }

    /// Adds all pods. They are scattered in memory, so several are read together and their cache misses overlap.
    fn add_all(&mut self, model: &Model) {
        const SIDE_BY_SIDE: usize = 64;
        let mut all = model.endpoints.iter();
        loop {
            let names: Vec<_> = all.by_ref().take(SIDE_BY_SIDE).collect();
            if names.is_empty() {
                return;
            }
            let labels: Vec<&Arc<Labels>> = names.iter().map(|(_, pod)| &pod.labels).collect();
            names.iter().zip(labels).for_each(|((name, _), labels)| self.add(name, labels));
        }
    }

    /// The pods of a model that a selector may match: all pods that it matches, and possibly others.
    pub(crate) fn candidates<'m>(
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
                let view = LabelView {
                    own: &NO_LABELS,
                    namespace,
                    service_account: None,
                    pod: false,
                    inherited: &[],
                };
                view.value(key).is_some_and(|value| values.contains(&value))
            };
            // A selector of the namespace's name may match a namespace without an object, which this search would not
            // find.
            if !values.is_empty() && !key.ends_with("projectcalico.org/name") {
                let namespaces = model.namespaces.iter().filter(has);
                return namespaces.flat_map(|(name, _)| in_namespace(model, name)).collect();
            }
        }
        let own = required.iter().find(|(key, _)| !is_reserved(key));
        let Some((key, values)) = own else { return model.endpoints.iter().collect() };
        if self.names.len() == 0 {
            self.add_all(model);
        }
        let Some(of_key) = self.of.get(*key) else { return Vec::new() };
        let mut sets: Vec<u32> = match values {
            Some(values) => {
                values.iter().filter_map(|it| of_key.get(*it)).flatten().copied().collect()
            }
            None => of_key.values().flatten().copied().collect(),
        };
        sets.sort_unstable();
        sets.dedup();
        let sets = sets.iter().filter_map(|set| self.sets.get(*set as usize));
        let places = sets.flatten();
        // A pod that has changed has several entries.
        let mut names: Vec<_> = places.filter_map(|place| self.names.at(*place)).collect();
        names.sort_unstable();
        names.dedup();
        names.iter().filter_map(|name| model.endpoints.get_key_value(name)).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_a_selector_matches_are_among_those_that_it_may() {
        let labels = |app: usize| Arc::new(Labels::from([("app".to_owned(), format!("a{app}"))]));
        let shared = [labels(0), labels(1), labels(2)];
        let mut model = Model::default();
        let name = |at: usize| ObjectName::new(format!("ns{}", at % 3), format!("p{at}"));
        let pod = |at: usize| Endpoint {
            // Some pods share their labels, and some have equal labels without sharing them.
            labels: if at.is_multiple_of(5) { labels(0) } else { Arc::clone(&shared[at % 3]) },
            ..Endpoint::default()
        };
        for at in 0..200 {
            model.endpoints.insert(name(at), Arc::new(pod(at)));
        }
        let mut pods = PodIndex::default();
        let found = |pods: &mut PodIndex, model: &Model, app: &str| -> Vec<ObjectName> {
            let selector = Selector::equals("app", app);
            let may = pods.candidates(model, &selector).into_iter();
            let matching = may.filter(|(name, pod)| selector.matches(&model.pod_view(name, pod)));
            matching.map(|(name, _)| name.clone()).collect()
        };
        let expected = |model: &Model, app: &str| -> Vec<ObjectName> {
            let has = |pod: &Endpoint| pod.labels.get("app").is_some_and(|value| value == app);
            let pods = model.endpoints.iter().filter(|(_, pod)| has(pod));
            pods.map(|(name, _)| name.clone()).collect()
        };
        assert_eq!(expected(&model, "a0").len(), 93);
        for app in ["a0", "a1", "a2", "a3"] {
            assert_eq!(found(&mut pods, &model, app), expected(&model, app));
        }
        // One pod is removed, one is added, and one gets other labels.
        model.endpoints.remove(&name(7));
        for (at, app) in [(500, 1), (8, 3)] {
            let pod = Endpoint { labels: labels(app), ..Endpoint::default() };
            pods.record(&model, &name(at), &pod);
            model.endpoints.insert(name(at), Arc::new(pod));
        }
        for app in ["a0", "a1", "a2", "a3"] {
            assert_eq!(found(&mut pods, &model, app), expected(&model, app));
        }
        assert_eq!(expected(&model, "a3").len(), 1);
    }
}
