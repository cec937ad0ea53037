//! The datastore as this node sees it: the objects, what they mean, and where the node stands among the others.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use crate::error::Error;
use crate::own_addresses::is_own;
use crate::settings::{self, Network, Settings};
use manx_calculation::import::{Cluster, Overlay, import_for};
use manx_calculation::services::Services;
use manx_calculation::topology::{self, Desired, Reserved, ReservedFor, Topology, TopologyError};
use manx_datastore::Source;
use manx_datastore::api_server::{Access, Follower, Waits};
use manx_objects::contents::{Changes, Contents};
use manx_objects::object::{Kind, Object, ObjectKey};
use manx_objects::problem::Problem;
use manx_policy_compiler::model::ObjectName;

/// What has an address by the objects.
#[derive(Debug, thiserror::Error)]
#[error(
    "address {address} is that of {holder} in the datastore: name another, or correct that object"
)]
pub(super) struct Holder {
    address: IpAddr,
    holder: String,
}

/// The key of a pod's object.
pub(super) fn key(pod: &ObjectName) -> ObjectKey {
    let ObjectName { namespace, name } = pod;
    ObjectKey { kind: Kind::Pod, namespace: namespace.clone(), name: name.clone() }
}

/// What the API servers write of themselves: the endpoints of `default/kubernetes` (the object of that name, and no
/// other of that service).
fn api_server_slice() -> ObjectKey {
    let (namespace, name) = ("default".to_owned(), "kubernetes".to_owned());
    ObjectKey { kind: Kind::EndpointSlice, namespace, name }
}

/// Whether the API servers' own addresses may have changed.
pub(super) fn are_api_servers_in(changes: &Changes) -> bool {
    match changes {
        Changes::Objects(objects) => objects.contains_key(&api_server_slice()),
        Changes::Everything => true,
    }
}

/// The addresses of the API servers.
fn api_servers(contents: &Contents) -> impl Iterator<Item = IpAddr> {
    let slice = contents.valid(&api_server_slice());
    let addresses = match slice {
        Some(Object::EndpointSlice(slice)) => Some(&slice.addresses),
        _ => None,
    };
    addresses.into_iter().flatten().copied()
}

/// See the module.
pub(crate) struct Datastore {
    /// The name of this node.
    pub(super) node: String,
    /// Whose network its pods are in.
    network: Network,
    /// The name of its interface to the others; empty until it was looked for.
    pub(crate) uplink: String,
    /// The objects.
    pub(crate) source: Source,
    /// What they mean.
    pub(super) cluster: Cluster,
    /// Where the node stands; of the last cluster in which it has a place.
    pub(crate) topology: Topology,
    /// Whether that is without the other nodes' pods, because pools are not valid.
    is_closed: bool,
    /// Addresses that the node needs elsewhere.
    found_reserved: Reserved,
    /// The addresses that are the node's own, on whichever interface.
    pub(super) own_addresses: BTreeSet<IpNet>,
    /// The service addresses that the node translates, if it does.
    pub(super) services: Option<Services>,
    account: Account,
}

/// The service account as which the API server is asked, if it is known: without it no agent can read the objects.
#[derive(Default)]
struct Account {
    key: Option<ObjectKey>,
    /// Whether it was there at some time. A name that no account has had tells nothing.
    was_there: bool,
}

impl Account {
    fn is_there(&self, objects: &Contents) -> Option<bool> {
        self.key.as_ref().map(|key| objects.objects.contains_key(key))
    }

    fn look(&mut self, objects: &Contents) {
        self.was_there |= self.is_there(objects) == Some(true);
    }

    fn is_deleted(&self, objects: &Contents) -> bool {
        self.was_there && self.is_there(objects) == Some(false)
    }
}

impl Datastore {
    /// Before anything is imported.
    fn new(node: String, network: Network, source: Source) -> Self {
        Self {
            node,
            network,
            uplink: String::new(),
            source,
            cluster: Cluster::default(),
            topology: Topology::default(),
            is_closed: false,
            found_reserved: Reserved::new(),
            own_addresses: BTreeSet::new(),
            services: None,
            account: Account::default(),
        }
    }

