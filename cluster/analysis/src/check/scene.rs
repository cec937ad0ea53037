//! The objects as policy sees them when every workload has made its pods.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use manx_calculation::import::{Cluster, Node, import, policy_name};
use manx_objects::State;
use manx_objects::contents::{Contents, Stored};
use manx_objects::object::{Kind, Object, ObjectKey, Pod, Workload};
use manx_objects::problem::Problem;
use manx_policy_compiler::model::{
    Family, LabelView, Labels, Model, NAMESPACE_PREFIX, NamedPort, ObjectName, Policy,
    SERVICE_ACCOUNT_PREFIX,
};
use manx_policy_compiler::selector::Selector;

/// See the module.
pub(super) struct Scene<'a> {
    /// The result of the import of the objects and of the future pods.
    cluster: Cluster,
    /// The pods on their node's network. No policy applies to them.
    on_host: BTreeSet<ObjectName>,
    /// The workloads of the future pods.
    workloads: BTreeMap<ObjectName, (&'a ObjectKey, &'a Workload)>,
    /// The pods as the manifests define them.
    written: BTreeMap<ObjectName, &'a Pod>,
    /// The addresses that manifests give to pods.
    addresses: BTreeMap<ObjectName, Vec<IpNet>>,
    contents: &'a Contents,
    /// The policies that are evaluated, each with its object.
    policies: Vec<(&'a ObjectKey, &'a Object, Arc<Policy>)>,
    /// Whether some labels that a selector might match are not known.
    pub(super) in_doubt: bool,
}

/// An object that a selector may match.
pub(super) struct Member<'m> {
    kind: &'static str,
    pub(super) name: &'m str,
    pub(super) labels: LabelView<'m>,
    pub(super) ports: Vec<&'m NamedPort>,
    pub(super) role: Role,
    /// The workload whose pods this member stands for, if there is one. The workload's controller gives these pods
    /// further labels.
    pub(super) workload: Option<(&'m ObjectKey, &'m Workload)>,
    /// The pod's object, if the member is a pod.
    pub(super) pod: Option<&'m Pod>,
    /// The member's addresses, as far as they are known.
    pub(super) nets: Vec<IpNet>,
}

impl Member<'_> {
    /// Returns whether a selector matches the member. If the member stands for the pods of a workload, returns whether
    /// the selector may match one of these pods.
    pub(super) fn fits(&self, selector: &Selector) -> bool {
        selector.matches(&self.labels)
            || self.workload.is_some_and(|(key, workload)| {
                let inherited = [NAMESPACE_PREFIX, SERVICE_ACCOUNT_PREFIX];
                selector.may_match_with(&self.labels, &|label, value| {
                    !inherited.iter().any(|prefix| label.starts_with(prefix))
                        && workload.may_give(key, label, value)
                })
            })
    }
}

impl<'m> Member<'m> {
    /// Returns the member's namespace, if it has one.
    pub(super) fn namespace(&self) -> Option<&'m str> {
        self.labels.namespace.map(|(name, _)| name)
    }

    /// Returns the member's name in messages: `pod shop/web`, `a pod of Deployment shop/web`, `GlobalNetworkSet bad`.
    pub(super) fn title(&self) -> String {
        let namespace = self.namespace().map(|name| format!("{name}/")).unwrap_or_default();
        let workload = self.name.strip_prefix('(').and_then(|it| it.strip_suffix(')'));
        match workload.and_then(|it| it.split_once(' ')) {
            Some((kind, name)) => format!("a pod of {kind} {namespace}{name}"),
            None => format!("{} {namespace}{}", self.kind, self.name),
        }
    }
}

/// The role that a member has in policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// An endpoint to which policy applies: a pod or a host endpoint.
    Endpoint,
    /// A pod on its node's network. No policy applies to it, and no selector of a rule matches it.
    OnHost,
    /// A network set.
    Set,
}

/// The address of the first future pod. Future pods need addresses because the import leaves out pods without one, and
/// gives each address to one pod only. No check reads these addresses.
const FIRST: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0);

