//! The state of each of the agent's sources, and the changes that are not settled yet.
//!
//! A source writes here, and [`settle`](super::settle) puts the changes into force.

use std::collections::BTreeSet;
use std::mem;
use std::net::IpAddr;
use std::time::Instant;

use ipnet::IpNet;

use super::routers::{Gateways, WaysOut};
use crate::error::Error;
use crate::settings::{self, Settings};
use crate::uplink::NextHops;
use manx_calculation::topology::{Reserved, ReservedFor};
use manx_datastore::api_server::Access;
use manx_datastore::secrets::NAMESPACE;
use manx_datastore::{Follower, Source, Waits};
use manx_objects::contents::{Changes, Contents};
use manx_objects::object::{Kind, Object, ObjectKey};
use manx_policy_compiler::model::ObjectName;

/// The key of a pod's object.
fn key(pod: &ObjectName) -> ObjectKey {
    let ObjectName { namespace, name } = pod;
    ObjectKey { kind: Kind::Pod, namespace: namespace.clone(), name: name.clone() }
}

/// The `EndpointSlice` `default/kubernetes`, in which the API servers write their own addresses. Other slices of that
/// service do not count.
fn api_server_slice() -> ObjectKey {
    let (namespace, name) = ("default".to_owned(), "kubernetes".to_owned());
    ObjectKey { kind: Kind::EndpointSlice, namespace, name }
}

/// Whether the API servers' own addresses may have changed.
fn affects_api_servers(changes: &Changes) -> bool {
    match changes {
        Changes::Objects(objects) => objects.contains_key(&api_server_slice()),
        Changes::Everything => true,
    }
}

/// Whether a range of services' addresses to which the node has routes may have changed.
fn affects_service_ranges(changes: &Changes) -> bool {
    const KINDS: [Kind; 2] = [Kind::ServiceCidr, Kind::BgpConfiguration];
    match changes {
        Changes::Objects(objects) => objects.keys().any(|key| KINDS.contains(&key.kind)),
        Changes::Everything => true,
    }
}

/// Whether the node's BGP peers, or the routes announced to them, may have changed.
fn affects_peers(changes: &Changes) -> bool {
    const KINDS: [Kind; 5] =
        [Kind::Node, Kind::IpPool, Kind::BgpConfiguration, Kind::BgpPeer, Kind::BgpFilter];
    match changes {
        Changes::Objects(objects) => objects.keys().any(|key| KINDS.contains(&key.kind)),
        Changes::Everything => true,
    }
}

/// See the module.
pub(crate) struct Inputs {
    /// The source of the objects.
    pub(crate) source: Source,
    account: Account,
    /// Addresses that the node needs for other purposes.
    reserved: Reserved,
    /// The node's own addresses, from its kernel.
    own_addresses: BTreeSet<IpNet>,
    /// The addresses of the node's interfaces that other hosts can reach.
    interface_addresses: BTreeSet<IpAddr>,
    /// The nets on the node's links.
    links: Vec<IpNet>,
    /// The hardware addresses of the next hops to other nodes.
    next_hops: NextHops,
    /// The routes out of the cluster that routers have announced. `None`: they have announced none yet since the start.
    ways_out: Option<WaysOut>,
    /// The gateways to BGP peers.
    gateways: Gateways,
    unsettled: Unsettled,
}

/// The changes since the inputs were last settled.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a change of its own")]
pub(super) struct Unsettled {
    /// Changed objects.
    pub(super) objects: Option<Changes>,
    /// The time when the first change of objects was received. Changes by the agent itself have none.
    pub(super) received: Option<Instant>,
    /// Whether the node's place in the cluster may have changed.
    pub(super) place: bool,
    /// Whether a change affects only tables: attached pods, next hops.
    pub(super) tables: bool,
    /// Whether to try again to open a tunnel's socket.
    pub(super) socket: bool,
    /// Whether the node's BGP peers, or the routes announced to them, may have changed.
    pub(super) peers: bool,
    /// Whether the routes out of the cluster, or the gateways to routers, have changed.
    pub(super) ways_out: bool,
}

impl Unsettled {
    fn add(&mut self, changes: Changes) {
        self.place |= affects_api_servers(&changes) || affects_service_ranges(&changes);
        self.peers |= affects_peers(&changes);
        self.objects = Some(match self.objects.take() {
            Some(before) => before.then(changes),
            None => changes,
        });
    }
}

