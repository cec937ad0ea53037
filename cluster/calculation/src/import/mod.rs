//! Imports wire objects into the validated model. It applies the defaults of the API server, and decides which pods are
//! endpoints.
//!
//! An invalid object fails closed:
//!
//! - A NetworkPolicy of Kubernetes isolates the pods that it may select, and allows nothing. Every other policy denies
//!   everything to the endpoints that it may select. A policy that depends on an invalid tier, network set or service
//!   also denies everything.
//! - A pod is not an endpoint: its port passes nothing, and no packets from its addresses are accepted. The pods of an
//!   invalid namespace or service account are not endpoints either, because it is not known which selectors match them.
//! - A profile counts as missing, and therefore denies. A host endpoint applies to every interface, of any node, that
//!   has no valid one. A node counts as absent. An affinity gives its block to no node. A pool is added to
//!   [`Cluster::invalid_pools`], because it is not known which blocks it would encapsulate.
//!
//! All of this is reported in [`Cluster::problems`].

mod affinities;
mod borrowed;
mod calico;
mod claims;
mod cluster;
mod delta;
mod hosts;
mod invalid;
mod invalid_references;
mod kubernetes;
mod member;
mod named_services;
mod network;
mod overlap;
mod pools;
#[cfg(test)]
mod tests;
mod way_out;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use manx_policy_compiler::model::{
    DefaultAction, HostEndpoint, Labels, Model, ObjectName, Order, Policy, PolicyName, Profile,
    Tier,
};

use self::affinities::BlockAffinities;
use self::calico::{Context, Unknown};
use self::claims::Claims;
use self::invalid_references::InvalidReferences;
use self::member::Shared;
use self::named_services::{NamedServices, rules};
use manx_objects::code::Code;
use manx_objects::contents::{Contents, Stored};
use manx_objects::object::{self, Kind, Object, ObjectKey};
use manx_objects::problem::{Cause, Place, Problem};
use manx_objects::{Invalid, NAMESPACE_NAME, State};

pub use affinities::assumed_ipam;
pub use borrowed::Borrowed;
pub use calico::is_evaluated;
pub use claims::Unheld;
pub use delta::{ChangedPod, Effect};
pub use kubernetes::label_selector;
pub use manx_ipam::plan::Ipam;
pub use member::addresses as pod_addresses;
pub use network::{Node, Plan, Pool};
pub use overlap::Overlap;
pub(crate) use pools::reported_within;
pub use way_out::{OutgoingAddress, WayOut};

/// The tier of policies that do not name one.
const DEFAULT_TIER: &str = "default";

/// Everything that the calculation needs from the manifests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cluster {
    /// The model that policy is compiled from.
    pub model: Model,
    /// The services that rules name.
    pub(crate) named_services: NamedServices,
    /// Values that pods have in common; each value is stored once.
    pub(crate) shared: Shared,
    /// The IPAM that assigns pods' addresses.
    pub ipam: Ipam,
    /// The blocks in force of each node, with Calico's IPAM.
    pub(crate) affinities: BlockAffinities,
    /// The nodes by name.
    pub nodes: BTreeMap<String, Node>,
    /// The node of each pod that is assigned to one. This includes endpoints, and pods that will be endpoints when they
    /// have addresses. Pods on the host's network and finished pods are not included.
    pub pods_by_node: BTreeMap<Arc<ObjectName>, Arc<str>>,
    /// The pods that name each address, and the pod that has it.
    pub(crate) claims: Claims,
    /// The addresses that invalid pods name.
    pub(crate) named_by_invalid: BTreeSet<IpAddr>,
    /// The addresses of pods that are in no block of their own nodes.
    pub borrowed: Borrowed,
    /// The addresses of nodes' tunnels that are in no block of their own nodes.
    pub(crate) borrowed_tunnels: BTreeSet<IpAddr>,
    /// The address pools, by CIDR.
    pub pools: Vec<Pool>,
    /// The names of the pools that are invalid or overlap another pool of the same or unknown age. While there is such
    /// a pool, it is not known which blocks need a tunnel.
    pub invalid_pools: Vec<String>,
    /// The names of the pools that are not used because they overlap an older one.
    pub later_pools: BTreeSet<String>,
    /// Whether nodes accept nothing from their own pods (`defaultEndpointToHostAction: Drop`).
    pub drops_to_node: bool,
    /// The settings for packets of pods that leave the cluster.
    pub way_out: WayOut,
    /// The overlaps between blocks of two nodes.
    pub overlaps: Vec<Overlap>,
    /// All problems, errors first: those of the contents, and those that the import found.
    pub problems: Vec<Problem>,
    /// [`Contents::in_sync`].
    pub in_sync: bool,
}