impl<'a> Scene<'a> {
    pub(super) fn new(contents: &'a Contents) -> Self {
        let mut objects = contents.objects.clone();
        let mut on_host = BTreeSet::new();
        let mut workloads = BTreeMap::new();
        let mut written = BTreeMap::new();
        let mut addresses = BTreeMap::new();
        let mut in_doubt = false;
        for (number, (key, stored)) in (0_u128..).zip(&contents.objects) {
            let Some(object) = stored.state.valid() else {
                in_doubt |= is_member(key.kind);
                continue;
            };
            let (key, pod) = match object {
                Object::Pod(pod) => (key.clone(), &**pod),
                Object::Workload(workload) => {
                    let pod = pod_of(key);
                    let name = ObjectName::new(&pod.namespace, &pod.name);
                    workloads.insert(name, (key, &**workload));
                    (pod, &workload.template)
                }
                _ => continue,
            };
            let name = ObjectName::new(&key.namespace, &key.name);
            let known = pod.every_address();
            if pod.host_network {
                on_host.insert(name);
            } else if !known.is_empty() {
                addresses.insert(name, known.into_iter().map(IpNet::from).collect());
            }
            written.insert(ObjectName::new(&key.namespace, &key.name), pod);
            let address = Ipv6Addr::from_bits(FIRST.to_bits() + number);
            let state = State::Valid(Arc::new(Object::Pod(Box::new(to_be(pod, address)))));
            objects.insert(key, Stored { state, place: stored.place.clone() });
        }
        let contents_to_be = Contents { objects, in_sync: contents.in_sync, ..Contents::default() };
        let cluster = import(&contents_to_be);
        let policies = contents.all_valid().filter_map(|(key, object)| {
            let policy = cluster.model.policies.get(&policy_name(key)?)?;
            (!policy.broken).then(|| (key, object, Arc::clone(policy)))
        });
        let policies = policies.collect();
        Self { cluster, on_host, workloads, written, addresses, contents, policies, in_doubt }
    }

    /// Returns the import's own problems.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        self.cluster.problems
    }

    /// Returns the nodes by name.
    pub(super) fn nodes(&self) -> &BTreeMap<String, Node> {
        &self.cluster.nodes
    }

    /// Returns the labels of each namespace by name, including namespaces that are known only because objects are in
    /// them.
    pub(super) fn namespaces(&self) -> &BTreeMap<String, Labels> {
        &self.cluster.model.namespaces
    }

    /// Returns the objects in the form of the reader.
    pub(super) fn contents(&self) -> &'a Contents {
        self.contents
    }

    /// Returns the model of the imported objects.
    pub(super) fn model(&self) -> &Model {
        &self.cluster.model
    }

    /// Returns the address families that pods have or will get. Returns both families if this is not known.
    pub(super) fn families(&self) -> Vec<Family> {
        let Cluster { nodes, pools, .. } = &self.cluster;
        let nets = self.addresses.values().flatten();
        let nets = nets.chain(nodes.values().flat_map(|node| node.plan.blocks()));
        let nets = nets.chain(pools.iter().map(|pool| &pool.cidr));
        let known: BTreeSet<Family> = nets.map(|net| Family::from_address(net.addr())).collect();
        if known.is_empty() { Family::ALL.to_vec() } else { known.into_iter().collect() }
    }

    /// Returns the policies that are evaluated, each with its object's key.
    pub(super) fn policies(&self) -> impl Iterator<Item = (&'a ObjectKey, &'a Object, &Policy)> {
        self.policies.iter().map(|(key, object, policy)| (*key, *object, &**policy))
    }

    /// Returns every object that a selector may match, pods first.
    pub(super) fn members(&self) -> Vec<Member<'_>> {
        let model = &self.cluster.model;
        let pods = model.endpoints.iter().map(|(name, pod)| Member {
            kind: "pod",
            name: &name.name,
            labels: model.pod_view(name, pod),
            ports: pod.named_ports.iter().collect(),
            role: if self.on_host.contains(name) { Role::OnHost } else { Role::Endpoint },
            workload: self.workloads.get(name).copied(),
            pod: self.written.get(name).copied(),
            nets: self.addresses.get(name).cloned().unwrap_or_default(),
        });
        let hosts = model.host_endpoints.iter().map(|(name, host)| Member {
            kind: Kind::HostEndpoint.name(),
            name,
            labels: Model::host_view(host),
            ports: host.named_ports.iter().collect(),
            role: Role::Endpoint,
            workload: None,
            pod: None,
            nets: host.addresses.iter().copied().map(IpNet::from).collect(),
        });
        let sets = model.network_sets.iter().map(|(name, set)| Member {
            kind: if name.namespace.is_empty() {
                Kind::GlobalNetworkSet.name()
            } else {
                Kind::NetworkSet.name()
            },
            name: &name.name,
            labels: model.set_view(name, set),
            ports: Vec::new(),
            role: Role::Set,
            workload: None,
            pod: None,
            nets: set.nets.iter().copied().collect(),
        });
        pods.chain(hosts).chain(sets).collect()
    }
}

/// Returns whether a selector may match labels of an object of this kind.
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

/// Returns the key of the pod that stands for a workload's pods. No other pod has this name.
fn pod_of(workload: &ObjectKey) -> ObjectKey {
    let name = format!("({} {})", workload.kind, workload.name);
    ObjectKey { kind: Kind::Pod, name, ..workload.clone() }
}

/// Returns the pod in the form in which it is imported: as an endpoint, wherever it runs and whatever its phase is,
/// because a message about a selector should not depend on the moment.
fn to_be(pod: &Pod, address: Ipv6Addr) -> Pod {
    let pod_ips = vec![IpAddr::V6(address)];
    Pod { host_network: false, phase: None, deleting: false, pod_ips, ..pod.clone() }
}