    /// Reads and imports everything. An API server that does not answer is waited for.
    /// `told` gets what is waited for.
    pub(crate) async fn open(settings: &Settings, told: impl Fn(&Waits)) -> Result<Self, Error> {
        let source = match &settings.datastore {
            settings::Datastore::Directory(path) if !path.is_dir() => {
                return Err(Error::NoDatastore(path.clone()));
            }
            settings::Datastore::Directory(path) => Source::open_directory(path),
            settings::Datastore::Kubernetes { access, state, .. } => {
                let follower = Follower { node: settings.name.clone(), state: Some(state.clone()) };
                Source::open_api_server(Access::clone(access), follower, told).await?
            }
        };
        let mut datastore = Self::new(settings.name.clone(), settings.network, source);
        if let settings::Datastore::Kubernetes { account, .. } = &settings.datastore {
            datastore.account.key.clone_from(account);
        }
        datastore.look_for_account();
        let cluster = import_for(datastore.source.contents(), &datastore.node);
        if let settings::Datastore::Directory(path) = &settings.datastore
            && !cluster.in_sync
        {
            let problems: Vec<String> = cluster.problems.iter().map(Problem::summary).collect();
            return Err(Error::NotInSync(path.clone(), problems.join("; ")));
        }
        datastore.adopt(cluster);
        datastore.place()?;
        Ok(datastore)
    }

    /// Notes that the agent's service account is there, if it is.
    pub(super) fn look_for_account(&mut self) {
        self.account.look(self.source.contents());
    }

    /// Whether Manx is gone from the cluster: its service account was deleted.
    pub(super) fn is_removed(&self) -> bool {
        self.cluster.in_sync && self.account.is_deleted(self.source.contents())
    }

    /// Tells the cluster that this node's pods have a network, where that is Manx's.
    pub(crate) fn tell_network_up(&self) {
        if self.network == Network::Manx {
            self.source.tell_network_up();
        }
    }

    /// Tells the cluster that this node's pods have none any more, a second at most. Where Manx is gone from the cluster,
    /// another plugin may come that never tells that there is one.
    pub(crate) async fn tell_network_down(&self) {
        if self.network == Network::Manx && !self.is_removed() {
            self.source.tell_network_down().await;
        }
    }

    /// Imports all objects. [`Datastore::place`] follows.
    pub(super) fn import(&mut self) {
        self.adopt(import_for(self.source.contents(), &self.node));
    }

    fn adopt(&mut self, cluster: Cluster) {
        let known: HashSet<String> = self.cluster.problems.iter().map(Problem::summary).collect();
        for problem in cluster.problems.iter().map(Problem::summary) {
            if !known.contains(&problem) {
                tracing::warn!(problem, "datastore");
            }
        }
        self.source.report(&cluster.problems);
        self.cluster = cluster;
    }

    /// Places the node among the others. A cluster in which it has no place leaves the last topology in force. Where there
    /// is none yet, pools that are not valid cost the ways to other nodes' pods, and not the start.
    pub(crate) fn place(&mut self) -> Result<(), TopologyError> {
        let has_none = self.topology.prefixes.is_empty() || self.is_closed;
        let (topology, is_closed) = match self.network {
            Network::Manx => {
                let reserved = self.reserved();
                match topology::topology(&self.cluster, &self.node, &reserved) {
                    Err(error @ TopologyError::InvalidPool(_)) if has_none => {
                        tracing::error!(%error, "no pod of another node is reached until then");
                        (topology::closed_topology(&self.cluster, &self.node, &reserved)?, true)
                    }
                    topology => (topology?, false),
                }
            }
            Network::OtherPlugin => (topology::policy_only(&self.cluster, &self.node)?, false),
        };
        let known: BTreeSet<String> = self.topology.problems().collect();
        for problem in topology.problems().filter(|problem| !known.contains(problem)) {
            tracing::error!(problem, "topology");
        }
        (self.topology, self.is_closed) = (topology, is_closed);
        Ok(())
    }

    /// Sets the node's own addresses. Those of Manx's interfaces are added, because the kernel may not have them yet.
    /// Returns whether anything has changed.
    pub(crate) fn set_own_addresses(&mut self, mut own: BTreeSet<IpNet>) -> bool {
        let Desired { addresses, masquerade_addresses, .. } = self.topology.host();
        own.extend(addresses.into_iter().chain(masquerade_addresses).map(IpNet::from));
        if self.own_addresses == own {
            return false;
        }
        self.own_addresses = own;
        if self.services.is_some() {
            self.refresh_services();
        }
        true
    }