/// Imports all objects of the store. The IPAM is derived from the objects (see [`assumed_ipam`]).
pub fn import(contents: &Contents) -> Cluster {
    import_as(contents, assumed_ipam(contents), None)
}

/// Like [`import`], with Felix's configuration for one node.
pub fn import_for(contents: &Contents, node: &str) -> Cluster {
    import_as(contents, assumed_ipam(contents), Some(node))
}

/// Imports all objects of the store. The nodes' blocks are those of `ipam`. If `node` is given, Felix's configuration
/// for this node is applied.
pub fn import_as(contents: &Contents, ipam: Ipam, node: Option<&str>) -> Cluster {
    let mut cluster = import_all(contents, ipam);
    if node.is_some() {
        cluster.apply_felix_configuration(contents, node);
    }
    cluster
}

fn import_all(contents: &Contents, ipam: Ipam) -> Cluster {
    let mut cluster = Cluster {
        ipam,
        problems: contents.problems.clone(),
        in_sync: contents.in_sync,
        ..Cluster::default()
    };
    cluster.note_affinities(contents);
    let broken: BTreeSet<&ObjectKey> = contents
        .objects
        .iter()
        .filter(|(_, stored)| matches!(stored.state, State::Invalid(_)))
        .map(|(key, _)| key)
        .collect();
    for (key, stored) in &contents.objects {
        cluster.note_namespace(key);
        match &stored.state {
            State::Valid(object) => cluster.import_object(key, stored, object),
            State::Invalid(_) => match key.kind {
                Kind::IpPool => cluster.invalid_pools.push(key.name.clone()),
                Kind::HostEndpoint => {
                    let broken = Arc::new(HostEndpoint::broken());
                    cluster.model.host_endpoints.insert(key.name.clone(), broken);
                }
                _ => {}
            },
        }
    }
    cluster.judge_pools(contents);
    cluster.import_pods(contents, &broken);
    let references = InvalidReferences::new(contents);
    // Policies and profiles use the labels of namespaces, so namespaces are imported first.
    for (key, stored) in &contents.objects {
        cluster.import_rules(key, stored, &references);
    }
    cluster.import_services(contents);
    cluster.apply_host_profiles(contents);
    cluster.apply_felix_configuration(contents, None);
    cluster.refresh_all_borrowed();
    cluster.note_overlaps(contents);
    cluster.problems.sort_by_key(|problem| problem.severity);
    cluster
}

impl Cluster {
    /// Imports the pods. Nodes and pools must be imported before, because the decision which pod has an address depends
    /// on them, too.
    fn import_pods(&mut self, contents: &Contents, broken: &BTreeSet<&ObjectKey>) {
        self.claim_all(contents);
        for (key, stored) in contents.of_kind(Kind::Pod) {
            match &stored.state {
                State::Valid(object) => {
                    let Object::Pod(pod) = &**object else { continue };
                    if let Some(owner) = owners(key, pod).iter().find(|it| broken.contains(it)) {
                        let message = format!("its {owner} is not valid: nothing passes it");
                        self.problem(key, stored, Code::RestsOnInvalid, message);
                    } else {
                        let name = ObjectName::new(&key.namespace, &key.name);
                        self.put_pod(&name, Some(pod));
                    }
                }
                State::Invalid(invalid) => self.close_addresses(invalid),
            }
        }
    }

