//! The services that Manx translates, compiled to the dataplane's table and kept up to date by changes of objects.
//!
//! A frontend is a cluster IP, a load balancer's address that nodes translate, or one of the `externalIPs` that the
//! settings allow, with a port of the Service; or an address of this node with the port's node port, or with a port
//! that a pod of this node asks for ([`host_ports`]). Left alone are Services that are headless or of type
//! `ExternalName`, and those that a label gives to another proxy.
//!
//! The table depends on the present objects only, never on the changes that led to them; only the number of addresses
//! that have gone counts changes. What is not known is closed: a Service that is not valid has no frontend, and while a
//! slice of a namespace is not valid, connections to all its Services are refused.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use manx_dataplane::services::{Clients, Frontend, FrontendKey, ServiceTable};
use manx_dataplane::wire::protocol;
use manx_objects::State;
use manx_objects::contents::{Changes, Contents};
use manx_objects::object::{
    EndpointSlice, Kind, Object, ObjectKey, Pod, Protocol, Service, ServicePort,
};
use manx_policy_compiler::model::ObjectName;
use sha1::{Digest, Sha1};

use self::claims::{Claims, Place};
use self::health_checks::LocalEndpoints;
use super::addresses::{AddressKind, Untranslated, addresses, left_alone, openings};
use super::backends::{Candidate, Here, TrafficPolicy, all, can_be_backend, select};
use super::bounds::{MOST_BACKENDS, MOST_HOST_PORTS, MOST_PORTS};
use super::host_ports;
use super::named_addresses::NamedAddresses;
use super::omission::Omission;
use super::rank::Rank;
use super::shares::Shares;
use super::slices::Slices;

/// The label of a node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";
/// The seconds of session affinity if a Service does not say (Kubernetes API, `ClientIPConfig`).
const AFFINITY: u32 = 10_800;

/// See the module.
#[derive(Debug, Default)]
pub struct Frontends {
    here: Here,
    node_ports: NodePorts,
    /// The nets whose addresses count as one of `externalIPs`.
    external: Box<[IpNet]>,
    table: Arc<ServiceTable>,
    /// The addresses that have a frontend, but for those of this node.
    addresses: BTreeSet<IpAddr>,
    /// The Services, and the pods of this node that ask for ports of it.
    compiled: HashMap<Arc<ObjectKey>, Compiled>,
    claims: Claims,
    /// What is not translated in full.
    omissions: BTreeMap<Arc<ObjectKey>, BTreeSet<Omission>>,
    /// The ports of this node that each pod asks for.
    host_ports: BTreeMap<Arc<Rank>, Box<[FrontendKey]>>,
    granted: GrantedPorts,
    /// The ports at which load balancers ask for each Service, and what they are told.
    health_checks: BTreeMap<Arc<Rank>, (u16, LocalEndpoints)>,
    slices: Slices,
    shares: Shares,
    named: NamedAddresses,
}

/// The ports of this node's addresses that are services'.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodePorts {
    /// The ports, the first and the last. A node port outside of them is not translated, because it may be a port of a
    /// program of the node.
    pub range: (u16, u16),
    /// The addresses, which are also those of pods' host ports.
    pub addresses: BTreeSet<IpAddr>,
    /// Whether pods' host ports are translated. Behind another plugin they are that one's.
    pub of_pods: bool,
}

/// The ports of this node that lead to pods, each with its pod.
pub type GrantedPorts = BTreeMap<FrontendKey, Arc<ObjectKey>>;

/// A Service or a pod with frontends, as it was compiled.
#[derive(Debug)]
struct Compiled {
    rank: Arc<Rank>,
    /// Its addresses, in order.
    addresses: Box<[Own]>,
    keys: Box<[FrontendKey]>,
    health_check: Option<(u16, LocalEndpoints)>,
}

/// An address of a Service that nodes translate, if it may be a service's.
#[derive(Debug, Clone, Copy)]
struct Own {
    address: IpAddr,
    is_admitted: bool,
    is_external_ip: bool,
}

