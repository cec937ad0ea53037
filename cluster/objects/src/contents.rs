//! The objects of a cluster at one moment, from any source.
//!
//! A source (such as a directory of manifests) assembles [`Contents`], and describes with [`Changes`] how the new
//! contents differ from the previous ones. Code that uses the contents does not depend on the source.
//!
//! - An invalid object is present as [`State::Invalid`], and fails closed.
//! - An object of any kind that two places define differently is invalid, and neither definition is used. The same
//!   content twice only causes a warning. If an object is a workload of a kind that Manx does not read, its first
//!   definition counts.

use std::collections::btree_map;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem;
use std::sync::Arc;

use crate::cursor::Tally;
use crate::invalid::Invalid;
use crate::object::{Controller, Kind, Object, ObjectKey, Owner, Pairs, Service};
use crate::problem::{Cause, MOST_OF_OBJECT, Place, Problem, Severity};
use crate::read::{Entry, State, read};
use crate::tree::shown;

/// All objects at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    pub objects: BTreeMap<ObjectKey, Stored>,
    /// The problems of the objects and of their texts: errors first, then in the order of the texts.
    pub problems: Vec<Problem>,
    /// Whether the source has been read completely at least once. Before that, objects may be missing, and nothing may
    /// pass. Once true, it stays true.
    pub in_sync: bool,
    /// The number of texts (files) that were read, valid or not; 0 if the objects come from an API server.
    pub texts: usize,
    /// Identifies this content: two processes of the same version of Manx that have read the same texts have the same
    /// fingerprint.
    pub fingerprint: u64,
}

/// The difference between contents and the previous ones. Every source of objects reports its changes in this form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changes {
    /// Only these objects and the fingerprint differ. The value of each is the previous definition, or `None` if the
    /// object is new. An object is also included if only its place in the text has changed.
    Objects(BTreeMap<ObjectKey, Option<Stored>>),
    /// Any object may differ.
    Everything,
}

impl Changes {
    /// Combines these changes with the `later` ones: the result is the difference between the first and the last
    /// contents.
    #[must_use]
    pub fn then(self, later: Self) -> Self {
        match (self, later) {
            (Self::Objects(mut all), Self::Objects(later)) => {
                for (key, before) in later {
                    all.entry(key).or_insert(before);
                }
                Self::Objects(all)
            }
            (Self::Everything, _) | (_, Self::Everything) => Self::Everything,
        }
    }
}

/// An object and the place where it is defined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub state: State,
    /// The place of the definition; the first one if there are several.
    pub place: Arc<Place>,
}

/// Assembles [`Contents`] from the definitions of all texts.
#[derive(Debug, Default)]
pub struct Assembly {
    contents: Contents,
    /// The objects that more than one place defines, with the number of reports about each.
    repeated: BTreeMap<ObjectKey, Tally>,
    /// `metadata.uid` of the first definition of each object that has one.
    uids: HashMap<ObjectKey, Arc<str>>,
}

