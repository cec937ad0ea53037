//! The table of services: frontends with their backends, and the addresses that backends have.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use ahash::RandomState;

use super::clients::Clients;
use crate::flow::{FlowKey, Orientation};
use crate::wire::address::Address;
use crate::wire::protocol;

/// The destination of a packet: an address, a protocol and a port. It is usually a frontend's. After the translation,
/// and for visitors, it is a backend's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontendKey {
    /// The address, usually a cluster IP.
    pub address: Address,
    /// The IP protocol number: TCP, UDP or SCTP.
    pub protocol: u8,
    /// The port.
    pub port: u16,
}

impl FrontendKey {
    /// The destination of packets of this orientation.
    #[inline]
    pub fn asked_by(key: &FlowKey, orientation: Orientation) -> Self {
        let (address, port) = key.destination(orientation);
        Self { address, protocol: key.protocol(), port }
    }
}

/// The destination of a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Backend {
    /// Its address.
    pub address: Address,
    /// Its port.
    pub port: u16,
}

/// What happens to a new connection for which there is no backend (Kubernetes documentation, "Virtual IPs and service
/// proxies").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WithoutBackend {
    /// The client gets a RST or an ICMP error, because there is no endpoint.
    #[default]
    Refuse,
    /// The packet is dropped, because a traffic policy `Local` finds no endpoint on this node.
    Drop,
}

/// One address, protocol and port of a service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Frontend {
    /// Identifies the service port: the same for all its addresses, and different for any other service port. Session
    /// affinity uses it to recognize the service port.
    pub id: u64,
    /// The number of the service's namespace. Services of one namespace share bounded resources. 0 means that the
    /// frontend belongs to a pod, not to a service.
    pub namespace: u64,
    /// The backends that a new connection may get, each of them once.
    pub backends: Box<[Backend]>,
    /// All backends of the service, including those that no new connection of this node may get; sorted, each of them
    /// once. The list may be empty unless the protocol is UDP or the frontend takes visitors.
    pub all_backends: Box<[Backend]>,
    /// Whether clients from outside that enter by one node may get a backend on another node, where they are visitors.
    /// Then a router may choose the node by which they enter, if the frontend's address belongs to no node.
    pub takes_visitors: bool,
    /// The number of seconds after its last new connection for which a client keeps its backend. `None`: each
    /// connection gets a backend independently (`sessionAffinity: None`).
    pub affinity: Option<u32>,
    /// What happens to a new connection while there is no backend.
    pub without_backend: WithoutBackend,
    /// The clients whose new connections are accepted. Packets of other clients are dropped.
    pub clients: Clients,
    /// The frontend that clients from outside of the cluster get instead of this one, if it is different.
    pub for_outside: Option<Arc<Frontend>>,
}

impl Frontend {
    /// The frontend that a client gets. `is_outside` means that the client is neither a pod nor a process of this node.
    #[inline]
    pub fn of(&self, is_outside: bool) -> &Self {
        match &self.for_outside {
            Some(other) if is_outside => other,
            _ => self,
        }
    }
}

/// The services that Manx translates.
#[derive(Debug, Clone, Default)]
pub struct ServiceTable {
    frontends: Parts<FrontendKey, Arc<Frontend>>,
    /// The addresses of pods and nodes.
    addresses: Parts<Address, ()>,
    /// The addresses that no pod and no node has but that slices or annotations name, each with the number of their
    /// namespace.
    named: Parts<(u64, Address), ()>,
    /// The backends that visitors may reach, by the backend's address, protocol and port. The value describes the
    /// frontends that have the backend.
    for_visitors: Parts<FrontendKey, VisitorFrontends>,
    gone: u32,
    new: u32,
}

impl ServiceTable {
    /// The frontend that a packet is addressed to, if a service has it.
    #[inline]
    pub fn frontend(&self, key: &FrontendKey) -> Option<&Arc<Frontend>> {
        self.frontends.get(key)
    }

    /// All frontends, in no particular order.
    pub fn frontends(&self) -> impl Iterator<Item = (&FrontendKey, &Arc<Frontend>)> {
        self.frontends.iter()
    }

    /// Whether a connection to a frontend keeps its backend, even if a new connection may not get it. TCP and SCTP
    /// connections keep it while its address exists, because their ends notice when the other end is gone. A UDP client
    /// does not notice that, so its backend must still be one of the frontend's backends, with the same port.
    ///
    /// An address exists while a pod or a node has it. For connections to a Service's frontend, it also exists while a
    /// slice or an annotation of that Service's namespace names it. So the slices of one namespace keep no connections
    /// of another. When a frontend passes to another namespace or to none, only those connections are kept whose
    /// backends are pods and nodes.
    pub fn keeps(&self, key: &FrontendKey, backend: Backend) -> bool {
        if key.protocol == protocol::UDP {
            self.frontend(key).is_some_and(|it| it.all_backends.binary_search(&backend).is_ok())
        } else {
            self.has_address(backend.address)
                || self.frontend(key).is_some_and(|it| self.is_named(it.namespace, backend.address))
        }
    }