    /// What the node's own namespace must look like. No host beyond the uplink has an address that is the node's own.
    pub(super) fn host(&self) -> Desired {
        let mut desired = self.topology.host();
        desired.own.extend(self.own_addresses.iter().map(IpNet::addr));
        desired
    }

    /// Brings the service addresses that the node translates up to date. Returns whether they have changed.
    pub(crate) fn refresh_services(&mut self) -> bool {
        let endpoints = self.cluster.model.endpoints.values();
        let pods: HashSet<&IpAddr> = match self.network {
            // Routes lead to its pods.
            Network::Manx => HashSet::new(),
            Network::OtherPlugin => endpoints.flat_map(|it| &it.addresses).collect(),
        };
        let (contents, own) = (self.source.contents(), &self.own_addresses);
        let none = Services::default();
        let before = self.services.as_ref().unwrap_or(&none);
        let is_pod = |address: &IpAddr| pods.contains(address);
        let is_own = |address: &IpAddr| is_own(own, address);
        let services = Services::new(contents, &self.topology, is_own, before, is_pod);
        let differs = !self.services.as_ref().is_some_and(|all| all.translate_as(&services));
        self.services = Some(services);
        differs
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

    /// Brings the service addresses up to date. `is_placed`: the node may stand elsewhere now. Returns whether they have
    /// changed.
    pub(super) fn follow_services(&mut self, changes: &Changes, is_placed: bool) -> bool {
        let may_differ = match changes {
            Changes::Objects(objects) => {
                objects.keys().any(|key| Services::rest_on(key) || self.comes_to_host(key))
            }
            Changes::Everything => true,
        };
        self.services.is_some() && (may_differ || is_placed) && self.refresh_services()
    }

    /// Why a pod may not have these addresses: one is reserved or a node's, or kubelet has reported it of another pod.
    /// The pod could send from it, and would be taken for that one. What an annotation names is nobody's.
    pub(super) fn holder(&self, pod: &ObjectName, addresses: &[IpAddr]) -> Option<Holder> {
        let others = self.taken(pod, |address| addresses.contains(&address));
        let (address, holder) = others.into_iter().next()?;
        Some(Holder { address, holder })
    }

    /// The addresses in this node's blocks that others have, and who: of nodes, of pods as kubelet has reported them,
    /// wherever these run, and what is reserved.
    pub(super) fn others(&self, pod: &ObjectName) -> BTreeMap<IpAddr, String> {
        self.taken(pod, |address| self.is_in_own_block(address))
    }

    fn is_in_own_block(&self, address: IpAddr) -> bool {
        self.topology.blocks.iter().any(|block| block.contains(&address))
    }

    /// Who has the addresses that are asked for, but for this pod.
    fn taken(
        &self,
        pod: &ObjectName,
        is_asked: impl Fn(IpAddr) -> bool,
    ) -> BTreeMap<IpAddr, String> {
        let mut taken = BTreeMap::new();
        for (address, other) in self.cluster.reported(self.source.contents()) {
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
        for (address, what) in self.reserved().into_iter().filter(|(it, _)| is_asked(*it)) {
            taken.insert(address, what.to_string());
        }
        taken
    }

    /// Addresses that are no pod's. Behind another plugin they are that plugin's concern.
    fn reserved(&self) -> Reserved {
        if self.network == Network::OtherPlugin {
            return Reserved::new();
        }
        let servers = api_servers(self.source.contents()).map(|it| (it, ReservedFor::ApiServer));
        let single = |net: &&IpNet| net.prefix_len() == net.max_prefix_len();
        let own = self.own_addresses.iter().filter(single);
        let own = own.map(|net| (net.addr(), ReservedFor::Interface));
        own.chain(self.found_reserved.clone()).chain(servers).collect()
    }

    /// Sets what the node has found to be no pod's. [`Datastore::place`] follows.
    pub(crate) fn reserve(&mut self, found: Reserved) {
        self.found_reserved = found;
    }

    /// The pods of this node whose objects have addresses, but those on the node's own network.
    pub(super) fn pods_here(&self) -> impl Iterator<Item = &ObjectName> {
        let Cluster { pods_by_node, model, .. } = &self.cluster;
        let here = pods_by_node.iter().filter(|(_, node)| ***node == *self.node);
        here.map(|(pod, _)| &**pod).filter(|pod| model.endpoints.contains_key(*pod))
    }

    /// Whether a pod's object may still come: an API server's watch may tell the runtime earlier than the agent.
    pub(super) fn may_come(&self, pod: &ObjectName) -> bool {
        matches!(self.source, Source::ApiServer(_))
            && !self.source.contents().objects.contains_key(&key(pod))
    }

    /// The nodes to which there is an IPIP tunnel.
    pub(crate) fn ipip_peers(&self) -> BTreeSet<Ipv4Addr> {
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
    use super::*;

    const NODES: &str = "
{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDR: 10.244.1.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDR: 10.244.2.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}, {type: ExternalIP, address: 10.244.1.9}]}}
---
";