impl Contents {
    /// Builds the contents from manifests in memory (names and texts), as if they were the files of a directory. They
    /// are in sync if every text is YAML or JSON.
    pub fn from_texts<'a>(texts: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let texts: BTreeMap<&str, &str> = texts.into_iter().collect();
        let mut assembly = Assembly::default();
        let mut in_sync = true;
        for (name, text) in texts {
            match read(name, text) {
                Ok(manifest) => {
                    let fingerprint = fingerprint_of_text(name, fingerprint(text));
                    assembly.add_text(fingerprint, &manifest.problems, &manifest.entries);
                }
                Err(fault) => {
                    in_sync = false;
                    assembly.add_text(0, [&*fault], []);
                }
            }
        }
        assembly.finish(in_sync).0
    }

    /// Returns the objects of a kind.
    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (&ObjectKey, &Stored)> {
        let first = ObjectKey { kind, namespace: String::new(), name: String::new() };
        self.objects.range(first..).take_while(move |(key, _)| key.kind == kind)
    }

    pub fn of_kind_in(
        &self,
        kind: Kind,
        namespace: &str,
    ) -> impl Iterator<Item = (&ObjectKey, &Stored)> {
        let first = ObjectKey { kind, namespace: namespace.to_owned(), name: String::new() };
        let end = first.clone();
        let all = self.objects.range(first..);
        all.take_while(move |(key, _)| (key.kind, &key.namespace) == (end.kind, &end.namespace))
    }

    /// Returns the valid object of a key.
    pub fn valid(&self, key: &ObjectKey) -> Option<&Object> {
        self.objects.get(key)?.state.valid()
    }

    /// Returns all valid objects.
    pub fn all_valid(&self) -> impl Iterator<Item = (&ObjectKey, &Object)> {
        self.objects.iter().filter_map(|(key, stored)| Some((key, stored.state.valid()?)))
    }

    /// Returns the topmost controller of a pod, such as the Deployment of its `ReplicaSet` or the `CronJob` of its Job.
    pub fn workload(&self, pod: &ObjectKey) -> Option<Owner> {
        let Object::Pod(wire) = self.valid(pod)? else { return None };
        let mut owner = wire.owner.clone()?;
        // Every chain of controllers ends after two steps. A limit is needed because an owner may own itself.
        for _ in 0..2 {
            let kind = Kind::ALL.into_iter().find(|kind| kind.name() == owner.kind);
            let key = |kind| ObjectKey { kind, name: owner.name.clone(), ..pod.clone() };
            let above = match kind.and_then(|kind| self.valid(&key(kind))) {
                Some(Object::Workload(workload)) => workload.owner.clone(),
                _ => deployment(&wire.labels, &owner),
            };
            match above {
                Some(above) => owner = above,
                None => break,
            }
        }
        Some(owner)
    }

    /// Returns the Endpoints of a service, if the cluster copies them to `EndpointSlices`. Returns `None` if the
    /// service has a selector, if there are no Endpoints, or if the Endpoints are not to be copied (for example,
    /// because a label forbids it). The cluster also does not copy Endpoints if the service has slices that come from
    /// elsewhere; this function does not check that.
    pub fn copied_endpoints(&self, key: &ObjectKey, service: &Service) -> Option<&State> {
        let key = ObjectKey { kind: Kind::Endpoints, ..key.clone() };
        let state = &self.objects.get(&key).filter(|_| service.selector.is_empty())?.state;
        let is_copied = match state {
            State::Valid(object) => {
                matches!(&**object, Object::Endpoints(endpoints) if !endpoints.slices.is_empty())
            }
            State::Invalid(_) => true,
        };
        is_copied.then_some(state)
    }

    /// Frees unused memory: the nodes of a `BTreeMap` are only half full if keys were added in order.
    pub fn pack(&mut self) {
        self.objects = mem::take(&mut self.objects).into_iter().collect();
    }

    /// Adds an object or replaces its definition, and returns the previous definition. If the new definition equals the
    /// previous one, only the place changes.
    pub fn put(&mut self, entry: &Entry) -> Option<Stored> {
        let Some(stored) = self.objects.get_mut(&entry.key) else {
            let stored = Stored { state: entry.state.clone(), place: entry.place.clone() };
            self.objects.insert(entry.key.clone(), stored);
            return None;
        };
        let state =
            if stored.state == entry.state { stored.state.clone() } else { entry.state.clone() };
        Some(mem::replace(stored, Stored { state, place: entry.place.clone() }))
    }
}

/// Returns the Deployment of a `ReplicaSet` that is not in the input. This works because the name of such a
/// `ReplicaSet` ends in the pods' template hash.
fn deployment(pod: &Pairs, owner: &Owner) -> Option<Owner> {
    let hash = pod.get("pod-template-hash").filter(|_| owner.kind == "ReplicaSet")?;
    let name = owner.name.strip_suffix(hash.as_str())?.strip_suffix('-')?.to_owned();
    Some(Owner { kind: "Deployment".to_owned(), name })
}

