//! Wire objects to the validated model: the defaults of the API server, and who is an endpoint.
//!
//! An object that is not valid fails closed: a policy isolates the pods that it may mean and allows nothing; a pod is no
//! endpoint, so nothing passes its port; pods of an invalid namespace are none either, because nobody knows which
//! selectors should match them; a node is absent; a pool is in [`Cluster::invalid_pools`], because nobody knows which blocks
//! it encapsulates. All of it is in [`Cluster::problems`].

mod overlap;
mod policy;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use manx_policy_compiler::model::{
    Endpoint, Labels, Model, NamedPort, ObjectName, Policy, PolicyKind, PolicyName, Protocol,
};

use crate::manifest::object::{self, IpipMode, Kind, Object, ObjectKey, Phase, Subject};
use crate::manifest::problem::{Cause, Place, Problem, Severity};
use crate::manifest::{NAMESPACE_NAME, State};
use crate::store::{Contents, Stored};

pub use overlap::Overlap;

/// Everything that the calculation needs of the manifests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cluster {
    /// What policy sees.
    pub model: Model,
    /// The nodes by name.
    pub nodes: BTreeMap<String, Node>,
    /// The node of each pod that has one: endpoints, and pods that are to become endpoints once they have addresses.
    /// Pods on the host's network and finished pods are not here.
    pub pods_by_node: BTreeMap<ObjectName, String>,
    /// The address pools, by CIDR.
    pub pools: Vec<Pool>,
    /// Names of the pools that are not valid. While there is one, nobody knows which blocks are behind tunnels.
    pub invalid_pools: Vec<String>,
    /// Nodes take nothing from their own pods (`defaultEndpointToHostAction: Drop`).
    pub drops_to_node: bool,
    /// The blocks that two nodes claim.
    pub overlaps: Vec<Overlap>,
    /// What is wrong, errors first: the store's problems and the import's own.
    pub problems: Vec<Problem>,
    /// [`Contents::in_sync`].
    pub in_sync: bool,
}

/// A node as routing sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    /// The addresses that other nodes reach it by: Calico's annotation first where there is one, then `InternalIPs`.
    pub internal_ips: Vec<IpAddr>,
    /// The subnet of its first address, from Calico's annotation: what `CrossSubnet` compares.
    pub subnet: Option<IpNet>,
    /// The blocks that its pods get addresses from.
    pub pod_cidrs: Vec<IpNet>,
}

/// A pool of pod addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// The addresses.
    pub cidr: IpNet,
    /// Whether packets to them are encapsulated between nodes.
    pub ipip_mode: IpipMode,
    /// Whether packets from them to outside of all pools get the node's address.
    pub nat_outgoing: bool,
    /// Not to be allocated from; all else holds.
    pub disabled: bool,
}

/// Imports everything that the store holds.
pub fn import(contents: &Contents) -> Cluster {
    let mut cluster = Cluster {
        problems: contents.problems.clone(),
        in_sync: contents.in_sync,
        ..Cluster::default()
    };
    let invalid_namespaces: BTreeSet<&str> = contents
        .objects
        .iter()
        .filter(|(key, stored)| {
            key.kind == Kind::Namespace && matches!(stored.state, State::Invalid(_))
        })
        .map(|(key, _)| key.name.as_str())
        .collect();
    for (key, stored) in &contents.objects {
        cluster.note_namespace(key);
        match &stored.state {
            State::Valid(object) => match &**object {
                Object::Namespace(namespace) => {
                    cluster.model.namespaces.insert(key.name.clone(), namespace.labels.clone());
                }
                Object::Node(node) => {
                    cluster.nodes.insert(key.name.clone(), import_node(node));
                }
                Object::IpPool(pool) => cluster.pools.push(import_pool(pool)),
                Object::Pod(_) if invalid_namespaces.contains(key.namespace.as_str()) => {
                    cluster.pod_of_invalid_namespace(key, &stored.place);
                }
                Object::Pod(pod) => cluster.import_pod(key, pod),
                Object::NetworkPolicy(wire) if key.kind == Kind::NetworkPolicy => {
                    cluster.add_policy(key, policy::import(&key.namespace, wire));
                }
                _ if key.kind.enforced_policy() => {
                    let message = "is read and checked, but policies of this kind are not enforced yet: NOT ENFORCED";
                    cluster.problem(key, stored, message.to_owned());
                }
                _ => {}
            },
            State::Invalid(invalid) => match key.kind {
                Kind::NetworkPolicy => {
                    let pods = match &invalid.subject {
                        Some(Subject::Kubernetes(selector)) => Some(selector),
                        _ => None,
                    };
                    cluster.add_policy(key, policy::isolating(&key.namespace, pods));
                }
                Kind::IpPool => cluster.invalid_pools.push(key.name.clone()),
                Kind::Pod => cluster.model.unknown.extend(&invalid.addresses),
                _ => {}
            },
        }
    }
    cluster.pools.sort_by_key(|pool| pool.cidr);
    cluster.note_overlaps(contents);
    cluster.problems.sort_by_key(|problem| problem.severity);
    cluster
}

