//! One object that comes, goes or changes, in a cluster that was imported before.
//!
//! A pod and a policy are imported by the functions that import all of them; what these read beside the object (the
//! namespaces, and what of the cluster is not valid) stays as it was, or the whole cluster is imported anew.

use std::sync::Arc;

use manx_policy_compiler::model::{Endpoint, ObjectName};

use super::doubt::Doubt;
use super::{Cluster, owners, policy_name};
use crate::manifest::State;
use crate::manifest::object::{Kind, Object, ObjectKey};
use crate::store::{Contents, Stored};

/// What an object's change means for policy. None of these changes a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    Nothing,
    /// A pod came, went or changed as an endpoint.
    Pod {
        /// Its name.
        name: ObjectName,
        /// What it was, if it was one.
        before: Option<Arc<Endpoint>>,
        /// What it is, if it is one.
        after: Option<Arc<Endpoint>>,
    },
    /// A policy came, went or changed.
    Policy,
}

impl Cluster {
    /// Takes in one object, of which `contents` say something else than `before`; all else is as it was imported. `None`: the
    /// whole cluster is to be imported anew, and this one is of no use any more.
    pub fn follow(
        &mut self,
        contents: &Contents,
        key: &ObjectKey,
        before: Option<&Stored>,
    ) -> Option<Change> {
        let now = contents.objects.get(key);
        // The order of the problems, and where they are, is the whole import's.
        if self.problems.iter().any(|problem| problem.object.as_ref() == Some(key)) {
            return None;
        }
        let [before, state] = [before, now].map(|stored| stored.map(|stored| &stored.state));
        if before == state {
            return Some(Change::Nothing);
        }
        let broken = |state: Option<&State>| matches!(state, Some(State::Invalid(_)));
        if broken(before) || broken(state) || !self.keeps_namespace(contents, key) {
            return None;
        }
        match key.kind {
            Kind::Pod => self.follow_pod(contents, key, state),
            Kind::Service => Some(Change::Nothing),
            kind if kind.enforced_policy() || kind.staged() => {
                self.follow_policy(contents, key, now)
            }
            _ => None,
        }
    }

    /// Whether the namespaces that there are stay as they were.
    fn keeps_namespace(&self, contents: &Contents, key: &ObjectKey) -> bool {
        if !key.kind.namespaced() {
            return true;
        }
        let is_there = contents.objects.contains_key(key) || {
            let (kind, name) = (Kind::Namespace, key.namespace.clone());
            let own = ObjectKey { kind, namespace: String::new(), name };
            let own = contents.objects.get(&own).map(|stored| &stored.state);
            let held = |kind: Kind| kind.namespaced() && contents.has_in(kind, &key.namespace);
            matches!(own, Some(State::Valid(_))) || Kind::ALL.into_iter().any(held)
        };
        is_there && self.model.namespaces.contains_key(&key.namespace)
    }

    fn follow_pod(
        &mut self,
        contents: &Contents,
        key: &ObjectKey,
        state: Option<&State>,
    ) -> Option<Change> {
        let name = ObjectName::new(&key.namespace, &key.name);
        let before = self.model.endpoints.remove(&name);
        self.pods_by_node.remove(&name);
        if let Some(State::Valid(object)) = state
            && let Object::Pod(pod) = &**object
        {
            let is_broken = |owner: &ObjectKey| {
                let owner = contents.objects.get(owner);
                owner.is_some_and(|owner| matches!(owner.state, State::Invalid(_)))
            };
            if owners(key, pod).iter().any(is_broken) {
                return None;
            }
            self.import_pod(name.clone(), pod);
        }
        let after = self.model.endpoints.get(&name).cloned();
        Some(if before == after { Change::Nothing } else { Change::Pod { name, before, after } })
    }

    fn follow_policy(
        &mut self,
        contents: &Contents,
        key: &ObjectKey,
        now: Option<&Stored>,
    ) -> Option<Change> {
        let name = policy_name(key);
        let before = self.model.policies.remove(&name);
        let problems = self.problems.len();
        if let Some(stored) = now {
            self.import_rules(key, stored, &Doubt::new(contents));
        }
        if self.problems.len() != problems {
            return None;
        }
        let after = self.model.policies.get(&name);
        Some(if before.as_ref() == after { Change::Nothing } else { Change::Policy })
    }
}
