//! What the inputs mean for this node: the cluster that the objects describe, where the node stands in it, and which
//! service addresses it translates.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use super::inputs::Inputs;
use crate::error::Error;
use crate::own_addresses::is_own;
use crate::settings::{self, Network, Settings};
use manx_calculation::import::{Cluster, import_for};
use manx_calculation::overlay::Overlay;
use manx_calculation::services::Services;
use manx_calculation::topology::{
    self, Contribution, HostNetwork, Reserved, ReservedFor, Topology, TopologyError,
};
use manx_datastore::SourceError;
use manx_objects::contents::Changes;
use manx_objects::object::{Kind, ObjectKey};
use manx_objects::problem::Problem;
use manx_policy_compiler::model::ObjectName;

/// What has an address by the objects.
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
    /// Whose network its pods are in.
    network: Network,
    /// The name of its interface to the others; empty until it was looked for.
    pub(crate) uplink: String,
    /// What the objects mean.
    pub(super) cluster: Cluster,
    /// Where the node stands; of the last cluster in which it has a place.
    pub(crate) topology: Topology,
    /// Whether that is without the other nodes' pods, because pools are not valid.
    is_closed: bool,
    /// The addresses that are the node's own, on whichever interface. Those of Manx's interfaces are among them, even if
    /// the kernel does not have them yet.
    pub(super) own_addresses: BTreeSet<IpNet>,
    /// The service addresses that the node translates, if it does.
    pub(super) services: Option<Services>,
}

/// A topology, and why it is without the other nodes' pods, if it is.
type Placed = (Topology, Option<TopologyError>);

/// The addresses that are the node's own: what its kernel says, and those of Manx's interfaces.
fn own_addresses(inputs: &Inputs, topology: &Topology) -> BTreeSet<IpNet> {
    let HostNetwork { addresses, masquerade_addresses, .. } = topology.host();
    let own = addresses.into_iter().chain(masquerade_addresses).map(IpNet::from);
    own.chain(inputs.own_addresses().iter().copied()).collect()
}

impl View {
    /// Before anything is imported.
    pub(super) fn new(node: &str, network: Network, services: settings::Services) -> Self {
        Self {
            node: node.to_owned(),
            network,
            uplink: String::new(),
            cluster: Cluster::default(),
            topology: Topology::default(),
            is_closed: false,
            own_addresses: BTreeSet::new(),
            services: match services {
                settings::Services::None => None,
                settings::Services::KubeProxy => Some(Services::default()),
            },
        }
    }

    /// The first one: a node that has no place in the cluster does not start, nor one whose directory cannot be read.
    pub(crate) fn open(settings: &Settings, inputs: &mut Inputs) -> Result<Self, Error> {
        let mut view = Self::new(&settings.name, settings.network, settings.services);
        let cluster = import_for(inputs.contents(), &view.node);
        if let settings::Datastore::Directory(path) = &settings.datastore
            && !cluster.in_sync
        {
            let problems: Vec<String> = cluster.problems.iter().map(Problem::summary).collect();
            return Err(SourceError::NotInSync(path.clone(), problems.join("; ")).into());
        }
        view.adopt(inputs, cluster);
        inputs.note_imported();
        view.place(inputs)?;
        Ok(view)
    }

    /// Imports all objects.
    pub(super) fn import(&mut self, inputs: &mut Inputs) {
        self.adopt(inputs, import_for(inputs.contents(), &self.node));
    }

    fn adopt(&mut self, inputs: &mut Inputs, cluster: Cluster) {
        let known: HashSet<String> = self.cluster.problems.iter().map(Problem::summary).collect();
        for problem in cluster.problems.iter().map(Problem::summary) {
            if !known.contains(&problem) {
                tracing::warn!(problem, "datastore");
            }
        }
        inputs.source.report(&cluster.problems);
        self.cluster = cluster;
    }

