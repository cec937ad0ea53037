//! The view of this node, derived from the inputs: the cluster that the objects describe, the place of the node in it,
//! and the services that it translates.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::IpNet;

use super::inputs::Inputs;
use super::node_services::{ChangedAddresses, NodeServices, ServiceChange, admission};
use super::routers::{self, Gateways, Needed, WaysOut};
use crate::error::Error;
use crate::host_device::ChangedRoutes;
use crate::own_addresses::is_own;
use crate::port_rules::{Desired, GrantedPort, LOOPBACK};
use crate::settings::{self, Ipam, Network, Settings};
use manx_calculation::import::{Cluster, import_as};
use manx_calculation::overlay::Overlay;
use manx_calculation::services::announced::nets::AnnouncedNets;
use manx_calculation::services::announced::{Announced, AnnouncedRoutes};
use manx_calculation::services::{GrantedPorts, HealthCheck, KubeProxyServices};
use manx_calculation::topology::{
    self, Contribution, HostNetwork, HostRoute, Reserved, ReservedFor, Topology, TopologyError,
};
use manx_datastore::SourceError;
use manx_objects::contents::Changes;
use manx_objects::few;
use manx_objects::object::{Kind, Object, ObjectKey};
use manx_objects::problem::Problem;
use manx_observe::checks::{Check, Checks};
use manx_policy_compiler::model::ObjectName;

/// The error for a requested address that has another owner.
#[derive(Debug, thiserror::Error)]
#[error(
    "address {address} is that of {holder} in the datastore: name another, or correct that object"
)]
pub(super) struct TakenAddress {
    address: IpAddr,
    holder: String,
}

/// See the module.
pub(crate) struct View {
    /// The name of this node.
    pub(super) node: String,
    network: Network,
    ipam: Ipam,
    /// The name of the node's interface to other nodes; empty until the interface is found.
    pub(crate) uplink: String,
    /// The cluster that the objects describe.
    pub(super) cluster: Cluster,
    /// The node's place in the cluster. If the node has no place there now, this is the last one that it had.
    pub(crate) topology: Topology,
    /// Whether the topology lacks the other nodes' pods, because pools are not valid.
    is_closed: bool,
    /// The node's own addresses on all interfaces, including addresses of Manx's interfaces that the kernel does not have
    /// yet.
    pub(super) own_addresses: BTreeSet<IpNet>,
    /// The addresses of the node's interfaces that other hosts can reach.
    interface_addresses: BTreeSet<IpAddr>,
    /// The services in the form in which this node translates them.
    pub(super) services: NodeServices,
    /// The ranges of services' addresses that nodes announce to their BGP peers.
    pub(super) announced_nets: AnnouncedNets,
    /// The single addresses that this node announces to its peers. `None` if it speaks no BGP.
    pub(super) announced: Option<Announced>,
    /// The routes out of the cluster that routers have announced, and the addresses that these must not affect (`needed`).
    /// `None`: routers have announced none yet since the start.
    ways_out: Option<WaysOut>,
    /// The gateways to BGP peers.
    gateways: Gateways,
    needed: Needed,
}

/// The most addresses of a node that have node ports. Each of them has all node ports, so the number is limited.
const MOST_NODE_PORT_ADDRESSES: usize = 16;

/// A topology, and the reason if it lacks the other nodes' pods.
type Placed = (Topology, Option<TopologyError>);

/// The node's own addresses: those that its kernel has, and those of Manx's interfaces.
fn own_addresses(inputs: &Inputs, topology: &Topology) -> BTreeSet<IpNet> {
    let HostNetwork { addresses, masquerade_addresses, .. } = topology.host_network();
    let own = addresses.into_iter().chain(masquerade_addresses).map(IpNet::from);
    own.chain(inputs.own_addresses().iter().copied()).collect()
}

