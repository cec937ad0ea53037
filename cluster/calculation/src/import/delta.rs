//! Imports the change of one object into a cluster that was imported before.
//!
//! Changes of pods, policies, network sets, endpoints of services, nodes, blocks and pools are imported by the same
//! functions that import all objects. The other inputs of these functions (the namespaces, and the invalid objects of
//! the cluster) must not change; otherwise the whole cluster is imported again.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use manx_policy_compiler::model::{Endpoint, Labels, ObjectName};

use super::cluster::names_nodes;
use super::invalid_references::InvalidReferences;
use super::named_services::{rules, services};
use super::{Cluster, Node, claims, member, overlap, owners, policy_name};
use manx_ipam::plan::Ipam;
use manx_objects::State;
use manx_objects::contents::{Contents, Stored};
use manx_objects::object::{EndpointSlice, Kind, Object, ObjectKey, Pod};

/// The effect of an object's change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    Nothing,
    /// Pods were added, removed or changed as endpoints. Besides the pod whose object changed, these may be pods that
    /// name one of its addresses.
    Pods {
        pods: Vec<ChangedPod>,
        /// Whether routes have changed, too. This is so if a pod borrows an address, or if a pod has lost an address
        /// that another pod names.
        routes: bool,
    },
    /// A policy or a network set was added, removed or changed, or the endpoints of a service that a policy names have
    /// changed.
    Policy,
    /// Routes may have changed: a node, a block or a pool was added, removed or changed, or a pod that borrows an
    /// address now has another node.
    Routes {
        /// Whether a policy now selects other nodes, or other addresses of nodes.
        policy: bool,
    },
}

/// A pod that was added, removed or changed as an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedPod {
    pub name: ObjectName,
    /// The earlier endpoint, if the pod was one.
    pub before: Option<Arc<Endpoint>>,
    /// The current endpoint, if the pod is one.
    pub after: Option<Arc<Endpoint>>,
}

impl Cluster {
    /// Applies the change of one object from `before` to its state in `contents`. Everything else must be as it was
    /// imported. Returns `None` if the caller must import the whole cluster again. The caller must then not use `self`
    /// any more.
    pub fn apply_delta(
        &mut self,
        contents: &Contents,
        key: &ObjectKey,
        before: Option<&Stored>,
    ) -> Option<Effect> {
        let now = contents.objects.get(key);
        // Only a complete import reports problems in the right order and at the right places.
        if self.problems.iter().any(|problem| problem.object.as_ref() == Some(key)) {
            return None;
        }
        let [before, state] = [before, now].map(|stored| stored.map(|stored| &stored.state));
        if before == state {
            return Some(Effect::Nothing);
        }
        let broken = |state: Option<&State>| matches!(state, Some(State::Invalid(_)));
        if broken(before) || broken(state) || !self.keeps_namespace(contents, key) {
            return None;
        }
        match key.kind {
            Kind::Pod => self.apply_pod(contents, key, [before, state]),
            Kind::Service
            | Kind::ServiceCidr
            | Kind::BgpConfiguration
            | Kind::BgpPeer
            | Kind::BgpFilter => Some(Effect::Nothing),
            Kind::EndpointSlice => Some(self.apply_slice(contents, key, [before, state])),
            Kind::NetworkSet | Kind::GlobalNetworkSet => self.apply_set(contents, key, now),
            Kind::Node => self.apply_route_sources(contents, &BTreeSet::from([&*key.name])),
            Kind::IpPool => self.apply_route_sources(contents, &BTreeSet::new()),
            Kind::BlockAffinity => self.apply_affinity(contents, [before, state]),
            kind if kind.enforced_policy() || kind.staged() => {
                self.apply_policy(contents, key, now)
            }
            _ => None,
        }
    }

    /// Returns whether the set of namespaces does not change.
    fn keeps_namespace(&self, contents: &Contents, key: &ObjectKey) -> bool {
        if !key.kind.namespaced() {
            return true;
        }
        let is_there = contents.objects.contains_key(key) || {
            let own = ObjectKey::new(Kind::Namespace, "", &key.namespace);
            let held = |kind: Kind| {
                kind.namespaced() && contents.of_kind_in(kind, &key.namespace).next().is_some()
            };
            contents.valid(&own).is_some() || Kind::ALL.into_iter().any(held)
        };
        is_there && self.model.namespaces.contains_key(&key.namespace)
    }