impl Compiled {
    /// The place of its claim on a key.
    fn place(&self, key: &FrontendKey) -> Place {
        let at = self.addresses.binary_search_by_key(&key.address.to_ip(), |own| own.address);
        let own = at.ok().map(|at| self.addresses[at]);
        let is_external_ip = own.is_some_and(|own| own.is_external_ip && own.is_admitted);
        Place { is_external_ip, rank: Arc::clone(&self.rank) }
    }
}

impl Frontends {
    /// The frontends of a cluster without objects, as clients of node `node` see them.
    pub fn new(node: &str, node_ports: NodePorts) -> Self {
        let here = Here { node: node.to_owned(), zone: None };
        Self { here, node_ports, ..Self::default() }
    }

    /// The same, in which those of `externalIPs` count that lie in one of these nets. Without it none does.
    #[must_use]
    pub fn with_external_ips(self, nets: &[IpNet]) -> Self {
        Self { external: nets.into(), ..self }
    }

    /// The table. A change makes another one, which shares with this one what is alike.
    pub fn table(&self) -> &Arc<ServiceTable> {
        &self.table
    }

    /// The addresses that have a frontend, but for those of this node.
    pub fn addresses(&self) -> &BTreeSet<IpAddr> {
        &self.addresses
    }

    /// Sorts addresses by the first claim on each: external IPs, which nobody but authors of Services has chosen, come
    /// last, and of two the older one comes first.
    pub fn sort_by_claim(&self, addresses: &mut [IpAddr]) {
        let first = |address: &IpAddr| {
            let at = FrontendKey { address: (*address).into(), protocol: 0, port: 0 };
            self.claims.at_address(&at).min()
        };
        addresses.sort_by_key(first);
    }

    /// The ports of this node for which pods ask, each with the pod that may have it: the oldest one, if no Service has the
    /// port and not too many do. They lead nowhere before they are granted.
    pub fn asked_ports(&self) -> GrantedPorts {
        let mut asked = GrantedPorts::new();
        self.each_asked_port(&mut asked, |_, _| {});
        asked
    }

    /// Grants these of the ports that were asked for, and takes the others away. `admits` is as for
    /// [`Frontends::follow`]. Returns whether anything has changed.
    pub fn grant(
        &mut self,
        contents: &Contents,
        granted: &GrantedPorts,
        admits: impl Fn(IpAddr) -> bool,
    ) -> bool {
        if *granted == self.granted {
            return false;
        }
        let before = std::mem::replace(&mut self.granted, granted.clone());
        let differs = |(key, pod): &(&FrontendKey, &Arc<ObjectKey>)| {
            before.get(*key) != Some(*pod) || granted.get(*key) != Some(*pod)
        };
        let both = before.iter().chain(granted);
        let changed = both.filter(differs).map(|(_, pod)| ObjectKey::clone(pod)).collect();
        self.compile_all(contents, changed, admits);
        true
    }

    /// Collects the ports for which pods ask, as [`Frontends::asked_ports`] says, and calls `omit` for each port that a pod
    /// does not get.
    fn each_asked_port<'a>(
        &'a self,
        asked: &mut GrantedPorts,
        mut omit: impl FnMut(&'a ObjectKey, Omission),
    ) {
        if self.host_ports.is_empty() {
            return;
        }
        let checks = self.health_checks();
        let checked = |key: &FrontendKey| {
            checks.get(&key.port).filter(|_| key.protocol == protocol::TCP).map(|it| &it.service)
        };
        let mut ports = BTreeSet::new();
        for (rank, keys) in &self.host_ports {
            let pod = &rank.object;
            for key in keys {
                let of_service = self.service_at(key).or_else(|| checked(key));
                let by = of_service.or_else(|| asked.get(key));
                let port = (key.protocol, key.port);
                if let Some(by) = by {
                    omit(pod, Omission::Taken { key: *key, by: ObjectKey::clone(by) });
                } else if ports.len() >= MOST_HOST_PORTS && !ports.contains(&port) {
                    omit(pod, Omission::TooManyHostPorts);
                } else {
                    ports.insert(port);
                    asked.insert(*key, Arc::clone(pod));
                    if self.granted.get(key) != Some(pod) {
                        omit(pod, Omission::HostPortInUse(*key));
                    }
                }
            }
        }
    }

