//! Parties: the rows and columns of the matrix that users see.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use manx_calculation::import::Cluster;
use manx_objects::contents::Contents;
use manx_objects::few;
use manx_objects::object::{Kind, Object, ObjectKey};
use manx_policy_compiler::model::ObjectName;

use super::groups::{Group, GroupedPod, NodeKind, Place};
use super::outside::Outside;

/// A row and a column of the matrix. It consists of ends that policy cannot distinguish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Party {
    pub kind: PartyKind,
    /// The pods of the party, if it consists of pods.
    pub pods: Vec<ObjectName>,
    /// The party's group. Parties of one group have equal rows and columns.
    pub group: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartyKind {
    /// All pods of a workload.
    Workload {
        namespace: String,
        /// The kind of the controller.
        kind: String,
        name: String,
    },
    /// A pod. The address is present if policy distinguishes between the pod's addresses.
    Pod(ObjectName, Option<IpAddr>),
    /// The node of the pod at the other end.
    OwnNode,
    /// Nodes, except the node of the pod at the other end.
    Nodes(Vec<String>),
    /// Addresses in these nets, except addresses of smaller nets and of objects.
    Nets(Vec<IpNet>),
    /// Addresses that no object names. The list contains those of these addresses that were
    /// requested.
    Outside(Vec<IpAddr>),
}

/// A pod that is not a party.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftOut {
    pub why: &'static str,
    pub pod: ObjectName,
}

impl Party {
    /// Returns the party's namespace, or an empty text if it has none.
    pub fn namespace(&self) -> &str {
        match &self.kind {
            PartyKind::Workload { namespace, .. } => namespace,
            PartyKind::Pod(name, _) => &name.namespace,
            _ => "",
        }
    }

    /// Returns whether the party consists of pods.
    pub fn is_pods(&self) -> bool {
        !self.pods.is_empty()
    }

    /// Returns the names that a filter can match.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.pods.iter().map(ObjectName::to_string).collect();
        match &self.kind {
            PartyKind::Workload { namespace, name, .. } => {
                names.push(format!("{namespace}/{name}"));
            }
            PartyKind::Pod(..) => {}
            PartyKind::OwnNode => names.push("node".to_owned()),
            PartyKind::Nodes(nodes) => {
                names.push("node".to_owned());
                names.extend(nodes.iter().map(|node| format!("node/{node}")));
            }
            PartyKind::Nets(nets) => names.extend(nets.iter().map(IpNet::to_string)),
            PartyKind::Outside(_) => names.push("outside".to_owned()),
        }
        names
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            PartyKind::Workload { namespace, kind, name } => {
                write!(f, "{namespace}/{kind} {name} ({})", self.pods.len())
            }
            PartyKind::Pod(name, None) => name.fmt(f),
            PartyKind::Pod(name, Some(address)) => write!(f, "{name} at {address}"),
            PartyKind::OwnNode => f.write_str("its own node"),
            PartyKind::Nodes(nodes) => several(f, "another node", "other nodes", nodes),
            PartyKind::Nets(nets) => several(f, "net", "nets", nets),
            PartyKind::Outside(_) => f.write_str("outside"),
        }
    }
}

/// Writes a list: `one` or `many` as its title, and at most three of the items in `all`.
fn several<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    one: &str,
    many: &str,
    all: &[T],
) -> fmt::Result {
    write!(f, "{} {}", if all.len() == 1 { one } else { many }, few(all, 3))
}

/// Returns the parties that consist of pods. A workload is one party if all its pods are in one
/// group.
pub(super) fn of_pods(contents: &Contents, pods: Vec<GroupedPod>) -> Vec<Party> {
    type Workload = (String, String, String);
    let mut workloads: BTreeMap<Workload, Vec<GroupedPod>> = BTreeMap::new();
    let mut parties = Vec::new();
    for pod in pods {
        let ObjectName { namespace, name } = &pod.name;
        match contents.workload(&ObjectKey::new(Kind::Pod, namespace, name)) {
            Some(owner) => {
                let key = (pod.name.namespace.clone(), owner.name, owner.kind);
                workloads.entry(key).or_default().push(pod);
            }
            None => parties.push(single(pod)),
        }
    }
    for ((namespace, name, kind), pods) in workloads {
        let first = pods.first().map(|pod| pod.group);
        if pods.iter().all(|pod| Some(pod.group) == first && pod.address.is_none()) {
            let kind = PartyKind::Workload { namespace, kind, name };
            let group = first.unwrap_or_default();
            let pods = pods.into_iter().map(|pod| pod.name).collect();
            parties.push(Party { kind, pods, group });
        } else {
            parties.extend(pods.into_iter().map(single));
        }
    }
    let by_name = |party: &Party| (party.namespace().to_owned(), party.names().pop());
    parties.sort_by_cached_key(by_name);
    parties
}