    /// Whether a visitor may open a connection to this address and port of a backend, because a frontend that takes
    /// visitors has the backend.
    pub fn leads_visitors_to(&self, at: &FrontendKey) -> bool {
        self.for_visitors.get(at).is_some()
    }

    /// The only frontend by which visitors reach this address and port of a backend. `None`: there are several such
    /// frontends, or none.
    pub fn only_way(&self, at: &FrontendKey) -> Option<FrontendKey> {
        let VisitorFrontends { count, address, port } = *self.for_visitors.get(at)?;
        let address = Address::v6(address.to_be_bytes());
        (count == 1).then_some(FrontendKey { address, port, ..*at })
    }

    /// Whether a pod or a node has an address.
    #[inline]
    pub fn has_address(&self, address: Address) -> bool {
        self.addresses.get(&address).is_some()
    }

    /// Whether slices or annotations of the namespace with this number name an address that no pod and no node has.
    pub fn is_named(&self, namespace: u64, address: Address) -> bool {
        self.named.get(&(namespace, address)).is_some()
    }

    /// The number of changes so far that may have removed backends ([`ServiceTable::keeps`]). When it grows,
    /// connections check their backend again.
    #[inline]
    pub fn gone(&self) -> u32 {
        self.gone
    }

    /// The number of UDP frontends so far that were added at an address and port without one. A flow that was opened
    /// before is not translated, and its client does not open another one. When the number grows, a search for such
    /// flows begins ([`FlowTable::remove_untranslated`](crate::flow::FlowTable::remove_untranslated)).
    pub fn new_frontends(&self) -> u32 {
        self.new
    }

    /// The memory of the table in bytes, including all frontends in it, each counted once.
    pub fn bytes(&self) -> usize {
        let mut seen = HashSet::new();
        let mut frontends: Vec<&Arc<Frontend>> = self.frontends().map(|(_, it)| it).collect();
        let addresses = self.addresses.bytes() + self.named.bytes();
        let mut bytes = self.frontends.bytes() + addresses + self.for_visitors.bytes();
        while let Some(frontend) = frontends.pop() {
            if seen.insert(Arc::as_ptr(frontend)) {
                bytes += size_of::<[usize; 2]>() + size_of::<Frontend>();
                bytes += size_of_val(&*frontend.backends) + size_of_val(&*frontend.all_backends);
                frontends.extend(&frontend.for_outside);
            }
        }
        bytes
    }

    /// Sets a frontend, or removes it (`None`).
    pub fn set_frontend(&mut self, key: FrontendKey, frontend: Option<Arc<Frontend>>) {
        let has = |it: &Backend| {
            let new = frontend.as_ref().map_or(&[][..], |it| &it.all_backends);
            new.binary_search(it).is_ok()
        };
        let before = self.frontends.get(&key).cloned();
        let loses = before.as_ref().is_some_and(|before| {
            if key.protocol == protocol::UDP {
                !before.all_backends.iter().all(has)
            } else {
                frontend.as_ref().map(|it| it.namespace) != Some(before.namespace)
            }
        });
        self.gone = self.gone.wrapping_add(u32::from(loses));
        let is_new = before.is_none() && frontend.is_some() && key.protocol == protocol::UDP;
        self.new = self.new.wrapping_add(u32::from(is_new));
        for (backend, leads) in visits_changed(before.as_deref(), frontend.as_deref()) {
            let at = FrontendKey { address: backend.address, port: backend.port, ..key };
            let leading = self.for_visitors.get(&at).copied().unwrap_or_default();
            let leading = leading.with(&key, leads);
            self.for_visitors.set(at, (leading.count > 0).then_some(leading));
        }
        self.frontends.set(key, frontend);
    }

    /// Adds an address that a pod or a node has, or removes one that no longer exists.
    pub fn set_address(&mut self, address: Address, exists: bool) {
        let before = self.has_address(address);
        if before != exists {
            self.addresses.set(address, exists.then_some(()));
            self.gone = self.gone.wrapping_add(u32::from(before));
        }
    }

    /// Adds or removes an address that slices or annotations of a namespace name and that no pod and no node has.
    pub fn set_named(&mut self, namespace: u64, address: Address, is_named: bool) {
        let before = self.is_named(namespace, address);
        if before != is_named {
            self.named.set((namespace, address), is_named.then_some(()));
            self.gone = self.gone.wrapping_add(u32::from(before));
        }
    }
}