impl View {
    /// The view before anything is imported.
    pub(super) fn new(
        node: &str,
        network: Network,
        ipam: Ipam,
        services: &settings::ServiceTranslator,
    ) -> Self {
        Self {
            node: node.to_owned(),
            network,
            ipam,
            uplink: String::new(),
            cluster: Cluster::default(),
            topology: Topology::default(),
            is_closed: false,
            own_addresses: BTreeSet::new(),
            interface_addresses: BTreeSet::new(),
            services: NodeServices::new(node, network, services),
            announced_nets: AnnouncedNets::default(),
            announced: None,
            ways_out: Some(WaysOut::new()),
            gateways: Gateways::new(),
            needed: Needed::default(),
        }
    }

    /// Makes the first view. An agent does not start if its node has no place in the cluster, or if its directory cannot be
    /// read completely.
    pub(crate) fn open(settings: &Settings, inputs: &mut Inputs) -> Result<Self, Error> {
        let Settings { name, network, ipam, services, .. } = settings;
        let mut view = Self::new(name, *network, *ipam, services);
        view.announced = settings.bgp.then(|| Announced::new(name, view.services.external_nets()));
        let cluster = view.import_contents(inputs);
        if let settings::Datastore::Directory(path) = &settings.datastore
            && !cluster.in_sync
        {
            let problems: Vec<String> = cluster.problems.iter().map(Problem::summary).collect();
            return Err(SourceError::NotInSync(path.clone(), problems.join("; ")).into());
        }
        view.set_cluster(inputs, cluster);
        inputs.note_imported();
        view.place(inputs)?;
        view.update_services(inputs, Some(&Changes::Everything), true);
        view.update_announced(inputs, &Changes::Everything);
        Ok(view)
    }

    pub(super) fn import(&mut self, inputs: &mut Inputs) {
        self.set_cluster(inputs, self.import_contents(inputs));
    }

    fn import_contents(&self, inputs: &Inputs) -> Cluster {
        import_as(inputs.contents(), self.ipam, Some(&self.node))
    }

    fn set_cluster(&mut self, inputs: &mut Inputs, cluster: Cluster) {
        let known: HashSet<String> = self.cluster.problems.iter().map(Problem::summary).collect();
        for problem in cluster.problems.iter().map(Problem::summary) {
            if !known.contains(&problem) {
                tracing::warn!(problem, "datastore");
            }
        }
        inputs.source.report(&cluster.problems);
        self.cluster = cluster;
    }

    /// Finds the node's place in the cluster. If it has none, the last topology stays in force, but the node's own
    /// addresses are updated. If there is no topology yet and pools are not valid, the topology lacks the other nodes'
    /// pods, so that the agent can start.
    pub(super) fn place(&mut self, inputs: &Inputs) -> Result<(), TopologyError> {
        let placed = self.find_place(inputs).map(|(topology, closed)| {
            if let Some(error) = &closed {
                tracing::error!(%error, "no pod of another node is reached until then");
            }
            let known: BTreeSet<String> = self.topology.problems().collect();
            for problem in topology.problems().filter(|problem| !known.contains(problem)) {
                tracing::error!(problem, "topology");
            }
            (self.topology, self.is_closed) = (topology, closed.is_some());
        });
        self.own_addresses = own_addresses(inputs, &self.topology);
        self.interface_addresses.clone_from(inputs.interface_addresses());
        let reserved = inputs.reserved().collect();
        self.announced_nets = AnnouncedNets::new(inputs.contents(), &self.cluster, &reserved);
        if let NodeServices::Manx(services) = &mut self.services {
            let announced = (&self.announced_nets, self.announced.is_some());
            services.place(inputs.contents(), announced, &self.cluster);
        }
        placed
    }

    /// Calculates the topology. The addresses of Manx's own interfaces are reserved even if the kernel does not have them
    /// yet.
    fn find_place(&self, inputs: &Inputs) -> Result<Placed, TopologyError> {
        let placed = self.topology_with(&self.reserved(inputs, inputs.own_addresses()))?;
        let own = own_addresses(inputs, &placed.0);
        if own == *inputs.own_addresses() {
            return Ok(placed);
        }
        self.topology_with(&self.reserved(inputs, &own))
    }