    fn apply_pod(
        &mut self,
        contents: &Contents,
        key: &ObjectKey,
        states: [Option<&State>; 2],
    ) -> Option<Effect> {
        let name = ObjectName::new(&key.namespace, &key.name);
        let states = states.map(|state| match state.and_then(State::valid) {
            Some(Object::Pod(pod)) => Some(&**pod),
            _ => None,
        });
        if states[1].is_some_and(|pod| is_broken(contents, key, pod)) {
            return None;
        }
        let mut named = states.into_iter().flatten().flat_map(member::addresses);
        if named.any(|address| self.named_by_invalid.contains(&address)) {
            return None;
        }
        let (touched, is_told) = self.claim(contents, &name, states);
        let before = touched.into_iter().map(|name| {
            let endpoint = self.model.endpoints.get(&*name).cloned();
            (name, endpoint)
        });
        let before: Vec<(Arc<ObjectName>, Option<Arc<Endpoint>>)> = before.collect();
        let mut pods = Vec::new();
        for (name, _) in &before {
            let key = ObjectKey::new(Kind::Pod, &name.namespace, &name.name);
            let pod = claims::find(contents, name).filter(|it| !is_broken(contents, &key, it));
            pods.extend(self.put_pod(name, pod));
        }
        let routes =
            self.refresh_borrowed(before.iter().map(|(name, before)| (&**name, before.as_deref())));
        let is_at_tunnel = |(name, before): &(Arc<ObjectName>, Option<Arc<Endpoint>>)| {
            let now = self.model.endpoints.get(&**name);
            [before.as_ref(), now]
                .into_iter()
                .any(|it| self.has_address_of_tunnel(it.map(|it| &**it)))
        };
        // Pods that do not get an address that they name are reported together with the routes.
        let routes = routes || is_told || before.iter().any(is_at_tunnel);
        Some(match pods.is_empty() {
            false => Effect::Pods { pods, routes },
            true if routes => Effect::Routes { policy: false },
            true => Effect::Nothing,
        })
    }

    /// Adds, replaces or removes a pod as an endpoint. Returns `None` if the endpoint has not changed; it is then left
    /// as it is. The pod's claims must already be registered, and the caller must update the borrowed addresses.
    pub(super) fn put_pod(&mut self, name: &ObjectName, pod: Option<&Pod>) -> Option<ChangedPod> {
        let pod = pod.filter(|pod| member::takes_part(pod));
        let before = self.model.endpoints.get(name).cloned();
        let after = pod.and_then(|pod| {
            let addresses = self.held(name, pod);
            member::endpoint(pod, addresses, &mut self.shared).map(Arc::new)
        });
        if before == after {
            return None;
        }
        match &after {
            Some(after) => self.model.endpoints.insert(name.clone(), Arc::clone(after)),
            None => self.model.endpoints.remove(name),
        };
        Some(ChangedPod { name: name.clone(), before, after })
    }

    /// Adds, replaces or removes a network set. A set in an invalid namespace would make policies uncertain, so it
    /// requires a complete import.
    fn apply_set(
        &mut self,
        contents: &Contents,
        key: &ObjectKey,
        now: Option<&Stored>,
    ) -> Option<Effect> {
        if is_invalid(contents, &ObjectKey::new(Kind::Namespace, "", &key.namespace)) {
            return None;
        }
        let name = ObjectName::new(&key.namespace, &key.name);
        let before = self.model.network_sets.remove(&name);
        self.import_valid(key, now);
        let after = self.model.network_sets.get(&name);
        Some(if before.as_ref() == after { Effect::Nothing } else { Effect::Policy })
    }

    /// Imports the object, if it exists and is valid.
    fn import_valid(&mut self, key: &ObjectKey, now: Option<&Stored>) {
        if let Some(stored) = now
            && let Some(object) = stored.state.valid()
        {
            self.import_object(key, stored, object);
        }
    }

    fn apply_policy(
        &mut self,
        contents: &Contents,
        key: &ObjectKey,
        now: Option<&Stored>,
    ) -> Option<Effect> {
        let name = policy_name(key)?;
        let before = self.model.policies.remove(&name);
        self.named_services.remove(before.iter().flat_map(|policy| rules(policy)));
        let problems = self.problems.len();
        if let Some(stored) = now {
            self.import_rules(key, stored, &InvalidReferences::new(contents));
        }
        if self.problems.len() != problems {
            return None;
        }
        let after = self.model.policies.get(&name).cloned();
        if before == after {
            return Some(Effect::Nothing);
        }
        let both = [&before, &after].into_iter().flatten();
        let named = both.flat_map(|policy| rules(policy)).flat_map(services).cloned();
        for service in named.collect::<BTreeSet<_>>() {
            self.put_service(contents, &service);
        }
        Some(Effect::Policy)
    }