/// The frontends that lead visitors to a backend: their number, and the XOR of their addresses and of their ports. If
/// only one frontend is left, the XOR is its address and port. So the memory does not grow with the number of
/// frontends.
#[derive(Debug, Clone, Copy, Default)]
struct VisitorFrontends {
    count: u32,
    address: u128,
    port: u16,
}

impl VisitorFrontends {
    /// These frontends with one more, or with one fewer.
    fn with(self, key: &FrontendKey, leads: bool) -> Self {
        Self {
            count: if leads { self.count + 1 } else { self.count - 1 },
            address: self.address ^ key.address.to_bits(),
            port: self.port ^ key.port,
        }
    }
}

/// The backends that visitors may reach by only one of the two versions of a frontend. `true` means that this is the
/// later version. Other backends are omitted, because setting an entry may copy a part of the table.
fn visits_changed<'a>(
    before: Option<&'a Frontend>,
    after: Option<&'a Frontend>,
) -> impl Iterator<Item = (&'a Backend, bool)> {
    let visited = |of: Option<&'a Frontend>| {
        of.filter(|it| it.takes_visitors).map_or(&[][..], |it| &it.all_backends)
    };
    let (before, after) = (visited(before), visited(after));
    let gone = before.iter().filter(|it| after.binary_search(it).is_err());
    let new = after.iter().filter(|it| before.binary_search(it).is_err());
    gone.map(|it| (it, false)).chain(new.map(|it| (it, true)))
}

/// A map in parts. A copy shares all parts until one of its entries is set. So a table of 100,000 addresses is copied
/// and changed in some microseconds.
#[derive(Debug, Clone)]
struct Parts<K, V> {
    random: RandomState,
    parts: Vec<Arc<HashMap<K, V, RandomState>>>,
}

/// The number of parts. With 100,000 entries, 100 of them are copied when one is set.
const PARTS: usize = 1024;

impl<K, V> Default for Parts<K, V> {
    fn default() -> Self {
        let random = RandomState::new();
        let empty = Arc::new(HashMap::with_hasher(random.clone()));
        Self { random, parts: vec![empty; PARTS] }
    }
}

impl<K: Eq + Hash + Clone, V: Clone> Parts<K, V> {
    /// The part that holds a key. Different bits of the hash choose the part and the place in the part.
    #[inline]
    fn part(&self, key: &K) -> usize {
        self.random.hash_one(key).rotate_left(20) as usize % PARTS
    }

    #[inline]
    fn get(&self, key: &K) -> Option<&V> {
        self.parts[self.part(key)].get(key)
    }

    fn set(&mut self, key: K, value: Option<V>) {
        let at = self.part(&key);
        let part = Arc::make_mut(&mut self.parts[at]);
        match value {
            Some(value) => part.insert(key, value),
            None => part.remove(&key),
        };
    }

    /// The memory in bytes, without the targets of pointers in values. A part has room for eight entries for each seven
    /// that it may hold, and one more byte for each.
    fn bytes(&self) -> usize {
        let of_part = |part: &Arc<HashMap<K, V, RandomState>>| {
            let room = (part.capacity() * 8 / 7).next_power_of_two();
            let entries = if part.capacity() == 0 { 0 } else { room * (size_of::<(K, V)>() + 1) };
            size_of::<Arc<HashMap<K, V, RandomState>>>() + size_of_val(&**part) + entries
        };
        self.parts.iter().map(of_part).sum()
    }

    fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.parts.iter().flat_map(|part| part.iter())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn address(n: u32) -> Address {
        Ipv4Addr::from_bits(0x0a00_0000 + n).into()
    }

    /// A change to the data that keeps connections; addresses and frontends are given by numbers.
    #[derive(Debug, Clone)]
    enum Step {
        Address(u32, bool),
        Named(u64, u32, bool),
        Frontend(u32, Option<u64>),
    }