    /// The routes from objects, of all sources.
    pub(super) fn contributions(
        &self,
        inputs: &Inputs,
    ) -> Result<Vec<Contribution>, TopologyError> {
        match self.network {
            Network::Manx if !self.is_closed && !self.cluster.invalid_pools.is_empty() => {
                Err(TopologyError::InvalidPool(self.cluster.invalid_pools.clone()))
            }
            Network::Manx => {
                let reserved = self.reserved(inputs, &self.own_addresses);
                topology::contributions(&self.cluster, &self.node, &reserved)
            }
            Network::OtherPlugin => topology::policy_only_contributions(&self.cluster, &self.node),
        }
    }

    fn topology_with(&self, reserved: &Reserved) -> Result<Placed, TopologyError> {
        let has_none = self.topology.prefixes.is_empty() || self.is_closed;
        match self.network {
            Network::Manx => match topology::topology(&self.cluster, &self.node, reserved) {
                Err(error @ TopologyError::InvalidPool(_)) if has_none => {
                    let closed = topology::closed_topology(&self.cluster, &self.node, reserved)?;
                    Ok((closed, Some(error)))
                }
                topology => Ok((topology?, None)),
            },
            Network::OtherPlugin => Ok((topology::policy_only(&self.cluster, &self.node)?, None)),
        }
    }

    /// Takes the routes out of the cluster that routers have announced, and the gateways to routers.
    pub(super) fn set_ways_out(&mut self, inputs: &Inputs) {
        self.gateways.clone_from(inputs.gateways());
        self.ways_out = inputs.ways_out().cloned();
        if self.ways_out.as_ref().is_none_or(WaysOut::is_empty) {
            return;
        }
        let reserved = inputs.reserved().map(|(address, _)| address);
        let nodes = self.cluster.node_addresses();
        let gateways = self.gateways.values().copied();
        let addresses = reserved.chain(nodes.into_keys()).chain(gateways).collect();
        self.needed = Needed { addresses, links: inputs.links().to_vec() };
    }

    /// The addresses and routes that the node's namespace should have. All the node's addresses are refused as sources of
    /// packets from beyond the uplink.
    pub(super) fn host_network(&self) -> HostNetwork {
        let mut host = self.topology.host_network();
        host.own.extend(self.own_addresses.iter().map(IpNet::addr));
        if let Some(services) = self.services.manx() {
            let is_own = |address: &IpAddr| is_own(&self.own_addresses, address);
            host.blocks.extend(services.host_routes(&self.topology, is_own));
        }
        host.keeps_routers = self.ways_out.is_none();
        if let Some(ways_out) = self.ways_out.as_ref().filter(|it| !it.is_empty()) {
            let own = host.blocks.iter().map(|(prefix, _)| prefix.trunc()).collect();
            for (to, routers) in routers::usable(ways_out, &own, &self.needed) {
                // The gateway that a `BGPPeer` names for its peer has precedence over announced routes to that peer.
                let is_peer = to.prefix_len() == to.max_prefix_len()
                    && self.gateways.contains_key(&to.addr());
                let routers = routers.iter().filter(|_| !is_peer);
                let by = |it| HostRoute::Router { address: *self.gateways.get(it).unwrap_or(it) };
                host.blocks.extend(routers.map(|it| (to, by(it))));
            }
        }
        let gateways = self.gateways.iter();
        host.blocks.extend(
            gateways.map(|(peer, it)| (IpNet::from(*peer), HostRoute::Router { address: *it })),
        );
        host
    }

    /// The node's own routes that change if these addresses of services change.
    pub(super) fn changed_routes(&self, addresses: &ChangedAddresses) -> ChangedRoutes {
        addresses.routes(&self.topology, |address| is_own(&self.own_addresses, address))
    }