    /// The Services and pods that are not translated in full, in order, each with what is left out.
    pub fn omissions(&self) -> impl Iterator<Item = (&ObjectKey, Omission)> {
        let of_objects = self
            .omissions
            .iter()
            .flat_map(|(key, all)| all.iter().map(|omission| (&**key, omission.clone())));
        let mut all: Vec<_> = of_objects.chain(self.claims.beaten()).collect();
        self.each_asked_port(&mut GrantedPorts::new(), |pod, omission| all.push((pod, omission)));
        self.each_health_check(|service, omission| all.push((service, omission)));
        all.sort();
        all.dedup();
        all.into_iter()
    }

    /// Follows changes that led to `contents`; all changes before were followed. `admits` says whether an address may be
    /// a service's: it lies in no pool and block, and is no node's. Returns the addresses that have a frontend now and had
    /// none, or the other way round.
    pub fn follow(
        &mut self,
        contents: &Contents,
        changes: &Changes,
        admits: impl Fn(IpAddr) -> bool,
    ) -> BTreeSet<IpAddr> {
        let changed = match changes {
            Changes::Objects(objects) => self.note_objects(
                contents,
                objects
                    .iter()
                    .map(|(key, before)| (key, before.as_ref().map(|stored| &stored.state))),
            ),
            Changes::Everything => self.note_everything(contents),
        };
        self.store_named_addresses();
        self.compile_all(contents, changed, admits)
    }

    /// Compiles the Services again for which `admits` has another answer than before. Returns as [`Frontends::follow`].
    pub fn readmit(
        &mut self,
        contents: &Contents,
        admits: impl Fn(IpAddr) -> bool,
    ) -> BTreeSet<IpAddr> {
        let differs = |it: &Compiled| {
            let mut own = it.addresses.iter();
            own.any(|own| admits(own.address) != own.is_admitted)
        };
        let changed = self.compiled.iter().filter(|(_, service)| differs(service));
        let changed = changed.map(|(key, _)| ObjectKey::clone(key)).collect();
        self.compile_all(contents, changed, admits)
    }

    /// Moves node ports to these addresses of the node. `admits` is as for [`Frontends::follow`].
    pub fn move_node_ports(
        &mut self,
        contents: &Contents,
        addresses: BTreeSet<IpAddr>,
        admits: impl Fn(IpAddr) -> bool,
    ) {
        if self.node_ports.addresses != addresses {
            self.node_ports.addresses = addresses;
            let known = self.compiled.keys().map(|key| ObjectKey::clone(key));
            let all = known.chain(self.pods_with_ports(contents)).collect();
            self.compile_all(contents, all, admits);
        }
    }