    /// Makes the addresses of an invalid pod unknown, so that no packets from them are accepted. These are the
    /// addresses that kubelet has reported, and those addresses in annotations that pods can have. An address that
    /// another pod names stays with that pod.
    fn close_addresses(&mut self, invalid: &Invalid) {
        let Invalid { reported, annotated, .. } = invalid;
        let annotated = annotated.iter().filter(|address| self.is_for_some_pod(**address));
        let named = reported.iter().chain(annotated).copied();
        let closed = named.filter(|address| !self.claims.has(*address)).collect::<Vec<_>>();
        self.named_by_invalid.extend(invalid.reported.iter().chain(&invalid.annotated));
        self.model.unknown.extend(closed);
    }

    /// Imports an object other than a pod, a policy or a profile.
    fn import_object(&mut self, key: &ObjectKey, stored: &Stored, object: &Object) {
        let name = ObjectName::new(&key.namespace, &key.name);
        match object {
            Object::Namespace(namespace) => {
                self.model.namespaces.insert(key.name.clone(), namespace.labels.to_map());
            }
            Object::Node(node) => {
                let plan = self.plan(&key.name, node);
                self.nodes.insert(key.name.clone(), network::node(&key.name, node, plan));
            }
            Object::ServiceAccount(account) => {
                self.model.service_accounts.insert(name, account.labels.to_map());
            }
            Object::NetworkSet(set) => {
                self.model.network_sets.insert(name, Arc::new(member::network_set(set)));
            }
            Object::HostEndpoint(host) => {
                let host = Arc::new(member::host_endpoint(host));
                self.model.host_endpoints.insert(key.name.clone(), host);
                self.problems.push(Problem::of_host_endpoint(key, &stored.place));
            }
            Object::Tier(tier) => {
                self.model.tiers.insert(key.name.clone(), import_tier(tier));
            }
            Object::Pod(_)
            | Object::IpPool(_)
            | Object::BlockAffinity(_)
            | Object::Service(_)
            | Object::ServiceCidr(_)
            | Object::EndpointSlice(_)
            | Object::Endpoints(_)
            | Object::Workload(_)
            | Object::NetworkPolicy(_)
            | Object::ClusterNetworkPolicy(_)
            | Object::CalicoPolicy(_)
            | Object::Profile(_)
            | Object::FelixConfiguration(_)
            | Object::BgpConfiguration(_)
            | Object::BgpPeer(_)
            | Object::BgpFilter(_) => {}
        }
    }

    /// Imports a policy or profile.
    fn import_rules(
        &mut self,
        key: &ObjectKey,
        stored: &Stored,
        references: &InvalidReferences<'_>,
    ) {
        let namespace = key.kind.namespaced().then_some(key.namespace.as_str());
        let object = match &stored.state {
            State::Valid(object) => &**object,
            State::Invalid(invalid) => {
                if let Some(policy) = invalid::policy(key, invalid.subject.as_ref()) {
                    self.add_policy(key, policy);
                }
                return;
            }
        };
        let context = Context { model: &self.model, invalid: references, namespace };
        let (policy, unknown) = match object {
            Object::NetworkPolicy(wire) if is_evaluated(wire.staged_action) => {
                (kubernetes::import(&key.namespace, wire), None)
            }
            Object::ClusterNetworkPolicy(wire) => {
                let nodes = (!references.any_node()).then_some(&self.nodes);
                let policy = cluster::import(wire, nodes);
                if nodes.is_none() && cluster::names_nodes(wire) {
                    let message = "a Node is not valid, so it is not known which `nodes` its rules mean: those that \
                                   accept do not apply, the others deny everything";
                    self.problem(key, stored, Code::RestsOnInvalid, message.to_owned());
                }
                (policy, None)
            }
            Object::CalicoPolicy(wire) if is_evaluated(wire.staged_action) => {
                calico::import(wire, context)
            }
            Object::Profile(wire) => {
                let profile = calico::profile(wire, context);
                return self.import_profile(key, stored, profile);
            }
            _ => return,
        };
        if let Some(unknown) = unknown {
            let follows = if key.kind.staged() {
                "nothing is reported of it"
            } else {
                "it denies everything"
            };
            let message = format!("{unknown}: {follows}");
            self.problem(key, stored, Code::RestsOnInvalid, message);
            if key.kind.staged() {
                return;
            }
        }
        self.add_policy(key, policy);
    }