    proptest! {
        /// A table holds the values that were set last, and each copy holds the values that were set when it was made.
        /// Every address that is removed is counted once.
        #[test]
        fn a_table_holds_what_was_set_and_its_copies_stay_as_they_were(
            steps in prop::collection::vec((0u32..40, prop::option::of(0u64..5)), 0..100),
        ) {
            let mut table = ServiceTable::default();
            let mut model = BTreeMap::new();
            let mut copies = Vec::new();
            let mut gone = 0;
            for (n, id) in steps {
                copies.push((table.clone(), model.clone()));
                let key = FrontendKey { address: address(n), protocol: 6, port: 80 };
                let frontend = id.map(|id| Frontend {
                    id, ..Frontend::default()
                });
                table.set_frontend(key, frontend.map(Arc::new));
                table.set_address(address(n), id.is_some());
                let before = match id {
                    Some(id) => model.insert(n, id),
                    None => model.remove(&n),
                };
                // The count includes the frontend and its address.
                gone += 2 * u32::from(before.is_some() && id.is_none());
                prop_assert_eq!(table.gone(), gone);
            }
            copies.push((table, model));
            for (table, model) in copies {
                let found: BTreeMap<_, _> = table.frontends().map(|(key, it)| (key.address, it.id)).collect();
                let expected = model.iter().map(|(n, id)| (address(*n), *id)).collect();
                prop_assert_eq!(found, expected);
                for n in 0..40 {
                    let key = FrontendKey { address: address(n), protocol: 6, port: 80 };
                    prop_assert_eq!(table.frontend(&key).map(|it| it.id), model.get(&n).copied());
                    prop_assert_eq!(table.has_address(address(n)), model.contains_key(&n));
                }
            }
        }

        /// A TCP connection is kept while a pod or a node has its backend's address, or while the namespace of its
        /// frontend names the address. Whenever a connection is no longer kept, the count grows, so that flows check
        /// their backend.
        #[test]
        fn a_namespace_holds_its_own_connections_alone(
            steps in prop::collection::vec(
                prop_oneof![
                    (0u32..3, any::<bool>()).prop_map(|(n, exists)| Step::Address(n, exists)),
                    (1u64..3, 0u32..3, any::<bool>()).prop_map(|(of, n, is)| Step::Named(of, n, is)),
                    (0u32..2, prop::option::of(1u64..3)).prop_map(|(n, of)| Step::Frontend(n, of)),
                ],
                1..60,
            ),
        ) {
            let mut table = ServiceTable::default();
            let key = |n| FrontendKey { address: address(90 + n), protocol: protocol::TCP, port: 80 };
            let (mut held, mut named) = (BTreeSet::new(), BTreeSet::new());
            let mut frontends = BTreeMap::new();
            let mut before = BTreeSet::new();
            for step in steps {
                let gone = table.gone();
                match step {
                    Step::Address(n, exists) => {
                        table.set_address(address(n), exists);
                        if exists { held.insert(n) } else { held.remove(&n) };
                    }
                    Step::Named(of, n, is_named) => {
                        table.set_named(of, address(n), is_named);
                        if is_named { named.insert((of, n)) } else { named.remove(&(of, n)) };
                    }
                    Step::Frontend(n, of) => {
                        let frontend = of.map(|namespace| Frontend { namespace, ..Frontend::default() });
                        table.set_frontend(key(n), frontend.map(Arc::new));
                        frontends.insert(n, of);
                    }
                }
                let all = (0..2).flat_map(|at| (0..3).map(move |n| (at, n)));
                let kept: BTreeSet<(u32, u32)> = all.clone().filter(|(at, n)| {
                    let of = frontends.get(at).copied().flatten();
                    held.contains(n) || of.is_some_and(|of| named.contains(&(of, *n)))
                }).collect();
                for (at, n) in all {
                    let backend = Backend { address: address(n), port: 8080 };
                    prop_assert_eq!(table.keeps(&key(at), backend), kept.contains(&(at, n)));
                }
                prop_assert!(before.is_subset(&kept) || table.gone() != gone);
                before = kept;
            }
        }

        /// A UDP frontend keeps the clients of its backends, with their ports. Whenever it loses a backend, the count
        /// grows, so that flows check their backend.
        #[test]
        fn a_client_of_udp_keeps_its_backend_while_the_service_has_it(
            steps in prop::collection::vec(
                prop::option::of(prop::collection::btree_set((0u32..4, 80u16..82), 0..6)),
                1..20,
            ),
        ) {
            let mut table = ServiceTable::default();
            let key = FrontendKey { address: address(99), protocol: protocol::UDP, port: 53 };
            (0..4).for_each(|n| table.set_address(address(n), true));
            let mut before = BTreeSet::new();
            for step in steps {
                let has = step.clone().unwrap_or_default();
                let backend = |&(n, port): &(u32, u16)| Backend { address: address(n), port };
                let frontend = step.map(|all| Arc::new(Frontend {
                    all_backends: all.iter().map(backend).collect(),
                    ..Frontend::default()
                }));
                let gone = table.gone();
                table.set_frontend(key, frontend);
                prop_assert_eq!(table.gone() != gone, !before.is_subset(&has));
                for all in (0..4).flat_map(|n| (80..82).map(move |port| (n, port))) {
                    prop_assert_eq!(table.keeps(&key, backend(&all)), has.contains(&all));
                    let tcp = FrontendKey { protocol: protocol::TCP, ..key };
                    prop_assert!(table.keeps(&tcp, backend(&all)), "its address exists");
                }
                before = has;
            }
        }
    }
}
