//! The objects as policy sees them once every pod that they lead to is there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use manx_calculation::import::{Cluster, Node, import, policy_name};
use manx_objects::State;
use manx_objects::contents::{Contents, Stored};
use manx_objects::object::{Kind, Object, ObjectKey, Pod};
use manx_objects::problem::Problem;
use manx_policy_compiler::model::{Family, LabelView, Model, NamedPort, ObjectName, Policy};

/// See the module.
pub(super) struct Scene<'a> {
    /// The import of the objects and of the pods to be.
    cluster: Cluster,
    /// The pods on their nodes' network, to which no policy applies.
    on_host: BTreeSet<ObjectName>,
    /// The addresses that manifests give pods.
    addresses: BTreeMap<ObjectName, Vec<IpNet>>,
    contents: &'a Contents,
    /// Whether the labels of something that a selector may match are not known.
    pub(super) in_doubt: bool,
}

/// Something that a selector may match.
pub(super) struct Member<'m> {
    pub(super) labels: LabelView<'m>,
    pub(super) ports: Vec<&'m NamedPort>,
    pub(super) role: Role,
    /// Its namespace, empty if it has none, and its name.
    pub(super) name: [&'m str; 2],
    /// Its addresses, as far as they are known.
    pub(super) nets: Vec<IpNet>,
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
        let mut addresses = BTreeMap::new();
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
            let name = ObjectName::new(&key.namespace, &key.name);
            let known = pod.every_address();
            if pod.host_network {
                on_host.insert(name);
            } else if !known.is_empty() {
                addresses.insert(name, known.into_iter().map(IpNet::from).collect());
            }
            let address = Ipv6Addr::from_bits(FIRST.to_bits() + number);
            let state = State::Valid(Arc::new(Object::Pod(Box::new(to_be(pod, address)))));
            objects.insert(key, Stored { state, place: stored.place.clone() });
        }
        let contents_to_be = Contents { objects, in_sync: contents.in_sync, ..Contents::default() };
        Self { cluster: import(&contents_to_be), on_host, addresses, contents, in_doubt }
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

    /// The families of the addresses that pods have or get; both if that is not known.
    pub(super) fn families(&self) -> Vec<Family> {
        let Cluster { nodes, pools, .. } = &self.cluster;
        let nets = self.addresses.values().flatten();
        let nets = nets.chain(nodes.values().flat_map(|node| &node.pod_cidrs));
        let nets = nets.chain(pools.iter().map(|pool| &pool.cidr));
        let known: BTreeSet<Family> = nets.map(|net| Family::from_address(net.addr())).collect();
        if known.is_empty() { Family::ALL.to_vec() } else { known.into_iter().collect() }
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
            name: [&name.namespace, &name.name],
            nets: self.addresses.get(name).cloned().unwrap_or_default(),
        });
        let hosts = model.host_endpoints.iter().map(|(name, host)| Member {
            labels: Model::host_view(host),
            ports: host.named_ports.iter().collect(),
            role: Role::Endpoint,
            name: ["", name],
            nets: host.addresses.iter().copied().map(IpNet::from).collect(),
        });
        let sets = model.network_sets.iter().map(|(name, set)| Member {
            labels: model.set_view(name, set),
            ports: Vec::new(),
            role: Role::Set,
            name: [&name.namespace, &name.name],
            nets: set.nets.iter().copied().collect(),
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