    /// The addresses at which services have node ports: the node's first ones, or those in the nets of the settings.
    fn node_port_addresses(&self) -> BTreeSet<IpAddr> {
        let nets = self.services.manx().map_or(&[][..], |it| &it.node_port_nets);
        let of_node: BTreeSet<IpAddr> = if nets.is_empty() {
            self.first_addresses().into_iter().flatten().collect()
        } else {
            self.addresses_in(nets).take(MOST_NODE_PORT_ADDRESSES).collect()
        };
        let loopback = of_node.iter().any(IpAddr::is_ipv4).then_some(LOOPBACK);
        of_node.into_iter().chain(loopback).collect()
    }

    /// The addresses of the node's interfaces in these nets, except those of Manx's interfaces.
    fn addresses_in<'a>(&'a self, nets: &'a [IpNet]) -> impl Iterator<Item = IpAddr> + 'a {
        let all = self.interface_addresses.iter().copied();
        all.filter(|it| nets.iter().any(|net| net.contains(it)) && !self.is_of_manx(*it))
    }

    /// A warning if the settings have nets for node ports that contain no address of the node, or too many.
    pub(super) fn problem_of_node_ports(&self) -> Option<String> {
        let nets = &self.services.manx()?.node_port_nets;
        let count = self.addresses_in(nets).count();
        let told = match count {
            _ if nets.is_empty() => return None,
            0 => "no address of this node's interfaces lies in these nets, so that it has no node ports".to_owned(),
            1..=MOST_NODE_PORT_ADDRESSES => return None,
            _ => format!(
                "{count} addresses of this node lie in these nets: only the lowest {MOST_NODE_PORT_ADDRESSES} have node ports"
            ),
        };
        Some(format!(
            "--nodeport-addresses (MANX_NODEPORT_ADDRESSES) {}: {told}; name nets of the addresses that others ask",
            few(nets, 3)
        ))
    }

    /// The health checks of services. Each is at the addresses with node ports, in the families of its Service.
    pub(super) fn health_checks(&self) -> Checks {
        let Some(services) = self.services.manx() else { return Checks::new() };
        let addresses = self.node_port_addresses();
        let of_port = |(port, HealthCheck { service, endpoints }): (u16, HealthCheck)| {
            addresses.iter().filter_map(move |address| {
                let [v4, v6] = endpoints;
                let endpoints = if address.is_ipv4() { v4 } else { v6 }?;
                let ObjectKey { namespace, name, .. } = ObjectKey::clone(&service);
                Some((SocketAddr::new(*address, port), Check { namespace, name, endpoints }))
            })
        };
        services.frontends.health_checks().into_iter().flat_map(of_port).collect()
    }

    /// Whether this node is about to be removed: its Node object says so, or is deleted. A node whose Node object is
    /// invalid stays.
    pub(super) fn is_leaving(&self, inputs: &Inputs) -> bool {
        match inputs.contents().objects.get(&ObjectKey::new(Kind::Node, "", &self.node)) {
            None => true,
            Some(stored) => match stored.state.valid() {
                Some(Object::Node(node)) => node.is_leaving,
                _ => false,
            },
        }
    }

    /// The ports of this node's addresses that are routed to Manx, including those that are granted to pods, and the ports
    /// among them where health checks are served.
    pub(super) fn manx_ports(
        &self,
        granted: &GrantedPorts,
        health_checks: BTreeSet<SocketAddr>,
    ) -> Desired {
        Desired {
            health_checks,
            egress: self.addresses_of_way_out(),
            node_ports: self.node_port_addresses(),
            host_ports: granted.keys().filter_map(GrantedPort::new).collect(),
            ranges: self.services.manx().map(|it| it.ranges.nets.clone()).unwrap_or_default(),
        }
    }

    /// The ports of this node that pods request.
    pub(super) fn asked_ports(&self) -> GrantedPorts {
        self.services.manx().map(|it| it.frontends.asked_ports()).unwrap_or_default()
    }