    /// The datastore of `n1`, placed.
    fn datastore(folder: &tempfile::TempDir, pools: &str) -> Datastore {
        std::fs::write(folder.path().join("all.yaml"), format!("{NODES}{pools}")).unwrap();
        let source = Source::open_directory(folder.path());
        let mut datastore = Datastore::new("n1".to_owned(), Network::Manx, source);
        datastore.import();
        datastore.place().unwrap();
        datastore
    }

    #[test]
    fn a_node_that_lies_about_its_addresses_leaves_another_nodes_block_to_its_pods() {
        let folder = tempfile::tempdir().unwrap();
        let pool = "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.244.0.0/16}}";
        let datastore = datastore(&folder, pool);
        let pod = ObjectName::new("shop", "web");
        let others: Vec<IpAddr> = datastore.others(&pod).into_keys().collect();
        assert_eq!(others, ["10.244.1.1".parse::<IpAddr>().unwrap()]);
        assert!(datastore.holder(&pod, &["10.244.1.9".parse().unwrap()]).is_none());
        let of_the_world = datastore.holder(&pod, &["172.18.0.3".parse().unwrap()]);
        assert!(of_the_world.unwrap().to_string().contains("that of Node \"n2\""));
    }

    #[test]
    fn a_node_that_started_without_all_pools_follows_what_is_reserved_and_never_loses_what_it_had()
    {
        let folder = tempfile::tempdir().unwrap();
        let wrong = "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.244.0.1/16}}";
        let mut closed = datastore(&folder, wrong);
        assert!(closed.is_closed);
        let gateway: IpAddr = "10.244.1.7".parse().unwrap();
        closed.reserve([(gateway, ReservedFor::Gateway)].into());
        closed.place().expect("it is placed as before");
        let held = closed.others(&ObjectName::new("shop", "web"));
        assert_eq!(held[&gateway], "a gateway of this node");
        let mut open = datastore(&folder, &wrong.replace("10.244.0.1", "10.244.0.0"));
        assert!(!open.is_closed);
        let before = open.topology.prefixes.clone();
        open.cluster = closed.cluster;
        assert!(matches!(open.place(), Err(TopologyError::InvalidPool(_))));
        assert_eq!(open.topology.prefixes, before);
    }

    #[test]
    fn another_api_server_is_reserved_when_its_slice_says_so() {
        let changes = |key| Changes::Objects(BTreeMap::from([(key, None)]));
        assert!(are_api_servers_in(&changes(api_server_slice())));
        assert!(are_api_servers_in(&Changes::Everything));
        let other = ObjectKey { name: "kubernetes-x".to_owned(), ..api_server_slice() };
        assert!(!are_api_servers_in(&changes(other)));
    }

    #[test]
    fn an_account_is_deleted_only_if_it_was_there() {
        let key = ObjectKey {
            kind: Kind::ServiceAccount,
            namespace: "kube-system".to_owned(),
            name: "manx-node".to_owned(),
        };
        let text = "apiVersion: v1\nkind: ServiceAccount\n\
             metadata: {name: manx-node, namespace: kube-system}\n";
        let with = Contents::from_texts([("account.yaml", text)]);
        let without = Contents::from_texts([]);
        let mut account = Account { key: Some(key), was_there: false };
        account.look(&without);
        assert!(!account.is_deleted(&without), "it may have another name");
        account.look(&with);
        assert!(!account.is_deleted(&with));
        account.look(&without);
        assert!(account.is_deleted(&without));
        assert!(!account.is_deleted(&with), "it was made again");
        assert!(!Account::default().is_deleted(&without));
    }
}
