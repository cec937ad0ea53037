//! Groups: a group consists of ends that policy cannot distinguish. Everything is computed once for each pair of
//! groups.
//!
//! Law: two pods of one group have, in each family, the same class, so every other end decides equally about them. They
//! have the same chain in each direction, so they decide equally about every other end. Their nodes are of the same
//! kind.

use std::collections::BTreeMap;
use std::net::IpAddr;

use manx_calculation::import::Cluster;
use manx_objects::contents::Contents;
use manx_policy_compiler::image::{ChainId, Identity, Image};
use manx_policy_compiler::model::{Direction, Family, ObjectName};

/// A group of ends that policy cannot distinguish.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) place: Place,
    /// For each family, the tables' entries for the group, or `None` if the group has no address of that family.
    pub(super) ends: [Option<End>; 2],
}

/// The kind of ends that a group contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Pods, on nodes of this kind.
    Pods { own: Option<usize> },
    /// The node that a pod runs on.
    OwnNode,
    /// All nodes of this kind, except the node of the pod at the other end.
    Nodes(usize),
    /// Addresses outside the cluster.
    Outside,
}

/// The tables' entries for an address.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    pub(super) address: IpAddr,
    pub(super) identity: Identity,
    /// The chains of a pod, by direction. Nodes and addresses outside the cluster have none.
    pub(super) chains: Option<[ChainId; 2]>,
}

/// A kind of node: nodes that policy cannot distinguish.
#[derive(Debug, Clone)]
pub(super) struct NodeKind {
    /// The nodes.
    pub(super) names: Vec<String>,
    /// For each family, the entries of the first node's first address.
    pub(super) ends: [Option<End>; 2],
    /// Whether the node accepts packets from its own pods.
    pub(super) accepts: bool,
}

/// A key for an address. Addresses that policy cannot distinguish have equal keys.
type AddressKey = (Option<u32>, Option<[ChainId; 2]>, Option<Identity>);
type Key = (Option<usize>, [Option<AddressKey>; 2]);

/// A pod, with its group. If policy distinguishes between the pod's addresses, this is only one of them, and `address`
/// names it.
#[derive(Debug)]
pub(super) struct GroupedPod {
    pub(super) name: ObjectName,
    pub(super) address: Option<IpAddr>,
    pub(super) group: usize,
}

/// Returns the kinds of node, and the kind of each node.
pub(super) fn node_kinds(
    image: &Image,
    cluster: &mut Cluster,
    contents: &Contents,
) -> (Vec<NodeKind>, BTreeMap<String, usize>) {
    let mut kinds: Vec<NodeKind> = Vec::new();
    let mut numbers = BTreeMap::new();
    let mut of_node = BTreeMap::new();
    let nodes: Vec<(String, Vec<IpAddr>)> = cluster
        .nodes
        .iter()
        .map(|(name, node)| (name.clone(), node.internal_ips.clone()))
        .collect();
    for (name, addresses) in nodes {
        let ends = Family::ALL.map(|family| {
            let address = addresses.iter().find(|it| Family::from_address(**it) == family);
            address.map(|address| End::new(image, *address, None))
        });
        if ends.iter().all(Option::is_none) {
            continue;
        }
        cluster.apply_felix_configuration(contents, Some(&name));
        let accepts = !cluster.drops_to_node;
        let key = (ends.map(|end| Some(image.class_of(end?.identity))), accepts);
        let kind = *numbers.entry(key).or_insert_with(|| {
            kinds.push(NodeKind { names: Vec::new(), ends, accepts });
            kinds.len() - 1
        });
        kinds[kind].names.push(name.clone());
        of_node.insert(name, kind);
    }
    (kinds, of_node)
}

/// Returns the groups of all pods.
pub(super) fn group_pods(
    image: &Image,
    cluster: &Cluster,
    node_kinds: &BTreeMap<String, usize>,
) -> (Vec<Group>, Vec<GroupedPod>) {
    let (mut groups, mut pods) = (Vec::new(), Vec::new());
    let mut numbers: BTreeMap<Key, usize> = BTreeMap::new();
    let mut number = |own, ends: [Option<End>; 2]| {
        let key = (own, ends.map(|end| Some(end?.key(image))));
        *numbers.entry(key).or_insert_with(|| {
            groups.push(Group { place: Place::Pods { own }, ends });
            groups.len() - 1
        })
    };
    for (name, endpoint) in &*cluster.model.endpoints {
        let chains = Direction::ALL.map(|direction| image.chain(name, direction));
        let [Some(ingress), Some(egress)] = chains else { continue };
        let own = cluster.pods_by_node.get(name).and_then(|node| node_kinds.get(&**node)).copied();
        let ends: Vec<End> = endpoint
            .addresses
            .iter()
            .map(|address| End::new(image, *address, Some([ingress, egress])))
            .collect();
        let of_family = |family| {
            let mut here = ends.iter().filter(move |end| end.family() == family);
            let first = here.next().copied();
            let alike =
                first.is_none_or(|first| here.all(|end| end.key(image) == first.key(image)));
            (first, alike)
        };
        let families = Family::ALL.map(of_family);
        if families.iter().all(|(_, alike)| *alike) {
            let group = number(own, families.map(|(first, _)| first));
            pods.push(GroupedPod { name: name.clone(), address: None, group });
            continue;
        }
        for end in ends {
            let ends = Family::ALL.map(|family| (end.family() == family).then_some(end));
            let (address, group) = (Some(end.address), number(own, ends));
            pods.push(GroupedPod { name: name.clone(), address, group });
        }
    }
    (groups, pods)
}

impl End {
    pub(super) fn new(image: &Image, address: IpAddr, chains: Option<[ChainId; 2]>) -> Self {
        Self { address, identity: image.identity(address), chains }
    }

    pub(super) fn family(&self) -> Family {
        Family::from_address(self.address)
    }

    /// If a chain is evaluated rule by rule, the result depends on the identity of the end that has the chain.
    fn key(&self, image: &Image) -> AddressKey {
        let mut chains = self.chains.iter().flatten();
        let looks = chains.any(|chain| image.is_linear(*chain));
        (image.class_of(self.identity), self.chains, looks.then_some(self.identity))
    }

    /// Returns the chain of one direction.
    pub(super) fn chain(&self, direction: Direction) -> Option<ChainId> {
        self.chains.map(|chains| chains[direction as usize])
    }
}