impl Cluster {
    /// A namespace that objects live in exists, manifest or not, and has the label that the API server gives every one.
    fn note_namespace(&mut self, key: &ObjectKey) {
        if key.kind.namespaced() && !self.model.namespaces.contains_key(&key.namespace) {
            let name = key.namespace.clone();
            let labels = Labels::from([(NAMESPACE_NAME.to_owned(), name.clone())]);
            self.model.namespaces.insert(name, labels);
        }
    }

    fn import_pod(&mut self, key: &ObjectKey, pod: &object::Pod) {
        if pod.host_network || matches!(pod.phase, Some(Phase::Succeeded | Phase::Failed)) {
            return;
        }
        let name = ObjectName::new(&key.namespace, &key.name);
        if let Some(node) = &pod.node_name {
            self.pods_by_node.insert(name.clone(), node.clone());
        }
        let addresses = addresses(pod);
        if addresses.is_empty() {
            return;
        }
        let containers = pod.containers.iter().chain(&pod.init_containers).flatten();
        let named_ports = containers
            .filter_map(|port| {
                Some(NamedPort {
                    name: port.name.clone()?,
                    protocol: protocol(port.protocol),
                    port: port.port,
                })
            })
            .collect();
        let service_account = pod.service_account.clone().or_else(|| Some("default".to_owned()));
        let labels = pod.labels.clone();
        let endpoint = Endpoint { labels, service_account, addresses, named_ports };
        self.model.endpoints.insert(name, Arc::new(endpoint));
    }

    fn add_policy(&mut self, key: &ObjectKey, policy: Policy) {
        let name = PolicyName::new(PolicyKind::Kubernetes, &key.namespace, &key.name);
        self.model.policies.insert(name, Arc::new(policy));
    }

    fn pod_of_invalid_namespace(&mut self, key: &ObjectKey, place: &Place) {
        let message = format!("its namespace {} is not valid: nothing passes it", key.namespace);
        self.problems.push(problem(key, place, message));
    }

    /// A problem of the node with the inner block: it is as a rule the later mistake.
    fn note_overlaps(&mut self, contents: &Contents) {
        self.overlaps = overlap::overlaps(&self.nodes);
        for Overlap { outer, inner } in self.overlaps.clone() {
            let of_inner =
                |(key, _): &(&ObjectKey, &Stored)| key.kind == Kind::Node && key.name == inner.0;
            if let Some((key, stored)) = contents.objects.iter().find(of_inner) {
                let message = format!(
                    "its pod CIDR {} overlaps {} of node {}: neither is routed",
                    inner.1, outer.1, outer.0
                );
                self.problem(key, stored, message);
            }
        }
    }

    fn problem(&mut self, key: &ObjectKey, stored: &Stored, message: String) {
        self.problems.push(problem(key, &stored.place, message));
    }
}

fn problem(key: &ObjectKey, place: &Place, message: String) -> Problem {
    Problem {
        severity: Severity::Error,
        place: place.clone(),
        object: Some(key.clone()),
        field: String::new(),
        cause: Cause::Cluster(message),
        line: None,
    }
}

/// `status.podIPs`, else `podIP`, else Calico's annotation. A pod that is being deleted and whose annotation is empty has
/// released its addresses, whatever its status still says.
fn addresses(pod: &object::Pod) -> BTreeSet<IpAddr> {
    let annotated = pod.annotated_ips.as_deref();
    if pod.deleting && annotated.is_some_and(<[_]>::is_empty) {
        return BTreeSet::new();
    }
    if !pod.pod_ips.is_empty() {
        return pod.pod_ips.iter().copied().collect();
    }
    match pod.pod_ip {
        Some(address) => BTreeSet::from([address]),
        None => annotated.unwrap_or_default().iter().copied().collect(),
    }
}

fn import_node(node: &object::Node) -> Node {
    let mut internal_ips: Vec<IpAddr> = Vec::new();
    let annotated = node.calico_address.map(|net| net.addr());
    for address in annotated.into_iter().chain(node.internal_ips.iter().copied()) {
        if !internal_ips.contains(&address) {
            internal_ips.push(address);
        }
    }
    Node {
        internal_ips,
        subnet: node.calico_address.map(|net| net.trunc()),
        pod_cidrs: node.pod_cidrs.clone(),
    }
}

fn import_pool(pool: &object::IpPool) -> Pool {
    Pool {
        cidr: pool.cidr,
        ipip_mode: pool.ipip_mode.unwrap_or(IpipMode::Never),
        nat_outgoing: pool.nat_outgoing,
        disabled: pool.disabled,
    }
}

/// Absent is TCP.
fn protocol(wire: Option<object::Protocol>) -> Protocol {
    match wire {
        None | Some(object::Protocol::Tcp) => Protocol::Tcp,
        Some(object::Protocol::Udp) => Protocol::Udp,
        Some(object::Protocol::Sctp) => Protocol::Sctp,
    }
}