    /// Notes changed objects, each with its state before, and returns those that have to be compiled.
    fn note_objects<'a>(
        &mut self,
        contents: &Contents,
        objects: impl Iterator<Item = (&'a ObjectKey, Option<&'a State>)>,
    ) -> BTreeSet<ObjectKey> {
        let mut changed = BTreeSet::new();
        for (key, before) in objects {
            let now = contents.objects.get(key).map(|stored| &stored.state);
            if before == now {
                continue;
            }
            match key.kind {
                Kind::Service => {
                    changed.insert(key.clone());
                }
                Kind::Pod => {
                    let has_ports =
                        |state: &State| state.valid().is_some_and(|it| self.host_pod(it).is_some());
                    if before.is_some_and(has_ports) || now.is_some_and(has_ports) {
                        changed.insert(key.clone());
                    }
                }
                Kind::EndpointSlice => {
                    let was_broken = self.slices.is_broken(&key.namespace);
                    changed.extend(before.and_then(|state| self.slices.remove(key, state)));
                    changed.extend(now.and_then(|state| self.slices.add(key, state)));
                    if self.slices.is_broken(&key.namespace) != was_broken {
                        changed.extend(all_services(contents, Some(&key.namespace)));
                    }
                }
                _ => {}
            }
            if matches!(key.kind, Kind::EndpointSlice | Kind::Pod | Kind::Node) {
                // Added first, so that an address that stays is never gone.
                if let Some(state) = now {
                    self.named.add(state);
                }
                if let Some(state) = before {
                    self.named.remove(state);
                }
            }
        }
        if self.note_zone(contents) {
            changed.extend(all_services(contents, None));
        }
        changed
    }

    /// Notes all objects, and returns those that are and were compiled.
    fn note_everything(&mut self, contents: &Contents) -> BTreeSet<ObjectKey> {
        self.note_zone(contents);
        self.slices = Slices::default();
        self.named.clear();
        for kind in [Kind::EndpointSlice, Kind::Pod, Kind::Node] {
            for (key, stored) in contents.of_kind(kind) {
                if kind == Kind::EndpointSlice {
                    self.slices.add(key, &stored.state);
                }
                self.named.add(&stored.state);
            }
        }
        let before = self.compiled.keys().map(|key| ObjectKey::clone(key));
        let pods = self.pods_with_ports(contents);
        before.chain(all_services(contents, None)).chain(pods).collect()
    }

    /// The pod that an object is, if it is one that asks for ports of this node.
    fn host_pod<'a>(&self, object: &'a Object) -> Option<&'a Pod> {
        let Object::Pod(pod) = object else { return None };
        let is_here = pod.node_name.as_ref() == Some(&self.here.node);
        (self.node_ports.of_pods && is_here && host_ports::has_some(pod)).then_some(pod)
    }

    fn pods_with_ports(&self, contents: &Contents) -> Vec<ObjectKey> {
        let pods = contents.of_kind(Kind::Pod);
        let asking = pods.filter(|(_, stored)| {
            stored.state.valid().is_some_and(|it| self.host_pod(it).is_some())
        });
        asking.map(|(key, _)| key.clone()).collect()
    }

    /// Notes the zone of this node, and returns whether it has changed.
    fn note_zone(&mut self, contents: &Contents) -> bool {
        let zone = zone(contents, &self.here.node);
        std::mem::replace(&mut self.here.zone, zone) != self.here.zone
    }

    /// Compiles objects that have changed, and returns as [`Frontends::follow`].
    fn compile_all(
        &mut self,
        contents: &Contents,
        objects: BTreeSet<ObjectKey>,
        admits: impl Fn(IpAddr) -> bool,
    ) -> BTreeSet<IpAddr> {
        let mut objects: BTreeSet<Arc<ObjectKey>> = objects.into_iter().map(Arc::new).collect();
        for service in objects.iter().filter(|key| key.kind == Kind::Service) {
            self.note_share(contents, service);
        }
        objects.extend(self.shares.decide());
        let mut touched = BTreeSet::new();
        for object in objects {
            let mut omissions = BTreeSet::new();
            let mut frontends = BTreeMap::new();
            let mut compiled =
                self.compile(contents, &object, &admits, (&mut frontends, &mut omissions));
            let mut asked = Box::default();
            if let Some(compiled) = compiled.as_mut().filter(|it| it.rank.is_pod) {
                frontends.retain(|key, _| self.granted.get(key) == Some(&object));
                let granted = frontends.keys().copied().collect();
                asked = std::mem::replace(&mut compiled.keys, granted);
            }
            if omissions.is_empty() {
                self.omissions.remove(&object);
            } else {
                self.omissions.insert(Arc::clone(&object), omissions);
            }
            if let Some(before) = self.compiled.remove(&object) {
                self.host_ports.remove(&before.rank);
                self.health_checks.remove(&before.rank);
                for key in before.keys {
                    self.claims.remove(&key, &object);
                    touched.insert(key);
                }
            }
            if let Some(compiled) = compiled {
                for (key, frontend) in frontends {
                    self.claims.add(key, compiled.place(&key), frontend);
                    touched.insert(key);
                }
                if compiled.rank.is_pod {
                    self.host_ports.insert(Arc::clone(&compiled.rank), asked);
                }
                if let Some(check) = compiled.health_check {
                    self.health_checks.insert(Arc::clone(&compiled.rank), check);
                }
                self.compiled.insert(object, compiled);
            }
        }
        touched.into_iter().filter(|key| self.store(*key)).map(|key| key.address.to_ip()).collect()
    }

    /// Notes how much of its namespace's share a Service asks for.
    fn note_share(&mut self, contents: &Contents, key: &Arc<ObjectKey>) {
        if let Some(before) = self.compiled.get(key) {
            self.shares.remove(&before.rank);
        }
        if let Some(Object::Service(service)) = contents.valid(key)
            && left_alone(service).is_none()
        {
            let name = ObjectName::new(&key.namespace, &key.name);
            let slices = self.slices.of_ports(&name, translated_ports(service));
            let backends: usize = slices.iter().flatten().map(|(it, _)| it.endpoints.len()).sum();
            let rank = Rank::new(key, service.created);
            // A Service never has more than its own bound.
            self.shares.add(&rank, backends.min(MOST_BACKENDS));
        }
    }

    /// Compiles an object to frontends. `None`: nothing of it is translated.
    fn compile(
        &self,
        contents: &Contents,
        key: &Arc<ObjectKey>,
        admits: impl Fn(IpAddr) -> bool,
        (frontends, omissions): (
            &mut BTreeMap<FrontendKey, Arc<Frontend>>,
            &mut BTreeSet<Omission>,
        ),
    ) -> Option<Compiled> {
        let (rank, addresses, health_check) = match contents.valid(key)? {
            Object::Service(service) if left_alone(service).is_none() => {
                let rank = Rank::new(key, service.created);
                if self.shares.leaves_out(&rank) {
                    omissions.insert(Omission::Namespace);
                    (rank, Box::default(), None)
                } else {
                    let name = ObjectName::new(&key.namespace, &key.name);
                    let health_check = self.compile_health_check((&name, service), omissions);
                    let addresses =
                        self.compile_service((&name, service), admits, (frontends, omissions));
                    (rank, addresses, health_check)
                }
            }
            object => {
                let pod = self.host_pod(object)?;
                *frontends = host_ports::asked(pod, &self.node_ports.addresses, omissions);
                (Rank::new(key, pod.created), Box::default(), None)
            }
        };
        let keys = frontends.keys().copied().collect();
        Some(Compiled { rank, addresses, keys, health_check })
    }

    /// Compiles a Service to frontends, and returns its addresses, each with whether it may be a frontend's.
    fn compile_service(
        &self,
        (name, service): (&ObjectName, &Service),
        admits: impl Fn(IpAddr) -> bool,
        (frontends, omissions): (
            &mut BTreeMap<FrontendKey, Arc<Frontend>>,
            &mut BTreeSet<Omission>,
        ),
    ) -> Box<[Own]> {
        let mut own = Vec::new();
        for (address, ends) in addresses(service, &self.external) {
            match ends {
                Ok(ends) => own.push((address, ends, admits(address))),
                Err(Untranslated::External) => {
                    omissions.insert(Omission::ExternalIp(address));
                }
                Err(Untranslated::TooManyExternal) => {
                    omissions.insert(Omission::TooManyExternalIps);
                }
                Err(_) => {}
            }
        }
        let is_of_any_node = |(_, (kind, _), _): &(_, (AddressKind, _), _)| kind.is_of_any_node();
        if service.maglev && service.keeps_clients && own.iter().any(is_of_any_node) {
            omissions.insert(Omission::MaglevLocal);
        }
        if service.ports.len() > MOST_PORTS {
            omissions.insert(Omission::TooManyPorts);
        }
        let ranges = Clients::of(&service.source_ranges);
        let ports = translated_ports(service);
        let mut backends = 0;
        for (port, slices) in ports.iter().zip(self.slices.of_ports(name, ports)) {
            // Addresses of one family by which the same clients get the same share their frontend.
            let mut made: BTreeMap<_, Arc<Frontend>> = BTreeMap::new();
            let of_node = (self.node_ports.range, self.node_ports.addresses.iter().copied());
            for opening in openings((service, port), &own, of_node) {
                let opening = match opening {
                    Ok(opening) => opening,
                    Err(omission) => {
                        omissions.insert(omission);
                        continue;
                    }
                };
                let (is_v4, policy) = (opening.address.is_ipv4(), opening.policy);
                let (has_ranges, is_outside) = match opening.kind {
                    AddressKind::ClusterIp => (false, false),
                    AddressKind::NodePort
                    | AddressKind::ExternalIp
                    | AddressKind::ExternalIpOutside => (false, true),
                    AddressKind::LoadBalancer | AddressKind::LoadBalancerOutside => {
                        (!service.source_ranges.is_empty(), true)
                    }
                };
                let takes_visitors = is_outside && !service.keeps_clients;
                let alike = (is_v4, policy, has_ranges, takes_visitors);
                let frontend = made.entry(alike).or_insert_with(|| {
                    let clients = if has_ranges { ranges.clone() } else { Clients::All };
                    let left = MOST_BACKENDS.saturating_sub(backends);
                    let of = (is_v4, policy, takes_visitors);
                    let port = (port, &*slices);
                    let made = self.frontend((name, service), port, of, left, omissions);
                    backends += made.backends.len() + made.all_backends.len();
                    Arc::new(Frontend { clients, ..made })
                });
                let key = frontend_key(opening.address, port, opening.port);
                if opening.kind.is_outside_alone() {
                    let other = || Arc::clone(frontend);
                    frontends.entry(key).and_modify(|it| {
                        Arc::make_mut(it).for_outside.get_or_insert_with(other);
                    });
                } else {
                    frontends.entry(key).or_insert_with(|| Arc::clone(frontend));
                }
            }
        }
        let of_own = |(address, (kind, _), is_admitted): (_, (AddressKind, _), _)| Own {
            address,
            is_admitted,
            is_external_ip: kind.is_external_ip(),
        };
        own.into_iter().map(of_own).collect()
    }

    /// The frontend of a Service's port, which these slices have, for its addresses of a family that have this policy, for
    /// every client. It has no backends if it would have more than `left`.
    fn frontend(
        &self,
        (name, service): (&ObjectName, &Service),
        (port, slices): (&ServicePort, &[(&EndpointSlice, u16)]),
        (is_v4, policy, takes_visitors): (bool, TrafficPolicy, bool),
        left: usize,
        omissions: &mut BTreeSet<Omission>,
    ) -> Frontend {
        let without_backends = Frontend {
            id: id(name, port),
            owner: owner(&name.namespace),
            affinity: affinity(service),
            takes_visitors,
            ..Frontend::default()
        };
        if self.slices.is_broken(&name.namespace) {
            omissions.insert(Omission::Endpoints);
            return without_backends;
        }
        let of_family = || slices.iter().filter(|(slice, _)| is_of_family(slice, is_v4)).copied();
        let count = of_family().map(|(slice, _)| slice.endpoints.len()).sum::<usize>();
        if count > left {
            omissions.insert(Omission::TooManyBackends);
            return without_backends;
        }
        let mut candidates = Vec::with_capacity(count);
        for (slice, port) in of_family() {
            for endpoint in &slice.endpoints {
                if can_be_backend(endpoint.address) {
                    candidates.push(Candidate { endpoint, port });
                } else {
                    omissions.insert(Omission::Backend(endpoint.address));
                }
            }
        }
        let (backends, without_backend) = select(&candidates, policy, &self.here);
        let has_all = takes_visitors || port.protocol == Some(Protocol::Udp);
        let all_backends = if has_all { all(&candidates) } else { Box::default() };
        Frontend { backends, all_backends, without_backend, ..without_backends }
    }

    /// Stores in the table who has a key now. Returns whether its address has a frontend now and had none, or the other
    /// way round.
    fn store(&mut self, key: FrontendKey) -> bool {
        let frontend = self.claims.first(&key).map(|(_, frontend)| frontend);
        if frontend != self.table.frontend(&key) {
            let frontend = frontend.cloned();
            Arc::make_mut(&mut self.table).set_frontend(key, frontend);
        }
        if self.node_ports.addresses.contains(&key.address.to_ip()) {
            return false;
        }
        if self.claims.at_address(&key).next().is_some() {
            self.addresses.insert(key.address.to_ip())
        } else {
            self.addresses.remove(&key.address.to_ip())
        }
    }

    fn store_named_addresses(&mut self) {
        for (address, is_named) in self.named.take_changed() {
            let address = address.into();
            if self.table.has_address(address) != is_named {
                Arc::make_mut(&mut self.table).set_address(address, is_named);
            }
        }
    }
}

