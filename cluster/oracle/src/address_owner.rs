//! Decides which pod has an address if the objects of several pods name it. This implements the law in
//! `docs/policy-semantics.md` independently of the product: it sorts all claims to all addresses, and keeps the first
//! claim to each address.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;

use super::addresses::{addresses, node_addresses};
use super::blocks::{self, BlockSource, NodeBlocks};
use manx_objects::contents::Stored;
use manx_objects::object::{Object, ObjectKey, Pod};

/// The addresses of each pod that has any.
#[derive(Debug, Default)]
pub(super) struct Owners<'a> {
    of_pods: HashMap<&'a ObjectKey, BTreeSet<IpAddr>>,
    /// The addresses that the object of any pod names.
    named: BTreeSet<IpAddr>,
    places: Places<'a>,
}

/// The blocks and pools in which pods can have addresses.
#[derive(Debug, Default)]
struct Places<'a> {
    nodes: BTreeMap<&'a str, NodeBlocks>,
    of_nodes: BTreeSet<IpAddr>,
    pools: Vec<IpNet>,
}

impl<'a> Owners<'a> {
    pub(super) fn new(objects: &'a BTreeMap<ObjectKey, Stored>, source: BlockSource) -> Self {
        let nodes = blocks::of_nodes(objects, source);
        let mut places = Places { nodes, ..Places::default() };
        let mut pods = Vec::new();
        for (key, stored) in objects {
            let Some(object) = stored.state.valid() else { continue };
            match object {
                Object::Node(node) => places.of_nodes.extend(node_addresses(node, source)),
                Object::IpPool(pool) if pool.is_for_cluster() => places.pools.push(pool.cidr),
                Object::Pod(pod) => pods.push((key, &**pod)),
                _ => {}
            }
        }
        let (mut sayings, mut named) = (Vec::new(), BTreeSet::new());
        for (key, pod) in pods {
            let by_kubelet = pod.pod_ip.is_some() || !pod.pod_ips.is_empty();
            let mut all = addresses(pod);
            if !by_kubelet {
                let firsts = first_of_each_family(pod);
                all.retain(|address| firsts.contains(address));
            }
            for address in all {
                named.insert(address);
                if !by_kubelet && !places.could_be(pod, address) {
                    continue;
                }
                let worth = match (by_kubelet, pod.deleting) {
                    (true, false) => 0,
                    (true, true) => 1,
                    (false, _) => 2,
                };
                let strange = !places.is_of_node(pod, address);
                let age = (pod.created.is_none(), pod.created);
                let name = (&key.namespace, &key.name);
                sayings.push(((address, worth, strange, age, name), key));
            }
        }
        sayings.sort();
        sayings.dedup_by_key(|((address, ..), _)| *address);
        let mut of_pods: HashMap<_, BTreeSet<IpAddr>> = HashMap::new();
        for ((address, ..), key) in sayings {
            of_pods.entry(key).or_default().insert(address);
        }
        Self { of_pods, named, places }
    }

    /// Returns the addresses that belong to this pod.
    pub(super) fn of(&self, pod: &ObjectKey) -> BTreeSet<IpAddr> {
        self.of_pods.get(pod).cloned().unwrap_or_default()
    }

    /// Returns those addresses of an invalid pod from and to which nothing passes: the ones in its status, and the ones
    /// in its annotations that a pod can have. An address that the object of a valid pod names is left out.
    pub(super) fn closed(
        &self,
        reported: &BTreeSet<IpAddr>,
        annotated: &BTreeSet<IpAddr>,
    ) -> BTreeSet<IpAddr> {
        let annotated = annotated.iter().filter(|address| self.places.could_be_anyones(**address));
        let all = reported.iter().chain(annotated);
        all.filter(|address| !self.named.contains(address)).copied().collect()
    }
}

impl Places<'_> {
    fn is_of_node(&self, pod: &Pod, address: IpAddr) -> bool {
        let node = pod.node_name.as_deref().and_then(|name| self.nodes.get(name));
        node.is_some_and(|node| node.contain(address))
    }

    /// Returns whether a pod of that node can have the address: either the address is for pods in one of the node's
    /// blocks, or it is in a pool and in no block.
    fn could_be(&self, pod: &Pod, address: IpAddr) -> bool {
        let Some(node) = pod.node_name.as_deref().and_then(|name| self.nodes.get(name)) else {
            return false;
        };
        if node.contain(address) { node.have_for_pods(address) } else { self.is_of_pool(address) }
    }

    fn could_be_anyones(&self, address: IpAddr) -> bool {
        self.nodes.values().any(|node| node.have_for_pods(address)) || self.is_of_pool(address)
    }

    fn is_of_pool(&self, address: IpAddr) -> bool {
        let is_ordinary = match address {
            IpAddr::V4(v4) => !(v4.is_link_local() || v4.is_broadcast()),
            IpAddr::V6(v6) => !(v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some()),
        } && !address.is_loopback()
            && !address.is_multicast()
            && !address.is_unspecified();
        is_ordinary
            && !self.of_nodes.contains(&address)
            && !self.nodes.values().any(|node| node.withhold(address))
            && self.pools.iter().any(|pool| pool.contains(&address))
    }
}

/// Returns the first IPv4 address and the first IPv6 address of the annotation that is used.
fn first_of_each_family(pod: &Pod) -> Vec<IpAddr> {
    let noted = &pod.annotated_ips;
    let lists = [&noted.pod_ips, &noted.pod_ip, &noted.aws_pod_ips].into_iter().flatten();
    let list = lists.into_iter().find(|list| !list.is_empty());
    let of = |v4: bool| list?.iter().copied().find(|address| address.is_ipv4() == v4);
    [of(true), of(false)].into_iter().flatten().collect()
}