impl Assembly {
    /// Reports problems that belong to no text.
    pub fn report<'a>(&mut self, problems: impl IntoIterator<Item = &'a Problem>) {
        self.contents.problems.extend(problems.into_iter().cloned());
    }

    /// Adds the objects that a text defines, and its problems. `fingerprint` identifies the text's name and content
    /// ([`fingerprint_of_text`]); it is 0 if the text could not be read.
    pub fn add_text<'a>(
        &mut self,
        fingerprint: u64,
        problems: impl IntoIterator<Item = &'a Problem>,
        entries: impl IntoIterator<Item = &'a Entry>,
    ) {
        self.contents.texts += 1;
        self.contents.fingerprint = self.contents.fingerprint.wrapping_add(fingerprint);
        self.report(problems);
        for entry in entries {
            self.add(entry);
        }
    }

    /// Adds a definition. A second definition of an object is reported and counted in `repeated`.
    fn add(&mut self, entry: &Entry) {
        let Self { contents, repeated, uids } = self;
        match contents.objects.entry(entry.key.clone()) {
            btree_map::Entry::Vacant(vacant) => {
                if let Some(uid) = &entry.uid {
                    uids.insert(entry.key.clone(), Arc::clone(uid));
                }
                vacant.insert(Stored { state: entry.state.clone(), place: entry.place.clone() });
            }
            btree_map::Entry::Occupied(mut occupied) => {
                let tally = repeated.entry(entry.key.clone()).or_default();
                if entry.key.kind == Kind::Workload(Controller::Other) {
                    return;
                }
                let stored = occupied.get_mut();
                let mut other = stored.place.to_string();
                let same = stored.state == entry.state;
                if let Some(uids) = both_uids(uids.get(&entry.key), entry.uid.as_ref()) {
                    other.push_str(&uids);
                }
                if !same {
                    // The previous state is moved, not copied. It grows with each definition of the object, so copies
                    // would be expensive for an object with very many definitions.
                    let before = mem::replace(&mut stored.state, entry.state.clone());
                    stored.state = State::Invalid(Box::new(either(before, entry.state.clone())));
                }
                let severity = if same { Severity::Warning } else { Severity::Error };
                if tally.count(severity) > MOST_OF_OBJECT {
                    return;
                }
                contents.problems.push(Problem {
                    severity,
                    place: Place::clone(&entry.place),
                    object: Some(entry.key.clone()),
                    field: String::new(),
                    cause: if same {
                        Cause::Repeated { other }
                    } else {
                        Cause::Duplicate { other }
                    },
                    line: None,
                });
            }
        }
    }

    /// Returns the contents, and the objects that more than one place defines.
    pub fn finish(self, in_sync: bool) -> (Contents, BTreeSet<ObjectKey>) {
        let Self { mut contents, repeated, .. } = self;
        contents.in_sync = in_sync;
        for (key, tally) in &repeated {
            let Some(stored) = contents.objects.get(key) else { continue };
            let untold = tally.beyond(MOST_OF_OBJECT);
            contents.problems.extend(
                untold.map(|(severity, count)| {
                    Problem::of_untold(key, &stored.place, severity, count)
                }),
            );
        }
        // The sort is stable: problems of one severity stay in the order of the texts.
        contents.problems.sort_by_key(|problem| problem.severity);
        (contents, repeated.into_keys().collect())
    }
}

/// Returns the `uid` of another definition and of this one, for messages, or `None` if neither has one.
fn both_uids(other: Option<&Arc<str>>, this: Option<&Arc<str>>) -> Option<String> {
    let [other, this] = [other, this].map(|uid| uid.map(|uid| shown(uid)));
    (other.is_some() || this.is_some()).then(|| {
        let [other, this] = [other, this].map(|uid| uid.unwrap_or("none".into()));
        format!(" (its uid is {other}, and here {this})")
    })
}

/// Returns the fingerprint of a value. The hash has no secret key, so that two processes can compare their
/// fingerprints. The fingerprint is used only to decide whether two processes have read the same content.
pub fn fingerprint(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Returns the fingerprint of a text and its name, given the [`fingerprint`] of the text.
pub fn fingerprint_of_text(name: &str, text: u64) -> u64 {
    fingerprint((name, text))
}

/// Returns the known parts of an object with two definitions: the subject and the labels if both definitions agree on
/// them, and the addresses of both.
fn either(one: State, other: State) -> Invalid {
    let (mut one, other) = (remains(one), remains(other));
    one.subject = one.subject.filter(|subject| other.subject.as_ref() == Some(subject));
    one.labels = one.labels.filter(|labels| other.labels.as_ref() == Some(labels));
    one.reported.extend(other.reported);
    one.annotated.extend(other.annotated);
    one
}

/// Returns the parts of an object that stay known when it becomes invalid.
fn remains(state: State) -> Invalid {
    let object = match state {
        State::Valid(object) => object,
        State::Invalid(invalid) => return *invalid,
    };
    let known = match &*object {
        Object::Pod(pod) => Invalid::of_pod(pod),
        Object::NetworkSet(set) => {
            Invalid { labels: Some(set.labels.clone()), ..Invalid::default() }
        }
        _ => Invalid::default(),
    };
    Invalid { subject: object.subject(), ..known }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_changes_are_one_with_what_was_there_before_both() {
        let pod = |name: &str, label: &str| {
            let text = format!(
                "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, labels: {{app: {label}}}}}, spec: {{containers: []}}}}"
            );
            Contents::from_texts([("pod.yaml", text.as_str())]).objects
        };
        let change = |before: &BTreeMap<ObjectKey, Stored>, after: &BTreeMap<ObjectKey, Stored>| {
            let keys = before.keys().chain(after.keys());
            Changes::Objects(keys.map(|key| (key.clone(), before.get(key).cloned())).collect())
        };
        let [first, second] = ["web", "db"].map(|label| pod("a", label));
        let other = pod("b", "web");
        let both = change(&first, &second).then(change(&second, &other));
        assert_eq!(both, change(&first, &other));
        for (earlier, later) in [(both.clone(), Changes::Everything), (Changes::Everything, both)] {
            assert_eq!(earlier.then(later), Changes::Everything);
        }
    }
}