/// The ports of a Service that are translated.
fn translated_ports(service: &Service) -> &[ServicePort] {
    &service.ports[..service.ports.len().min(MOST_PORTS)]
}

/// Whether the addresses of a slice, which are all of one family, are of this one.
fn is_of_family(slice: &EndpointSlice, is_v4: bool) -> bool {
    slice.endpoints.first().is_some_and(|it| it.address.is_ipv4() == is_v4)
}

/// All Services, or those of a namespace.
fn all_services<'a>(
    contents: &'a Contents,
    namespace: Option<&str>,
) -> impl Iterator<Item = ObjectKey> + use<'a> {
    let all = match namespace {
        Some(namespace) => {
            let services = contents.of_kind_in(Kind::Service, namespace);
            services.map(|(key, _)| key).collect::<Vec<_>>()
        }
        None => contents.of_kind(Kind::Service).map(|(key, _)| key).collect(),
    };
    all.into_iter().cloned()
}

/// The zone of a node, if it is known.
pub fn zone(contents: &Contents, node: &str) -> Option<String> {
    match contents.valid(&ObjectKey::new(Kind::Node, "", node)) {
        Some(Object::Node(node)) => node.labels.get(ZONE).cloned(),
        _ => None,
    }
}

/// The seconds for which a client keeps its backend, if it does.
fn affinity(service: &Service) -> Option<u32> {
    service.client_affinity.map(|it| it.timeout.unwrap_or(AFFINITY))
}

fn frontend_key(address: IpAddr, of: &ServicePort, port: u16) -> FrontendKey {
    let protocol = of.protocol.unwrap_or(Protocol::Tcp).number();
    FrontendKey { address: address.into(), protocol, port }
}

/// The number of a Service's port. It is the same on every node, after a restart and in every version, and nobody can
/// make a Service whose number is another one's.
fn id(service: &ObjectName, port: &ServicePort) -> u64 {
    let name = port.name.as_deref().unwrap_or_default();
    // Neither a namespace nor a Service's name has a slash.
    let hash = Sha1::digest(format!("{}/{}/{name}", service.namespace, service.name));
    hash.iter().take(8).fold(0, |id, byte| id << 8 | u64::from(*byte))
}

/// The number of a namespace, the same in every version of the table.
fn owner(namespace: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    namespace.hash(&mut hasher);
    hasher.finish()
}

mod claims;
pub(super) mod health_checks;
pub mod view;

#[cfg(test)]
mod tests;
