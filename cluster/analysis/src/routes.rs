//! The routes of nodes, from the same topologies from which agents make their routes. The objects are imported once,
//! and the topology of each node is calculated once, because there may be as many requests as pairs of pods.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::rc::Rc;

use ipnet::IpNet;

use manx_calculation::import::{self, Cluster, Ipam, Node, OutgoingAddress};
use manx_calculation::topology::{Reserved, Route, Topology, TopologyError, topology};
use manx_calculation::way_out::is_masqueraded;
use manx_objects::contents::Contents;
use manx_objects::object::Kind;

/// The approximate maximum number of prefixes that are cached. Each takes some hundred bytes.
const MOST_PREFIXES: usize = 1 << 20;

/// The source address that destinations outside the cluster see in a pod's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WayOut {
    /// The pod's own address.
    AsItself,
    /// This address of the node.
    As(IpAddr),
    /// No packet leaves, because the node has no address for it.
    Closed,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Routes<'a> {
    contents: &'a Contents,
    ipam: Ipam,
    cluster: OnceCell<Cluster>,
    kept: RefCell<Kept>,
}

/// The topologies of the nodes that were used last. The value is `None` if the node has no pods.
#[derive(Debug, Default)]
struct Kept {
    by_node: BTreeMap<String, Option<Rc<Topology>>>,
    prefixes: usize,
}

impl<'a> Routes<'a> {
    /// Returns the routes. The IPAM is derived from the objects.
    pub(crate) fn new(contents: &'a Contents) -> Self {
        Self::with_ipam(contents, import::assumed_ipam(contents))
    }

    /// Returns the routes for this IPAM of pod addresses.
    pub(crate) fn with_ipam(contents: &'a Contents, ipam: Ipam) -> Self {
        Self { contents, ipam, cluster: OnceCell::new(), kept: RefCell::default() }
    }

    /// Returns the route from a node to an address, and the route's prefix. Returns `None` if there is no such node, or
    /// if the node has no block for pods. Returns `Err`, with the reason, if the routes are not known.
    pub(crate) fn route(
        &self,
        node: &str,
        address: IpAddr,
    ) -> Result<Option<(IpNet, Route)>, String> {
        Ok(self.topology(node)?.map(|seen| seen.route(address)))
    }

    /// Returns the topology as the node's agent sees it.
    pub(crate) fn topology(&self, node: &str) -> Result<Option<Rc<Topology>>, String> {
        if let Some(known) = self.kept.borrow().by_node.get(node) {
            return Ok(known.clone());
        }
        let made = match topology(self.cluster(), node, &Reserved::new()) {
            Ok(made) => Some(Rc::new(made)),
            Err(TopologyError::UnknownNode { .. } | TopologyError::NoBlock(_)) => None,
            Err(error) => return Err(format!("the routes of node {node} are not known: {error}")),
        };
        self.kept.borrow_mut().keep(node, made.clone(), MOST_PREFIXES);
        Ok(made)
    }

    /// Returns the source address that `destination` sees for packets of a node's pod (`natOutgoing`). Returns `Err`,
    /// with the reason, if it is not known.
    pub(crate) fn way_out(
        &self,
        node: &str,
        [pod, destination]: [IpAddr; 2],
    ) -> Result<WayOut, String> {
        let Some(topology) = self.topology(node)? else { return Ok(WayOut::AsItself) };
        let felix = self.contents.of_kind(Kind::FelixConfiguration);
        let settings = Contents {
            objects: felix.map(|(key, stored)| (key.clone(), stored.clone())).collect(),
            ..Contents::default()
        };
        let settings = import::import_for(&settings, node).way_out;
        let of_node = (self.cluster(), &*topology);
        if !is_masqueraded(of_node, settings.excludes_hosts, [pod, destination]) {
            return Ok(WayOut::AsItself);
        }
        let first = topology.addresses.iter().find(|it| it.is_ipv4() == pod.is_ipv4()).copied();
        let address = match settings.address {
            OutgoingAddress::Named(address) if pod.is_ipv4() => Some(address.into()),
            OutgoingAddress::Unknown if pod.is_ipv4() => None,
            OutgoingAddress::First | OutgoingAddress::Named(_) | OutgoingAddress::Unknown => first,
        };
        Ok(address.map_or(WayOut::Closed, WayOut::As))
    }