    /// Grants exactly these ports to the pods that request them. Returns whether that changes anything.
    pub(super) fn grant_ports(&mut self, inputs: &Inputs, granted: &GrantedPorts) -> bool {
        let Self { topology, own_addresses, services, .. } = self;
        let is_own = |address: &IpAddr| is_own(own_addresses, address);
        match services {
            NodeServices::Manx(it) => it.grant(inputs.contents(), granted, topology, is_own),
            NodeServices::Nobody | NodeServices::KubeProxy(_) => false,
        }
    }

    /// Updates the services after changes of objects, and after a change of the node's place if `placed` is set.
    pub(super) fn update_services(
        &mut self,
        inputs: &Inputs,
        changes: Option<&Changes>,
        placed: bool,
    ) -> ServiceChange {
        let at = placed.then(|| self.node_port_addresses());
        let is_own = |address: &IpAddr| is_own(&self.own_addresses, address);
        match &mut self.services {
            NodeServices::Nobody => ServiceChange::None,
            NodeServices::Manx(services) => {
                services.update(inputs.contents(), changes, at, &self.topology, is_own)
            }
            NodeServices::KubeProxy(before) => {
                let affects =
                    |changes| affects_services(changes, &self.cluster, self.network, before);
                if !placed && !changes.is_some_and(affects) {
                    return ServiceChange::None;
                }
                let endpoints = self.cluster.model.endpoints.values();
                let pods: HashSet<&IpAddr> = match self.network {
                    // No list of pods' addresses is needed, because Manx has routes to its pods.
                    Network::Manx => HashSet::new(),
                    Network::OtherPlugin => endpoints.flat_map(|it| &it.addresses).collect(),
                };
                let is_pod = |address: &IpAddr| pods.contains(address);
                let (contents, topology) = (inputs.contents(), &self.topology);
                let services = KubeProxyServices::new(contents, topology, is_own, before, is_pod);
                let differs = !before.has_same_translation(&services);
                *before = services;
                if differs { ServiceChange::Tables } else { ServiceChange::None }
            }
        }
    }

    /// Applies changes of objects. Returns whether the addresses of services that are announced to BGP peers may have
    /// changed.
    pub(super) fn update_announced(&mut self, inputs: &Inputs, changes: &Changes) -> bool {
        let differs =
            self.announced.as_mut().is_some_and(|it| it.follow(inputs.contents(), changes));
        differs && !self.announced_nets.is_empty()
    }

    /// Whether the set of translated addresses has changed since the services were last updated.
    pub(super) fn translates_other_addresses(&self) -> bool {
        self.services.manx().is_some_and(|it| it.translates_others)
    }

    /// The addresses of services that this node announces to BGP peers: those for which it forwards packets to the
    /// Services.
    pub(super) fn announced_services(&self, inputs: &Inputs) -> AnnouncedRoutes {
        let Some(announced) = &self.announced else { return AnnouncedRoutes::default() };
        let (contents, nets) = (inputs.contents(), &self.announced_nets);
        match &self.services {
            NodeServices::Nobody => AnnouncedRoutes::default(),
            NodeServices::Manx(services) => {
                let served = services.frontends.addresses();
                announced.routes(contents, nets, |address| served.contains(&address))
            }
            NodeServices::KubeProxy(_) => {
                let of_nodes = self.cluster.node_addresses().into_keys().collect();
                let is_own = |address: &IpAddr| is_own(&self.own_addresses, address);
                announced.routes(contents, nets, admission(&self.topology, &of_nodes, is_own))
            }
        }
    }

    /// The first of these addresses that the pod may not have, and its owner. The address is reserved or a node's, or
    /// kubelet has reported it for another pod. A pod with such an address could send packets that are judged as the
    /// owner's. An address that only an annotation contains has no owner.
    pub(super) fn find_owner(
        &self,
        inputs: &Inputs,
        pod: &ObjectName,
        addresses: &[IpAddr],
    ) -> Option<TakenAddress> {
        let others = self.taken(inputs, pod, |address| addresses.contains(&address));
        let (address, holder) = others.into_iter().next()?;
        Some(TakenAddress { address, holder })
    }