    /// Applies a changed affinity: the blocks of the nodes that it names have changed.
    fn apply_affinity(
        &mut self,
        contents: &Contents,
        states: [Option<&State>; 2],
    ) -> Option<Effect> {
        if self.ipam == Ipam::HostLocal {
            return Some(Effect::Nothing);
        }
        let named = states.into_iter().flatten().filter_map(claimant).collect::<BTreeSet<_>>();
        let differ = named.into_iter().filter(|node| self.refresh_affinities(contents, node));
        let differ: BTreeSet<&str> = differ.collect();
        if !differ.iter().any(|node| self.nodes.contains_key(*node)) {
            return Some(Effect::Nothing);
        }
        self.apply_route_sources(contents, &differ)
    }

    /// Applies changes of these nodes, and of pools. Returns `None` if blocks of nodes or pools overlap or did so
    /// before, if a pool contains addresses of nodes, or if a pod gets or loses an address that its object names.
    fn apply_route_sources(
        &mut self,
        contents: &Contents,
        nodes: &BTreeSet<&str>,
    ) -> Option<Effect> {
        if !(self.overlaps.is_empty() && self.are_pools_sound()) {
            return None;
        }
        let mut before = Vec::with_capacity(nodes.len());
        for name in nodes {
            before.push(self.nodes.remove(*name));
            let key = ObjectKey::new(Kind::Node, "", name);
            self.import_valid(&key, contents.objects.get(&key));
        }
        self.judge_pools(contents);
        if !(self.are_pools_sound()
            && self.named_by_invalid.is_empty()
            && self.claims_stand(contents)
            && overlap::overlaps(&self.nodes).is_empty())
        {
            return None;
        }
        let both = || {
            let after = nodes.iter().map(|name| self.nodes.get(*name));
            before.iter().map(Option::as_ref).zip(after)
        };
        let is_seen =
            both().any(|(before, after)| before.map(seen_by_policy) != after.map(seen_by_policy));
        let is_planned = both()
            .any(|(before, after)| before.map(|node| &node.plan) != after.map(|node| &node.plan));
        if is_planned {
            self.refresh_all_borrowed();
        }
        let policy = is_seen && self.import_policies_of_nodes(contents)?;
        Some(Effect::Routes { policy })
    }

    /// Imports the policies that name nodes. Returns whether any of these policies has changed. Returns `None` if any
    /// of them has a problem.
    fn import_policies_of_nodes(&mut self, contents: &Contents) -> Option<bool> {
        let mut changed = false;
        for kind in
            [Kind::ClusterNetworkPolicy, Kind::AdminNetworkPolicy, Kind::BaselineAdminNetworkPolicy]
        {
            for (key, stored) in contents.of_kind(kind) {
                if let Some(Object::ClusterNetworkPolicy(policy)) = stored.state.valid()
                    && names_nodes(policy)
                {
                    changed |= self.apply_policy(contents, key, Some(stored))? == Effect::Policy;
                }
            }
        }
        Some(changed)
    }

    /// Applies a changed slice. If it now belongs to another service, both services change.
    fn apply_slice(
        &mut self,
        contents: &Contents,
        key: &ObjectKey,
        states: [Option<&State>; 2],
    ) -> Effect {
        let services = states.map(|state| slice(state?)?.service.as_deref());
        let mut effect = Effect::Nothing;
        for service in services.into_iter().flatten().collect::<BTreeSet<_>>() {
            if self.put_service(contents, &ObjectName::new(&key.namespace, service)) {
                effect = Effect::Policy;
            }
        }
        effect
    }
}

/// Returns whether a pod is not an endpoint because its namespace or its service account is invalid.
fn is_broken(contents: &Contents, key: &ObjectKey, pod: &Pod) -> bool {
    owners(key, pod).iter().any(|owner| is_invalid(contents, owner))
}

/// Returns whether an object exists and is invalid.
fn is_invalid(contents: &Contents, key: &ObjectKey) -> bool {
    contents.objects.get(key).is_some_and(|stored| stored.state.valid().is_none())
}

/// Returns the fields of a node that policy uses.
fn seen_by_policy(node: &Node) -> (&Labels, &BTreeSet<IpAddr>) {
    (&node.labels, &node.addresses)
}

/// Returns the node that an affinity names.
fn claimant(state: &State) -> Option<&str> {
    match state.valid()? {
        Object::BlockAffinity(affinity) => Some(&affinity.node),
        _ => None,
    }
}

fn slice(state: &State) -> Option<&EndpointSlice> {
    match state.valid()? {
        Object::EndpointSlice(slice) => Some(slice),
        _ => None,
    }
}