fn single(GroupedPod { name, address, group }: GroupedPod) -> Party {
    Party { pods: vec![name.clone()], kind: PartyKind::Pod(name, address), group }
}

/// Adds the pod's own node as a party, and the other nodes by kind.
pub(super) fn add_nodes(parties: &mut Vec<Party>, groups: &mut Vec<Group>, nodes: &[NodeKind]) {
    let mut add = |kind, group| {
        parties.push(Party { kind, pods: Vec::new(), group: groups.len() });
        groups.push(group);
    };
    let Some(first) = nodes.first() else { return };
    add(PartyKind::OwnNode, Group { place: Place::OwnNode, ends: first.ends });
    for (index, kind) in nodes.iter().enumerate() {
        let group = Group { place: Place::Nodes(index), ends: kind.ends };
        add(PartyKind::Nodes(kind.names.clone()), group);
    }
}

/// Adds the nets and the rest of the world. Returns the parties of each requested net.
pub(super) fn add_outside(
    parties: &mut Vec<Party>,
    groups: &mut Vec<Group>,
    outside: &Outside,
) -> BTreeMap<IpNet, BTreeSet<usize>> {
    let first = parties.len();
    let mut add = |kind, ends| {
        parties.push(Party { kind, pods: Vec::new(), group: groups.len() });
        groups.push(Group { place: Place::Outside, ends });
    };
    for (nets, end) in &outside.nets {
        let ends = if end.address.is_ipv4() { [Some(*end), None] } else { [None, Some(*end)] };
        add(PartyKind::Nets(nets.clone()), ends);
    }
    let addresses: Vec<IpAddr> = outside.rest.iter().flatten().map(|end| end.address).collect();
    if !addresses.is_empty() {
        add(PartyKind::Outside(addresses), outside.rest);
    }
    let rest = first + outside.nets.len();
    let asked = outside.asked.iter().map(|(net, held)| {
        let nets = held.nets.iter().map(|index| first + index);
        (*net, nets.chain(held.rest.then_some(rest)).collect())
    });
    asked.collect()
}

/// Returns the parties of the pods and nodes that have an address.
pub(super) fn having(parties: &[Party], cluster: &Cluster, address: IpAddr) -> BTreeSet<usize> {
    let has = |pod: &ObjectName| {
        cluster.model.endpoints.get(pod).is_some_and(|pod| pod.addresses.contains(&address))
    };
    let is_of_node = |name: &String| {
        cluster.nodes.get(name).is_some_and(|node| node.addresses.contains(&address))
    };
    let is_it = |party: &Party| match &party.kind {
        PartyKind::Pod(_, Some(own)) => *own == address,
        PartyKind::Nodes(names) => names.iter().any(is_of_node),
        _ => party.pods.iter().any(has),
    };
    parties.iter().enumerate().filter(|(_, party)| is_it(party)).map(|(index, _)| index).collect()
}

/// Returns the pods that are not endpoints.
pub(super) fn left_out(contents: &Contents, cluster: &Cluster) -> Vec<LeftOut> {
    let mut left_out: Vec<LeftOut> = contents
        .of_kind(Kind::Pod)
        .filter_map(|(key, stored)| {
            let pod = ObjectName::new(&key.namespace, &key.name);
            if cluster.model.endpoints.contains_key(&pod) {
                return None;
            }
            let why = match stored.state.valid() {
                None => "not valid, so nothing passes",
                Some(Object::Pod(pod)) if pod.host_network => {
                    "on the host's network: it is its node"
                }
                Some(Object::Pod(pod)) if pod.is_finished() => "finished",
                Some(Object::Pod(pod)) if pod.every_address().is_empty() => "without an address",
                Some(_) => {
                    "no endpoint: released, or its namespace or service account is not valid"
                }
            };
            Some(LeftOut { why, pod })
        })
        .collect();
    left_out.sort();
    left_out
}