/// The agent's service account, if its name is known. Without the account, no agent can read the objects.
#[derive(Default)]
struct Account {
    key: Option<ObjectKey>,
    /// Whether the account was ever seen. If it was never seen, it was not deleted: its name may be wrong.
    was_seen: bool,
}

impl Account {
    fn exists(&self, objects: &Contents) -> Option<bool> {
        self.key.as_ref().map(|key| objects.objects.contains_key(key))
    }

    fn check(&mut self, objects: &Contents) {
        self.was_seen |= self.exists(objects) == Some(true);
    }

    fn is_deleted(&self, objects: &Contents) -> bool {
        self.was_seen && self.exists(objects) == Some(false)
    }
}

impl Inputs {
    /// Reads all objects. If the API server does not answer, this waits for it and calls `on_wait` with the reason.
    pub(crate) async fn open(settings: &Settings, on_wait: impl Fn(&Waits)) -> Result<Self, Error> {
        let source = match &settings.datastore {
            settings::Datastore::Directory(path) => Source::open_directory(path)?,
            settings::Datastore::Kubernetes { access, state, account } => {
                let namespace = account.as_ref().map_or(NAMESPACE, |it| &it.namespace).to_owned();
                let (node, state) = (settings.name.clone(), Some(state.clone()));
                let follower = Follower { node, namespace, state };
                Source::open_api_server(Access::clone(access), follower, on_wait).await?
            }
        };
        let mut inputs = Self::new(source);
        if let settings::Datastore::Kubernetes { account, .. } = &settings.datastore {
            inputs.account.key.clone_from(account);
        }
        inputs.check_account();
        Ok(inputs)
    }

    /// The inputs with all of a source's objects, as unsettled changes.
    pub(super) fn new(source: Source) -> Self {
        Self {
            source,
            account: Account::default(),
            reserved: Reserved::new(),
            own_addresses: BTreeSet::new(),
            interface_addresses: BTreeSet::new(),
            links: Vec::new(),
            next_hops: NextHops::new(),
            ways_out: Some(WaysOut::new()),
            gateways: Gateways::new(),
            unsettled: Unsettled {
                objects: Some(Changes::Everything),
                received: None,
                place: true,
                tables: true,
                socket: false,
                peers: true,
                ways_out: false,
            },
        }
    }

    pub(crate) fn contents(&self) -> &Contents {
        self.source.contents()
    }

    /// Whether a pod's object may still arrive: an API server may report it to the runtime earlier than to the agent.
    pub(super) fn is_object_pending(&self, pod: &ObjectName) -> bool {
        matches!(self.source, Source::ApiServer(_))
            && !self.contents().objects.contains_key(&key(pod))
    }

    /// Records changes that the source has reported.
    pub(crate) fn add_changes(&mut self, changes: Changes) {
        let received = self.source.changed();
        self.unsettled.received = self.unsettled.received.or(received);
        self.unsettled.add(changes);
    }

    /// Sets the addresses of a pod's object to its addresses on this node, which policy then uses. `None` removes them.
    pub(super) fn assign(&mut self, pod: &ObjectName, addresses: Option<Vec<IpAddr>>) {
        if let Some(changes) = self.source.assign(key(pod), addresses) {
            self.unsettled.add(changes);
        }
    }

    /// Sets the addresses that no pod may have.
    pub(crate) fn set_reserved(&mut self, reserved: Reserved) {
        self.unsettled.place |= replace(&mut self.reserved, reserved);
    }

    /// Sets the node's own addresses.
    pub(crate) fn set_own_addresses(&mut self, addresses: BTreeSet<IpNet>) {
        self.unsettled.place |= replace(&mut self.own_addresses, addresses);
    }

    /// Sets the addresses of the node's interfaces that other hosts can reach.
    pub(crate) fn set_interface_addresses(&mut self, addresses: BTreeSet<IpAddr>) {
        self.unsettled.place |= replace(&mut self.interface_addresses, addresses);
    }

    /// Sets the nets on the node's links.
    pub(crate) fn set_links(&mut self, links: Vec<IpNet>) {
        self.unsettled.peers |= replace(&mut self.links, links);
    }

    /// Sets the next hops to the other nodes.
    pub(crate) fn set_next_hops(&mut self, next_hops: NextHops) {
        self.unsettled.tables |= replace(&mut self.next_hops, next_hops);
    }

    /// Records that passwords of BGP peers have changed.
    pub(crate) fn note_passwords(&mut self) {
        self.unsettled.peers = true;
    }

