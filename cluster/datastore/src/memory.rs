//! A server's objects in memory, for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::served::{ServedKey, ServedKind};
use crate::writes::{Revision, WriteError, Writes};

/// A server with all kinds of object. Calico's kinds are served in one API version.
#[derive(Debug)]
pub struct MemoryWrites {
    calicos: &'static str,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<ServedKey, Value>,
    version: u64,
    /// While this is true, no request is answered.
    is_down: bool,
    /// The kinds that the server lacks.
    lacks: BTreeSet<ServedKind>,
}

impl MemoryWrites {
    /// Returns a server without objects that serves Calico's kinds in this API version.
    pub fn new(calicos: &'static str) -> Self {
        Self { calicos, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores an object, and replaces any existing one.
    pub fn put(&self, key: ServedKey, object: Value) {
        self.state().store(key, object);
    }

    /// Removes an object.
    pub fn remove(&self, key: &ServedKey) {
        self.state().objects.remove(key);
    }

    /// Returns an object.
    pub fn object(&self, key: &ServedKey) -> Option<Value> {
        self.state().objects.get(key).cloned()
    }

    /// Makes the server lack a kind from now on.
    pub fn stop_serving(&self, kind: ServedKind) {
        self.state().lacks.insert(kind);
    }

    /// Sets whether the server answers.
    pub fn set_down(&self, is_down: bool) {
        self.state().is_down = is_down;
    }

    /// Returns all objects.
    pub fn objects(&self) -> BTreeMap<ServedKey, Value> {
        self.state().objects.clone()
    }

    fn answering(&self, kind: ServedKind) -> Result<MutexGuard<'_, State>, WriteError> {
        let state = self.state();
        if state.is_down {
            return Err(WriteError::Unreachable("the server does not answer".to_owned()));
        }
        if state.lacks.contains(&kind) {
            return Err(WriteError::NotServed(kind));
        }
        Ok(state)
    }
}

impl State {
    fn store(&mut self, key: ServedKey, mut object: Value) -> Revision {
        self.version += 1;
        let version = self.version.to_string();
        object["metadata"]["name"] = key.name.as_str().into();
        if !key.namespace.is_empty() {
            object["metadata"]["namespace"] = key.namespace.as_str().into();
        }
        object["metadata"]["resourceVersion"] = version.as_str().into();
        self.objects.insert(key, object);
        Revision { version, uid: None }
    }
}

fn revision(object: &Value) -> Revision {
    let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    Revision { version, uid: None }
}

impl Writes for MemoryWrites {
    async fn api_version(&self, kind: ServedKind) -> Result<&'static str, WriteError> {
        drop(self.answering(kind)?);
        let all = kind.api_versions();
        let of_calico = all.iter().find(|it| **it == self.calicos);
        Ok(of_calico.or(all.first()).copied().unwrap_or_default())
    }

    async fn get(&self, key: &ServedKey) -> Result<Option<(Value, Revision)>, WriteError> {
        let state = self.answering(key.kind)?;
        Ok(state.objects.get(key).map(|object| (object.clone(), revision(object))))
    }

    async fn list(
        &self,
        kind: ServedKind,
        labels: &str,
    ) -> Result<Vec<(ServedKey, Value, Revision)>, WriteError> {
        let state = self.answering(kind)?;
        let matches = |object: &Value| {
            let pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
            pairs.into_iter().all(|(label, value)| object["metadata"]["labels"][label] == value)
        };
        let of_kind = state.objects.iter().filter(|(key, it)| key.kind == kind && matches(it));
        Ok(of_kind.map(|(key, it)| (key.clone(), it.clone(), revision(it))).collect())
    }

    async fn create(&self, key: &ServedKey, value: Value) -> Result<Revision, WriteError> {
        let mut state = self.answering(key.kind)?;
        if state.objects.contains_key(key) {
            return Err(WriteError::Conflict);
        }
        Ok(state.store(key.clone(), value))
    }

    async fn compare_and_swap(
        &self,
        key: &ServedKey,
        found: &Revision,
        value: Value,
    ) -> Result<Revision, WriteError> {
        let mut state = self.answering(key.kind)?;
        match state.objects.get(key) {
            None => Err(WriteError::Gone),
            Some(object) if revision(object) != *found => Err(WriteError::Conflict),
            Some(_) => Ok(state.store(key.clone(), value)),
        }
    }

    async fn write_status(
        &self,
        key: &ServedKey,
        found: &Revision,
        fields: Value,
    ) -> Result<Revision, WriteError> {
        let mut state = self.answering(key.kind)?;
        match state.objects.get(key).cloned() {
            None => Err(WriteError::Gone),
            Some(object) if revision(&object) != *found => Err(WriteError::Conflict),
            Some(mut object) => {
                for (field, value) in fields.as_object().into_iter().flatten() {
                    object["status"][field.as_str()] = value.clone();
                }
                Ok(state.store(key.clone(), object))
            }
        }
    }

    async fn delete(&self, key: &ServedKey, found: &Revision) -> Result<(), WriteError> {
        let mut state = self.answering(key.kind)?;
        match state.objects.get(key) {
            Some(object) if revision(object) != *found => Err(WriteError::Conflict),
            _ => {
                state.objects.remove(key);
                Ok(())
            }
        }
    }
}

/// Returns the JSON of an object with these annotations and labels.
pub fn annotated(annotations: &Value, labels: &Value) -> Value {
    json!({ "metadata": { "annotations": annotations, "labels": labels } })
}
