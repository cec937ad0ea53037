//! What the agent's sources have told, and what of it has not been settled yet.
//!
//! A source writes here, and [`settle`](super::settle) does what follows.

use std::collections::BTreeSet;
use std::mem;
use std::net::IpAddr;
use std::time::Instant;

use ipnet::IpNet;

use crate::error::Error;
use crate::settings::{self, Settings};
use crate::uplink::NextHops;
use manx_calculation::topology::{Reserved, ReservedFor};
use manx_datastore::api_server::Access;
use manx_datastore::{Follower, Source, Waits};
use manx_objects::contents::{Changes, Contents};
use manx_objects::object::{Kind, Object, ObjectKey};
use manx_policy_compiler::model::ObjectName;

/// The key of a pod's object.
fn key(pod: &ObjectName) -> ObjectKey {
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
fn are_api_servers_in(changes: &Changes) -> bool {
    match changes {
        Changes::Objects(objects) => objects.contains_key(&api_server_slice()),
        Changes::Everything => true,
    }
}

/// See the module.
pub(crate) struct Inputs {
    /// The objects.
    pub(crate) source: Source,
    account: Account,
    /// Addresses that the node needs elsewhere.
    reserved: Reserved,
    /// The addresses that are the node's own, as its kernel says.
    own_addresses: BTreeSet<IpNet>,
    /// The hardware addresses by which other nodes are reached.
    next_hops: NextHops,
    unsettled: Unsettled,
}

/// What has changed since the last settlement.
#[derive(Debug, Default)]
pub(super) struct Unsettled {
    /// Objects.
    pub(super) objects: Option<Changes>,
    /// When the first change of objects was received; those that the agent makes itself are not.
    pub(super) received: Option<Instant>,
    /// What the place of the node among the others follows from.
    pub(super) place: bool,
    /// What only the tables follow from: attached pods, next hops.
    pub(super) tables: bool,
    /// A socket of a tunnel that could not be opened is tried again.
    pub(super) socket: bool,
}

impl Unsettled {
    fn add(&mut self, changes: Changes) {
        self.place |= are_api_servers_in(&changes);
        self.objects = Some(match self.objects.take() {
            Some(before) => before.then(changes),
            None => changes,
        });
    }
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

impl Inputs {
    /// Reads all objects. An API server that does not answer is waited for. `told` gets what is waited for.
    pub(crate) async fn open(settings: &Settings, told: impl Fn(&Waits)) -> Result<Self, Error> {
        let source = match &settings.datastore {
            settings::Datastore::Directory(path) => Source::open_directory(path)?,
            settings::Datastore::Kubernetes { access, state, .. } => {
                let follower = Follower { node: settings.name.clone(), state: Some(state.clone()) };
                Source::open_api_server(Access::clone(access), follower, told).await?
            }
        };
        let mut inputs = Self::new(source);
        if let settings::Datastore::Kubernetes { account, .. } = &settings.datastore {
            inputs.account.key.clone_from(account);
        }
        inputs.look_for_account();
        Ok(inputs)
    }

    /// All of it is unsettled.
    pub(super) fn new(source: Source) -> Self {
        Self {
            source,
            account: Account::default(),
            reserved: Reserved::new(),
            own_addresses: BTreeSet::new(),
            next_hops: NextHops::new(),
            unsettled: Unsettled {
                objects: Some(Changes::Everything),
                received: None,
                place: true,
                tables: true,
                socket: false,
            },
        }
    }

    /// All objects.
    pub(super) fn contents(&self) -> &Contents {
        self.source.contents()
    }

    /// Whether a pod's object may still come: an API server's watch may tell the runtime earlier than the agent.
    pub(super) fn may_come(&self, pod: &ObjectName) -> bool {
        matches!(self.source, Source::ApiServer(_))
            && !self.contents().objects.contains_key(&key(pod))
    }

    /// Objects have changed, as the source says.
    pub(crate) fn note(&mut self, changes: Changes) {
        let received = self.source.changed();
        self.unsettled.received = self.unsettled.received.or(received);
        self.unsettled.add(changes);
    }

    /// Lets a pod's object have the addresses that the pod has here, or no longer: policy knows it by that.
    pub(super) fn assign(&mut self, pod: &ObjectName, addresses: Option<Vec<IpAddr>>) {
        if let Some(changes) = self.source.assign(key(pod), addresses) {
            self.unsettled.add(changes);
        }
    }

    /// Sets the addresses that are no pod's.
    pub(crate) fn set_reserved(&mut self, reserved: Reserved) {
        self.unsettled.place |= replace(&mut self.reserved, reserved);
    }

    /// Sets the addresses that are the node's own.
    pub(crate) fn set_own_addresses(&mut self, addresses: BTreeSet<IpNet>) {
        self.unsettled.place |= replace(&mut self.own_addresses, addresses);
    }

    /// Sets the next hops to the other nodes.
    pub(crate) fn set_next_hops(&mut self, next_hops: NextHops) {
        self.unsettled.tables |= replace(&mut self.next_hops, next_hops);
    }

    /// All objects have been imported.
    pub(super) fn note_imported(&mut self) {
        self.unsettled.objects = None;
    }

    /// Pods were attached or are gone.
    pub(super) fn note_pods(&mut self) {
        self.unsettled.tables = true;
    }

    /// The socket of a tunnel is to be tried again.
    pub(super) fn retry_socket(&mut self) {
        self.unsettled.socket = true;
    }

    /// What is to be settled now.
    pub(super) fn take_unsettled(&mut self) -> Unsettled {
        mem::take(&mut self.unsettled)
    }

    /// The addresses that are the node's own, as its kernel says.
    pub(super) const fn own_addresses(&self) -> &BTreeSet<IpNet> {
        &self.own_addresses
    }

    /// The hardware addresses by which other nodes are reached.
    pub(super) const fn next_hops(&self) -> &NextHops {
        &self.next_hops
    }

    /// Addresses that are no pod's because the node needs them elsewhere.
    pub(super) fn reserved(&self) -> impl Iterator<Item = (IpAddr, ReservedFor)> + '_ {
        let servers = match self.contents().valid(&api_server_slice()) {
            Some(Object::EndpointSlice(slice)) => Some(&slice.addresses),
            _ => None,
        };
        let servers = servers.into_iter().flatten().map(|it| (*it, ReservedFor::ApiServer));
        self.reserved.iter().map(|(address, what)| (*address, *what)).chain(servers)
    }

    /// Notes that the agent's service account is there, if it is.
    pub(super) fn look_for_account(&mut self) {
        self.account.look(self.source.contents());
    }

    /// Whether the agent's service account is gone, and with it Manx from the cluster.
    pub(super) fn is_account_deleted(&self) -> bool {
        self.account.is_deleted(self.contents())
    }
}

/// Whether that is another value.
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