    /// Places the node among the others. A cluster in which it has no place leaves the last topology in force; the node's
    /// own addresses are what its kernel says in any case. Where there is no topology yet, pools that are not valid cost
    /// the ways to other nodes' pods, and not the start.
    pub(super) fn place(&mut self, inputs: &Inputs) -> Result<(), TopologyError> {
        let placed = self.placed(inputs).map(|(topology, closed)| {
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
        placed
    }

    /// The topology, and why it is without the other nodes' pods, if it is. The addresses of Manx's own interfaces are
    /// reserved even if the kernel does not have them yet.
    fn placed(&self, inputs: &Inputs) -> Result<Placed, TopologyError> {
        let placed = self.topology_with(&self.reserved(inputs, inputs.own_addresses()))?;
        let own = own_addresses(inputs, &placed.0);
        if own == *inputs.own_addresses() {
            return Ok(placed);
        }
        self.topology_with(&self.reserved(inputs, &own))
    }

    /// The routes of all sources that objects tell of.
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

    /// What the node's own namespace must look like. No host beyond the uplink has an address that is the node's own.
    pub(super) fn host(&self) -> HostNetwork {
        let mut desired = self.topology.host();
        desired.own.extend(self.own_addresses.iter().map(IpNet::addr));
        desired
    }

    /// Brings the service addresses that the node translates up to date, if it translates any. Returns whether they have
    /// changed.
    pub(super) fn follow_services(&mut self, inputs: &Inputs) -> bool {
        let Some(before) = &self.services else { return false };
        let endpoints = self.cluster.model.endpoints.values();
        let pods: HashSet<&IpAddr> = match self.network {
            // Routes lead to its pods.
            Network::Manx => HashSet::new(),
            Network::OtherPlugin => endpoints.flat_map(|it| &it.addresses).collect(),
        };
        let is_pod = |address: &IpAddr| pods.contains(address);
        let is_own = |address: &IpAddr| is_own(&self.own_addresses, address);
        let services = Services::new(inputs.contents(), &self.topology, is_own, before, is_pod);
        let differs = !before.translate_as(&services);
        self.services = Some(services);
        differs
    }

    /// Whether these changes may change the service addresses that the node translates.
    pub(super) fn services_rest_on(&self, changes: &Changes) -> bool {
        match changes {
            Changes::Objects(objects) => {
                objects.keys().any(|key| Services::rest_on(key) || self.comes_to_host(key))
            }
            Changes::Everything => true,
        }
    }

    /// Whether a pod of another plugin has come to an address that counts as a host's.
    fn comes_to_host(&self, key: &ObjectKey) -> bool {
        if self.network == Network::Manx || key.kind != Kind::Pod {
            return false;
        }
        let pod = self.cluster.model.endpoints.get(&ObjectName::new(&key.namespace, &key.name));
        let is_host = |it: &IpAddr| {
            self.services.as_ref().and_then(|services| services.is_pod(it)) == Some(false)
        };
        pod.is_some_and(|pod| pod.addresses.iter().any(is_host))
    }

    /// Why a pod may not have these addresses: one is reserved or a node's, or kubelet has reported it of another pod.
    /// The pod could send from such an address, and would be judged as the one that has it. An address that only an
    /// annotation names belongs to nobody.
    pub(super) fn holder(
        &self,
        inputs: &Inputs,
        pod: &ObjectName,
        addresses: &[IpAddr],
    ) -> Option<TakenAddress> {
        let others = self.taken(inputs, pod, |address| addresses.contains(&address));
        let (address, holder) = others.into_iter().next()?;
        Some(TakenAddress { address, holder })
    }

    /// The addresses in this node's blocks that others have, and who: of nodes, of pods as kubelet has reported them,
    /// wherever these run, and what is reserved.
    pub(super) fn others(&self, inputs: &Inputs, pod: &ObjectName) -> BTreeMap<IpAddr, String> {
        self.taken(inputs, pod, |address| self.is_in_own_block(address))
    }

    fn is_in_own_block(&self, address: IpAddr) -> bool {
        self.topology.blocks.iter().any(|block| block.contains(&address))
    }

    /// Who has the addresses that are asked for, but for this pod.
    fn taken(
        &self,
        inputs: &Inputs,
        pod: &ObjectName,
        is_asked: impl Fn(IpAddr) -> bool,
    ) -> BTreeMap<IpAddr, String> {
        let mut taken = BTreeMap::new();
        for (address, other) in self.cluster.reported(inputs.contents()) {
            if is_asked(address) && other != pod {
                taken.insert(address, format!("Pod {other}"));
            }
        }
        for (address, node) in self.cluster.node_addresses() {
            // A block is its node's, whatever another node reports.
            if is_asked(address) && (node == self.node || !self.is_in_own_block(address)) {
                taken.insert(address, format!("Node {node:?}"));
            }
        }
        for (address, what) in
            self.reserved(inputs, &self.own_addresses).into_iter().filter(|(it, _)| is_asked(*it))
        {
            taken.insert(address, what.to_string());
        }
        taken
    }

    /// Addresses that are no pod's, the node's `own` among them. Behind another plugin they are that plugin's concern.
    fn reserved(&self, inputs: &Inputs, own: &BTreeSet<IpNet>) -> Reserved {
        if self.network == Network::OtherPlugin {
            return Reserved::new();
        }
        let single = |net: &&IpNet| net.prefix_len() == net.max_prefix_len();
        let own = own.iter().filter(single).map(|net| (net.addr(), ReservedFor::Interface));
        own.chain(inputs.reserved()).collect()
    }

    /// The pods of this node whose objects have addresses, but those on the node's own network.
    pub(super) fn pods_here(&self) -> impl Iterator<Item = &ObjectName> {
        let Cluster { pods_by_node, model, .. } = &self.cluster;
        let here = pods_by_node.iter().filter(|(_, node)| ***node == *self.node);
        here.map(|(pod, _)| &**pod).filter(|pod| model.endpoints.contains_key(*pod))
    }

    /// The nodes to which there is an IPIP tunnel.
    pub(super) fn ipip_peers(&self) -> BTreeSet<Ipv4Addr> {
        let peers = self.topology.peers().into_iter();
        peers.filter(|peer| peer.overlay == Overlay::Ipip).map(|peer| peer.address).collect()
    }

    /// Whether there is a tunnel by VXLAN.
    pub(super) fn has_vxlan(&self) -> bool {
        self.topology.peers().iter().any(|peer| peer.overlay == Overlay::Vxlan)
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

    /// Those of `n1`, placed.
    fn placed(folder: &tempfile::TempDir, pools: &str) -> (Inputs, View) {
        std::fs::write(folder.path().join("all.yaml"), format!("{NODES}{pools}")).unwrap();
        let mut inputs = Inputs::new(Source::open_directory(folder.path()).unwrap());
        let mut view = View::new("n1", Network::Manx, settings::Services::None);
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
        let others: Vec<IpAddr> = view.others(&inputs, &pod).into_keys().collect();
        assert_eq!(others, ["10.244.1.0", "10.244.1.1"].map(|it| it.parse::<IpAddr>().unwrap()));
        assert!(view.holder(&inputs, &pod, &["10.244.1.9".parse().unwrap()]).is_none());
        let of_the_world = view.holder(&inputs, &pod, &["172.18.0.3".parse().unwrap()]);
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
        let held = closed.others(&inputs, &ObjectName::new("shop", "web"));
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
        assert!(view.holder(&inputs, &ObjectName::new("shop", "web"), &[bridge.addr()]).is_some());
    }
}