    /// The addresses in this node's blocks that this pod may not have, with their owners: reserved addresses, those of
    /// nodes, and those that kubelet has reported for pods of any node.
    pub(super) fn taken_addresses(
        &self,
        inputs: &Inputs,
        pod: &ObjectName,
    ) -> BTreeMap<IpAddr, String> {
        self.taken(inputs, pod, |address| self.is_in_own_block(address))
    }

    /// Whether an address belongs to pods or to Manx's own interfaces. A tunnel's address may lie outside of this node's
    /// blocks.
    pub(super) fn is_of_manx(&self, address: IpAddr) -> bool {
        self.is_in_own_block(address) || self.topology.tunnel_addresses.contains(&address)
    }

    pub(super) fn is_in_own_block(&self, address: IpAddr) -> bool {
        self.topology.blocks.iter().any(|block| block.contains(&address))
    }

    /// The addresses of a set that this pod may not have, with their owners.
    fn taken(
        &self,
        inputs: &Inputs,
        pod: &ObjectName,
        is_in_set: impl Fn(IpAddr) -> bool,
    ) -> BTreeMap<IpAddr, String> {
        let mut taken = BTreeMap::new();
        for (address, other) in self.cluster.reported(inputs.contents()) {
            if is_in_set(address) && other != pod {
                taken.insert(address, format!("Pod {other}"));
            }
        }
        for (address, node) in self.cluster.node_addresses() {
            // Another node does not own an address in this node's blocks, even if its Node object contains it.
            if is_in_set(address) && (node == self.node || !self.is_in_own_block(address)) {
                taken.insert(address, format!("Node {node:?}"));
            }
        }
        for (address, what) in
            self.reserved(inputs, &self.own_addresses).into_iter().filter(|(it, _)| is_in_set(*it))
        {
            taken.insert(address, what.to_string());
        }
        taken
    }

    /// The addresses that no pod may have, including the node's `own`. Another plugin excludes such addresses itself.
    pub(super) fn reserved(&self, inputs: &Inputs, own: &BTreeSet<IpNet>) -> Reserved {
        if self.network == Network::OtherPlugin {
            return Reserved::new();
        }
        let single = |net: &&IpNet| net.prefix_len() == net.max_prefix_len();
        let own = own.iter().filter(single).map(|net| (net.addr(), ReservedFor::Interface));
        own.chain(inputs.reserved()).collect()
    }

    /// The pods of this node whose objects have addresses, except pods with `hostNetwork`.
    pub(super) fn pods_here(&self) -> impl Iterator<Item = &ObjectName> {
        let Cluster { pods_by_node, model, .. } = &self.cluster;
        let here = pods_by_node.iter().filter(|(_, node)| ***node == *self.node);
        here.map(|(pod, _)| &**pod).filter(|pod| model.endpoints.contains_key(*pod))
    }

    /// The nodes that are reached by an IPIP tunnel.
    pub(super) fn ipip_peers(&self) -> BTreeSet<Ipv4Addr> {
        let peers = self.topology.peers().into_iter();
        peers.filter(|peer| peer.overlay == Overlay::Ipip).map(|peer| peer.address).collect()
    }

    /// The overlays of all tunnels.
    pub(super) fn overlays(&self) -> BTreeSet<Overlay> {
        self.topology.peers().into_iter().map(|peer| peer.overlay).collect()
    }
}

/// Whether changes may affect the service addresses that kube-proxy translates.
fn affects_services(
    changes: &Changes,
    cluster: &Cluster,
    network: Network,
    services: &KubeProxyServices,
) -> bool {
    // The pod belongs to another plugin, and the current services still treat its address as a host's.
    let is_pod_at_host_address = |key: &ObjectKey| {
        if network == Network::Manx || key.kind != Kind::Pod {
            return false;
        }
        let pod = cluster.model.endpoints.get(&ObjectName::new(&key.namespace, &key.name));
        pod.is_some_and(|pod| pod.addresses.iter().any(|it| services.is_pod(it) == Some(false)))
    };
    match changes {
        Changes::Objects(objects) => objects
            .keys()
            .any(|key| KubeProxyServices::may_be_changed_by(key) || is_pod_at_host_address(key)),
        Changes::Everything => true,
    }
}

