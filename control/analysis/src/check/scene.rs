//! The objects as policy sees them once every pod that they lead to is there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use manx_calculation::import::{Cluster, Node, import, policy_name};
use manx_objects::State;
use manx_objects::contents::{Contents, Stored};
use manx_objects::object::{Kind, Object, ObjectKey, Pod};
use manx_objects::problem::Problem;
use manx_policy_compiler::model::{LabelView, Model, NamedPort, ObjectName, Policy};

/// See the module.
pub(super) struct Scene<'a> {
    /// The import of the objects and of the pods to be.
    cluster: Cluster,
    /// The pods on their nodes' network, to which no policy applies.
    on_host: BTreeSet<ObjectName>,
    /// The pods as they are written.
    written: BTreeMap<ObjectName, &'a Pod>,
    contents: &'a Contents,
    /// Whether the labels of something that a selector may match are not known.
    pub(super) in_doubt: bool,
}

/// Something that a selector may match.
pub(super) struct Member<'m> {
    pub(super) labels: LabelView<'m>,
    pub(super) ports: Vec<&'m NamedPort>,
    pub(super) role: Role,
    /// The pod as it is written, if it is one.
    pub(super) pod: Option<&'m Pod>,
}

/// What a member is to policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Policy applies to it: a pod, a host endpoint.
    Endpoint,
    /// A pod on its node's network: neither policy nor a selector of a rule applies to it.
    OnHost,
    /// A network set.
    Set,
}

/// Where the addresses of pods to be begin. The import leaves out pods without one, and gives one address to one pod. No
/// check reads them.
const FIRST: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0);

impl<'a> Scene<'a> {
    pub(super) fn new(contents: &'a Contents) -> Self {
        let mut objects = contents.objects.clone();
        let mut on_host = BTreeSet::new();
        let mut written = BTreeMap::new();
        let mut in_doubt = false;
        for (number, (key, stored)) in (0_u128..).zip(&contents.objects) {
            let State::Valid(object) = &stored.state else {
                in_doubt |= is_member(key.kind);
                continue;
            };
            let (key, pod) = match &**object {
                Object::Pod(pod) => (key.clone(), &**pod),
                Object::Workload(workload) => (pod_of(key), &workload.template),
                _ => continue,
            };
            if pod.host_network {
                on_host.insert(ObjectName::new(&key.namespace, &key.name));
            }
            written.insert(ObjectName::new(&key.namespace, &key.name), pod);
            let address = Ipv6Addr::from_bits(FIRST.to_bits() + number);
            let state = State::Valid(Arc::new(Object::Pod(Box::new(to_be(pod, address)))));
            objects.insert(key, Stored { state, place: stored.place.clone() });
        }
        let contents_to_be = Contents { objects, in_sync: contents.in_sync, ..Contents::default() };
        Self { cluster: import(&contents_to_be), on_host, written, contents, in_doubt }
    }

    /// The import's own problems.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        self.cluster.problems
    }

    /// The nodes by name.
    pub(super) fn nodes(&self) -> &BTreeMap<String, Node> {
        &self.cluster.nodes
    }

    /// The model of all of it.
    pub(super) fn model(&self) -> &Model {
        &self.cluster.model
    }

    /// The policies that are evaluated, each with its object's key.
    pub(super) fn policies(&self) -> impl Iterator<Item = (&'a ObjectKey, &'a Object, &Policy)> {
        self.contents.objects.iter().filter_map(|(key, stored)| {
            let State::Valid(object) = &stored.state else { return None };
            let policy = self.cluster.model.policies.get(&policy_name(key)?)?;
            (!policy.broken).then_some((key, &**object, &**policy))
        })
    }

    /// Everything that a selector may match, pods first.
    pub(super) fn members(&self) -> Vec<Member<'_>> {
        let model = &self.cluster.model;
        let pods = model.endpoints.iter().map(|(name, pod)| Member {
            labels: model.pod_view(name, pod),
            ports: pod.named_ports.iter().collect(),
            role: if self.on_host.contains(name) { Role::OnHost } else { Role::Endpoint },
            pod: self.written.get(name).copied(),
        });
        let hosts = model.host_endpoints.values().map(|host| Member {
            labels: Model::host_view(host),
            ports: host.named_ports.iter().collect(),
            role: Role::Endpoint,
            pod: None,
        });
        let sets = model.network_sets.iter().map(|(name, set)| Member {
            labels: model.set_view(name, set),
            ports: Vec::new(),
            role: Role::Set,
            pod: None,
        });
        pods.chain(hosts).chain(sets).collect()
    }
}

/// Whether a selector may see labels of an object of this kind.
fn is_member(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Namespace
            | Kind::Pod
            | Kind::ServiceAccount
            | Kind::Workload(_)
            | Kind::NetworkSet
            | Kind::GlobalNetworkSet
            | Kind::HostEndpoint
            | Kind::Profile
    )
}

/// The key of a workload's pod: a name that no pod has.
fn pod_of(workload: &ObjectKey) -> ObjectKey {
    ObjectKey {
        kind: Kind::Pod,
        namespace: workload.namespace.clone(),
        name: format!("({} {})", workload.kind, workload.name),
    }
}

/// The pod as an endpoint, wherever it runs and whether or not it has started or ended: what a selector says of it is
/// not meant for one moment.
fn to_be(pod: &Pod, address: Ipv6Addr) -> Pod {
    let pod_ips = vec![IpAddr::V6(address)];
    Pod { host_network: false, phase: None, deleting: false, pod_ips, ..pod.clone() }
}