    /// Returns the nodes that may have pods, in order. With Calico's IPAM these are all nodes; otherwise they are the
    /// nodes with a block.
    pub(crate) fn nodes_for_pods(&self) -> Vec<String> {
        let nodes = self.cluster().nodes.iter();
        let is_for_pods = |node: &Node| self.ipam == Ipam::Calico || !node.plan.blocks().is_empty();
        nodes.filter(|(_, it)| is_for_pods(it)).map(|(name, _)| name.clone()).collect()
    }

    /// Returns a node as routing sees it.
    pub(crate) fn node(&self, name: &str) -> Option<&Node> {
        self.cluster().nodes.get(name)
    }

    /// Returns the addresses of all nodes.
    pub(crate) fn node_addresses(&self) -> HashSet<IpAddr> {
        self.cluster().node_addresses().into_keys().collect()
    }

    /// Returns the objects from which routes are made: the nodes with their blocks, the pools, and the pods with the
    /// objects that decide whether they are endpoints.
    pub(crate) fn cluster(&self) -> &Cluster {
        self.cluster.get_or_init(|| {
            let of_routes = [
                Kind::Pod,
                Kind::Namespace,
                Kind::ServiceAccount,
                Kind::Node,
                Kind::IpPool,
                Kind::BlockAffinity,
            ];
            let objects = of_routes.into_iter().flat_map(|kind| self.contents.of_kind(kind));
            let contents = Contents {
                objects: objects.map(|(key, stored)| (key.clone(), stored.clone())).collect(),
                in_sync: self.contents.in_sync,
                ..Contents::default()
            };
            import::import_as(&contents, self.ipam, None)
        })
    }
}

impl Kept {
    /// Adds a topology to the cache. If all topologies together have more than `most` prefixes, all other topologies
    /// are removed from the cache.
    fn keep(&mut self, node: &str, made: Option<Rc<Topology>>, most: usize) {
        let prefixes = made.as_ref().map_or(0, |made| made.prefixes.len());
        if self.prefixes + prefixes > most {
            *self = Self::default();
        }
        self.prefixes += prefixes;
        self.by_node.insert(node.to_owned(), made);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: &str = "
{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDR: 10.1.1.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDR: 10.1.2.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: bare}, status: {addresses: [{type: InternalIP, address: 172.18.0.4}]}}
---
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.1.0.0/16}}
";

    #[test]
    fn objects_are_imported_once_and_each_topology_is_made_once() {
        let contents = Contents::from_texts([("nodes.yaml", NODES)]);
        let routes = Routes::new(&contents);
        let seen = routes.topology("n1").unwrap().unwrap();
        let imported = std::ptr::from_ref(routes.cluster());
        assert_eq!(routes.route("n2", seen.addresses[0]).unwrap().unwrap().1, Route::World);
        assert_eq!(routes.route("bare", seen.addresses[0]).unwrap(), None);
        assert!(Rc::ptr_eq(&seen, &routes.topology("n1").unwrap().unwrap()));
        assert!(std::ptr::eq(imported, routes.cluster()));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let contents = Contents::from_texts([("nodes.yaml", NODES)]);
        let routes = Routes::new(&contents);
        let [n1, n2] = ["n1", "n2"].map(|node| routes.topology(node).unwrap());
        let each = n1.as_ref().unwrap().prefixes.len();
        let mut kept = Kept::default();
        kept.keep("n1", n1.clone(), 2 * each);
        kept.keep("n2", n2, 2 * each);
        assert_eq!(kept.by_node.len(), 2);
        kept.keep("n3", n1, 2 * each);
        assert_eq!(kept.by_node.keys().collect::<Vec<_>>(), ["n3"]);
    }
}