    /// Sets the routes out of the cluster that routers have announced. With `None`, the kernel keeps its current ones.
    pub(super) fn set_ways_out(&mut self, ways_out: Option<WaysOut>) {
        self.unsettled.ways_out |= replace(&mut self.ways_out, ways_out);
    }

    /// Sets the gateways to BGP peers.
    pub(super) fn set_gateways(&mut self, gateways: &Gateways) {
        if self.gateways != *gateways {
            self.gateways.clone_from(gateways);
            self.unsettled.ways_out = true;
        }
    }

    /// Records that all objects have been imported.
    pub(super) fn note_imported(&mut self) {
        self.unsettled.objects = None;
    }

    /// Records that pods were attached or detached.
    pub(super) fn note_pods(&mut self) {
        self.unsettled.tables = true;
    }

    /// Makes the agent try again to open a tunnel's socket.
    pub(super) fn retry_socket(&mut self) {
        self.unsettled.socket = true;
    }

    /// Takes the unsettled changes.
    pub(super) fn take_unsettled(&mut self) -> Unsettled {
        mem::take(&mut self.unsettled)
    }

    /// The node's own addresses, from its kernel.
    pub(super) const fn own_addresses(&self) -> &BTreeSet<IpNet> {
        &self.own_addresses
    }

    /// The addresses of the node's interfaces that other hosts can reach.
    pub(super) const fn interface_addresses(&self) -> &BTreeSet<IpAddr> {
        &self.interface_addresses
    }

    /// The nets on the node's links.
    pub(super) fn links(&self) -> &[IpNet] {
        &self.links
    }

    /// The hardware addresses of the next hops to other nodes.
    pub(super) const fn next_hops(&self) -> &NextHops {
        &self.next_hops
    }

    /// The gateways to BGP peers.
    pub(super) const fn gateways(&self) -> &Gateways {
        &self.gateways
    }

    /// The routes out of the cluster that routers have announced.
    pub(super) const fn ways_out(&self) -> Option<&WaysOut> {
        self.ways_out.as_ref()
    }

    /// The addresses that no pod may have, because the node needs them for other purposes.
    pub(super) fn reserved(&self) -> impl Iterator<Item = (IpAddr, ReservedFor)> + '_ {
        let servers = match self.contents().valid(&api_server_slice()) {
            Some(Object::EndpointSlice(slice)) => Some(&slice.addresses),
            _ => None,
        };
        let servers = servers.into_iter().flatten().map(|it| (*it, ReservedFor::ApiServer));
        self.reserved.iter().map(|(address, what)| (*address, *what)).chain(servers)
    }

    /// Records that the account was seen, if it exists now.
    pub(super) fn check_account(&mut self) {
        self.account.check(self.source.contents());
    }

    /// Whether the agent can notice that Manx is removed: it knows the name of its service account.
    pub(super) fn has_account(&self) -> bool {
        self.account.key.is_some()
    }

    /// Whether the agent's service account was deleted, which means that Manx was removed from the cluster.
    pub(super) fn is_account_deleted(&self) -> bool {
        self.account.is_deleted(self.contents())
    }
}

/// Replaces a value, and returns whether the new one differs.
fn replace<T: PartialEq>(place: &mut T, value: T) -> bool {
    mem::replace(place, value) != *place
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn another_api_server_is_reserved_when_its_slice_says_so() {
        let changes = |key| Changes::Objects(BTreeMap::from([(key, None)]));
        assert!(affects_api_servers(&changes(api_server_slice())));
        assert!(affects_api_servers(&Changes::Everything));
        let other = ObjectKey { name: "kubernetes-x".to_owned(), ..api_server_slice() };
        assert!(!affects_api_servers(&changes(other)));
    }

    #[test]
    fn an_account_is_deleted_only_if_it_was_seen() {
        let key = ObjectKey {
            kind: Kind::ServiceAccount,
            namespace: "kube-system".to_owned(),
            name: "manx-node".to_owned(),
        };
        let text = "apiVersion: v1\nkind: ServiceAccount\n\
             metadata: {name: manx-node, namespace: kube-system}\n";
        let with = Contents::from_texts([("account.yaml", text)]);
        let without = Contents::from_texts([]);
        let mut account = Account { key: Some(key), was_seen: false };
        account.check(&without);
        assert!(!account.is_deleted(&without), "it may have another name");
        account.check(&with);
        assert!(!account.is_deleted(&with));
        account.check(&without);
        assert!(account.is_deleted(&without));
        assert!(!account.is_deleted(&with), "it was made again");
        assert!(!Account::default().is_deleted(&without));
    }
}