#[cfg(test)]
mod tests {
    use manx_datastore::Source;

    use super::*;

    const NODES: &str = "
{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDR: 10.244.1.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDR: 10.244.2.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}, {type: ExternalIP, address: 10.244.1.9}]}}
---
";

    /// The inputs and the view of node `n1`.
    fn placed(folder: &tempfile::TempDir, pools: &str) -> (Inputs, View) {
        std::fs::write(folder.path().join("all.yaml"), format!("{NODES}{pools}")).unwrap();
        let mut inputs = Inputs::new(Source::open_directory(folder.path()).unwrap());
        let mut view =
            View::new("n1", Network::Manx, Ipam::HostLocal, &settings::ServiceTranslator::None);
        view.import(&mut inputs);
        view.place(&inputs).unwrap();
        (inputs, view)
    }

    #[test]
    fn a_node_that_lies_about_its_addresses_leaves_another_nodes_block_to_its_pods() {
        let folder = tempfile::tempdir().unwrap();
        let pool = "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.244.0.0/16}}";
        let (inputs, view) = placed(&folder, pool);
        let pod = ObjectName::new("shop", "web");
        let others: Vec<IpAddr> = view.taken_addresses(&inputs, &pod).into_keys().collect();
        assert_eq!(others, ["10.244.1.0", "10.244.1.1"].map(|it| it.parse::<IpAddr>().unwrap()));
        assert!(view.find_owner(&inputs, &pod, &["10.244.1.9".parse().unwrap()]).is_none());
        let of_the_world = view.find_owner(&inputs, &pod, &["172.18.0.3".parse().unwrap()]);
        assert!(of_the_world.unwrap().to_string().contains("that of Node \"n2\""));
    }

    #[test]
    fn a_node_that_started_without_all_pools_follows_what_is_reserved_and_never_loses_what_it_had()
    {
        let folder = tempfile::tempdir().unwrap();
        let wrong = "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.244.0.1/16}}";
        let (mut inputs, mut closed) = placed(&folder, wrong);
        assert!(closed.is_closed);
        let gateway: IpAddr = "10.244.1.7".parse().unwrap();
        inputs.set_reserved([(gateway, ReservedFor::Gateway)].into());
        closed.place(&inputs).expect("it is placed as before");
        let held = closed.taken_addresses(&inputs, &ObjectName::new("shop", "web"));
        assert_eq!(held[&gateway], "a gateway of this node");
        let (inputs, mut open) = placed(&folder, &wrong.replace("10.244.0.1", "10.244.0.0"));
        assert!(!open.is_closed);
        let before = open.topology.prefixes.clone();
        open.cluster = closed.cluster;
        assert!(matches!(open.place(&inputs), Err(TopologyError::InvalidPool(_))));
        assert_eq!(open.topology.prefixes, before);
    }

    #[test]
    fn a_node_without_a_place_follows_its_own_addresses() {
        let folder = tempfile::tempdir().unwrap();
        let pool = "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.244.0.0/16}}";
        let (mut inputs, mut view) = placed(&folder, pool);
        view.cluster.invalid_pools = ["p".to_owned()].into();
        let bridge: IpNet = "172.17.0.1/32".parse().unwrap();
        inputs.set_own_addresses([bridge].into());
        assert!(matches!(view.place(&inputs), Err(TopologyError::InvalidPool(_))));
        assert!(matches!(view.contributions(&inputs), Err(TopologyError::InvalidPool(_))));
        assert!(view.own_addresses.contains(&bridge));
        assert!(view.own_addresses.contains(&"10.244.1.1/32".parse().unwrap()));
        assert!(
            view.find_owner(&inputs, &ObjectName::new("shop", "web"), &[bridge.addr()]).is_some()
        );
    }
}