    /// Adds a profile to the model. If the profile depends on an invalid object, reports that and leaves the profile
    /// out.
    fn import_profile(
        &mut self,
        key: &ObjectKey,
        stored: &Stored,
        profile: Result<Profile, Unknown>,
    ) {
        match profile {
            Ok(profile) => {
                self.named_services.add(profile.ingress.iter().chain(&profile.egress));
                self.model.profiles.insert(key.name.clone(), Arc::new(profile));
            }
            Err(unknown) => {
                let message = format!("{unknown}: endpoints that need it are denied");
                self.problem(key, stored, Code::RestsOnInvalid, message);
            }
        }
    }

    /// Records the namespace of an object. A namespace with objects exists even without a manifest, and has the label
    /// that the API server sets on every namespace.
    fn note_namespace(&mut self, key: &ObjectKey) {
        if key.kind.namespaced() && !self.model.namespaces.contains_key(&key.namespace) {
            let name = key.namespace.clone();
            let labels = Labels::from([(NAMESPACE_NAME.to_owned(), name.clone())]);
            self.model.namespaces.insert(name, labels);
        }
    }

    fn add_policy(&mut self, key: &ObjectKey, policy: Policy) {
        if let Some(name) = policy_name(key) {
            self.named_services.add(rules(&policy));
            self.model.policies.insert(name, Arc::new(policy));
        }
    }

    /// Reports each overlap at the node with the inner block, because the inner block is usually the later mistake.
    fn note_overlaps(&mut self, contents: &Contents) {
        self.overlaps = overlap::overlaps(&self.nodes);
        for Overlap { outer, inner } in self.overlaps.clone() {
            let key = ObjectKey::new(Kind::Node, "", &inner.0);
            if let Some(stored) = contents.objects.get(&key) {
                let message = format!(
                    "its {} {} overlaps {} of node {}: neither is routed",
                    self.ipam.block(),
                    inner.1,
                    outer.1,
                    outer.0
                );
                self.problem(&key, stored, Code::OverlappingPodCidrs, message);
            }
        }
    }

    fn problem(&mut self, key: &ObjectKey, stored: &Stored, code: Code, message: String) {
        self.problems.push(problem(key, &stored.place, code, message));
    }
}

fn problem(key: &ObjectKey, place: &Place, code: Code, message: String) -> Problem {
    Problem {
        severity: code.severity(),
        place: place.clone(),
        object: Some(key.clone()),
        field: String::new(),
        cause: Cause::told(code, message),
        line: None,
    }
}

/// Returns the namespace and the service account of a pod. The pod inherits labels from them.
fn owners(key: &ObjectKey, pod: &object::Pod) -> [ObjectKey; 2] {
    [
        ObjectKey::new(Kind::Namespace, "", &key.namespace),
        ObjectKey::new(Kind::ServiceAccount, &key.namespace, member::service_account(pod)),
    ]
}

/// Returns the model's name of a policy, or `None` if the object is not a policy.
pub fn policy_name(key: &ObjectKey) -> Option<PolicyName> {
    Some(PolicyName::new(key.kind.policy_kind()?, &key.namespace, &key.name))
}

fn import_tier(wire: &object::calico::Tier) -> Tier {
    Tier {
        order: wire.order.unwrap_or(Order::LAST),
        default_action: match wire.default_action {
            Some(object::calico::Action::Pass) => DefaultAction::Pass,
            _ => DefaultAction::Deny,
        },
    }
}
