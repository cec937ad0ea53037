//! The table of the services that Manx translates. Changes of objects keep it up to date: this module decides what must
//! be compiled again, and which object has each key. A key is an address, a protocol and a port.
//!
//! [`compile`] compiles the frontends of one object, and [`granted`] decides which ports of the node its pods have.
//!
//! A frontend is an address with a port. It is a cluster IP, a load balancer's address that nodes translate, or one of
//! the `externalIPs` that the settings allow, each with a port of the Service. It may also be an address of this node,
//! with a node port or with a host port that a pod of this node requests. A Service has no frontends if it is headless
//! or of type `ExternalName`, or if a label assigns it to another proxy.
//!
//! The table depends only on the current objects, never on the changes that led to them. The only exception is the
//! number of addresses that have been removed. Missing knowledge fails closed: an invalid Service has no frontend, and
//! while a slice of a namespace is invalid, connections to all Services of the namespace are refused.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use manx_dataplane::services::{FrontendKey, ServiceTable};
use manx_objects::State;
use manx_objects::contents::{Changes, Contents};
use manx_objects::object::{Kind, Object, ObjectKey};
use manx_policy_compiler::model::ObjectName;

use self::claims::Claims;
use self::compile::{Compiled, Compiler, Own};
use self::granted::AskedHostPorts;
use self::health_checks::LocalEndpoints;
use super::addresses::left_alone;
use super::backends::{Here, zone};
use super::named_addresses::NamedAddresses;
use super::omission::Omission;
use super::rank::{Precedence, Rank};
use super::shares::Shares;
use super::slices::Slices;

/// See the module.
#[derive(Debug, Default)]
pub struct Frontends {
    here: Here,
    node_ports: NodePorts,
    /// The nets in which an address of `externalIPs` takes effect.
    external: Box<[IpNet]>,
    /// The nets of cluster IPs that routers outside the cluster send to any node.
    announced_cluster_ips: Box<[IpNet]>,
    table: Arc<ServiceTable>,
    /// The addresses that have a frontend, except the addresses of this node.
    addresses: BTreeSet<IpAddr>,
    /// The Services that are translated, and the pods of this node that request ports of the node.
    claimants: HashMap<Arc<ObjectKey>, Claimant>,
    claims: Claims,
    /// The parts of each object that are not translated, with the reasons.
    omissions: BTreeMap<Arc<ObjectKey>, BTreeSet<Omission>>,
    host_ports: AskedHostPorts,
    /// The port on which load balancers ask about each Service, and the answer.
    health_checks: BTreeMap<Arc<Rank>, (u16, LocalEndpoints)>,
    slices: Slices,
    shares: Shares,
    named: NamedAddresses,
}

/// The ports of this node's addresses that are for services.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodePorts {
    /// The first and the last port. A node port outside this range is not translated, because it may be the port of a
    /// program of the node.
    pub range: (u16, u16),
    /// The addresses for node ports, and for pods' host ports.
    pub addresses: BTreeSet<IpAddr>,
    /// Whether pods' host ports are translated. They are not translated if another plugin connects the pods, because
    /// that plugin does this.
    pub of_pods: bool,
}

impl NodePorts {
    /// Returns whether an address of a frontend belongs to the node. This includes the unspecified address of
    /// [`NodePorts::of_services`].
    fn is_of_node(&self, address: IpAddr) -> bool {
        address.is_unspecified() || self.addresses.contains(&address)
    }

    /// Returns the addresses at which Services have node ports. If the node has no address of a family, the unspecified
    /// address is used, which no client can reach. Through this frontend the node knows the Services' backends, so that
    /// other nodes can send clients to them.
    fn of_services(&self) -> impl Iterator<Item = IpAddr> {
        let unspecified = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
        let has_family = |it: &IpAddr| self.addresses.iter().any(|at| at.is_ipv4() == it.is_ipv4());
        self.addresses
            .iter()
            .copied()
            .chain(unspecified.into_iter().filter(move |it| !has_family(it)))
    }
}

/// A Service or a pod that claims keys.
#[derive(Debug)]
struct Claimant {
    rank: Arc<Rank>,
    addresses: Box<[Own]>,
    keys: Box<[FrontendKey]>,
}

impl Claimant {
    /// Returns the precedence of the object's claim to a key.
    fn precedence(&self, key: &FrontendKey) -> Precedence {
        let at = self.addresses.binary_search_by_key(&key.address.to_ip(), |own| own.address);
        let own = at.ok().map(|at| self.addresses[at]);
        let is_external_ip = own.is_some_and(|own| own.is_external_ip && own.is_admitted);
        Precedence { is_external_ip, rank: Arc::clone(&self.rank) }
    }
}

impl Frontends {
    /// Returns the frontends of a cluster without objects, as clients of the node `node` see them.
    pub fn new(node: &str, node_ports: NodePorts) -> Self {
        let here = Here { node: node.to_owned(), zone: None };
        Self { here, node_ports, ..Self::default() }
    }

    /// Sets the nets in which an address of `externalIPs` takes effect. By default there are none.
    #[must_use]
    pub fn with_external_ips(self, nets: &[IpNet]) -> Self {
        Self { external: nets.into(), ..self }
    }

    /// Sets the same nets as [`Frontends::announce`], for frontends without objects.
    #[must_use]
    pub fn with_announced(self, nets: &[IpNet]) -> Self {
        Self { announced_cluster_ips: nets.into(), ..self }
    }

    /// Returns the table. A change creates a new table, which shares its unchanged parts with the old one.
    pub fn table(&self) -> &Arc<ServiceTable> {
        &self.table
    }

    /// Returns the addresses that have a frontend, except the addresses of this node.
    pub fn addresses(&self) -> &BTreeSet<IpAddr> {
        &self.addresses
    }

    /// Sorts addresses by the precedence of the objects that have them. Addresses that only `externalIPs` name come
    /// last, because only authors of Services have chosen them. Otherwise, the address of the older object comes first.
    pub fn sort_by_claim(&self, addresses: &mut [IpAddr]) {
        let first = |address: &IpAddr| {
            let at = FrontendKey { address: (*address).into(), protocol: 0, port: 0 };
            self.claims.at_address(&at).min()
        };
        addresses.sort_by_cached_key(first);
    }

    /// Returns the Services and pods that are not completely translated, in order, each with a part that is left out.
    pub fn omissions(&self) -> impl Iterator<Item = (&ObjectKey, Omission)> {
        let of_objects = self
            .omissions
            .iter()
            .flat_map(|(key, all)| all.iter().map(|omission| (&**key, omission.clone())));
        let mut all: Vec<_> = of_objects.chain(self.claims.beaten()).collect();
        self.each_asked_port(|pod, omission| all.push((pod, omission)));
        self.each_health_check(|service, omission| all.push((service, omission)));
        all.sort();
        all.dedup();
        all.into_iter()
    }

    /// Applies the changes that led to `contents`. All earlier changes must have been applied. `admits` says whether an
    /// address may be a service's address: it is in no pool and no block, and is not an address of a node. Returns the
    /// addresses that have gained their first frontend or lost their last one.
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
        self.named.store(&mut self.table);
        self.compile_all(contents, changed, admits)
    }

    /// Compiles the Services again for which the result of `admits` has changed. Returns the same as
    /// [`Frontends::follow`].
    pub fn readmit(
        &mut self,
        contents: &Contents,
        admits: impl Fn(IpAddr) -> bool,
    ) -> BTreeSet<IpAddr> {
        let differs = |it: &Claimant| {
            let mut own = it.addresses.iter();
            own.any(|own| admits(own.address) != own.is_admitted)
        };
        let changed = self.claimants.iter().filter(|(_, service)| differs(service));
        let changed = changed.map(|(key, _)| ObjectKey::clone(key)).collect();
        self.compile_all(contents, changed, admits)
    }

    /// Moves node ports to these addresses of the node. `admits` is the same as for [`Frontends::follow`].
    pub fn move_node_ports(
        &mut self,
        contents: &Contents,
        addresses: BTreeSet<IpAddr>,
        admits: impl Fn(IpAddr) -> bool,
    ) {
        if self.node_ports.addresses != addresses {
            self.node_ports.addresses = addresses;
            let known = self.claimants.keys().map(|key| ObjectKey::clone(key));
            let all = known.chain(self.pods_with_ports(contents)).collect();
            self.compile_all(contents, all, admits);
        }
    }

    /// Sets the nets of cluster IPs that routers outside the cluster send to any node. Backends on other nodes then
    /// accept clients from outside the cluster, as at a load balancer's address. `admits` is the same as for
    /// [`Frontends::follow`].
    pub fn announce(
        &mut self,
        contents: &Contents,
        nets: &[IpNet],
        admits: impl Fn(IpAddr) -> bool,
    ) {
        if *self.announced_cluster_ips != *nets {
            self.announced_cluster_ips = nets.into();
            let services = self.claimants.keys().filter(|key| key.kind == Kind::Service);
            let services = services.map(|key| ObjectKey::clone(key)).collect();
            self.compile_all(contents, services, admits);
        }
    }

    /// Records changed objects, each with its earlier state, and returns the objects that must be compiled.
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
                    let compiler = self.compiler();
                    let has_ports = |state: &State| {
                        state.valid().is_some_and(|it| compiler.host_pod(it).is_some())
                    };
                    if before.is_some_and(has_ports) || now.is_some_and(has_ports) {
                        changed.insert(key.clone());
                    }
                }
                Kind::EndpointSlice => {
                    changed.extend(self.slices.follow(contents, key, (before, now)));
                }
                _ => {}
            }
            if matches!(key.kind, Kind::EndpointSlice | Kind::Pod | Kind::Node) {
                // The new state is added before the old one is removed, so that an address in both never counts as
                // removed.
                if let Some(state) = now {
                    self.named.add(key, state);
                }
                if let Some(state) = before {
                    self.named.remove(key, state);
                }
            }
        }
        if self.note_zone(contents) {
            changed.extend(all_services(contents));
        }
        changed
    }

    /// Records all objects, and returns the objects to compile: those that exist now and those that were compiled
    /// before.
    fn note_everything(&mut self, contents: &Contents) -> BTreeSet<ObjectKey> {
        self.note_zone(contents);
        self.slices = Slices::default();
        self.named.clear();
        for kind in [Kind::EndpointSlice, Kind::Pod, Kind::Node] {
            for (key, stored) in contents.of_kind(kind) {
                if kind == Kind::EndpointSlice {
                    self.slices.add(key, &stored.state);
                }
                self.named.add(key, &stored.state);
            }
        }
        let before = self.claimants.keys().map(|key| ObjectKey::clone(key));
        let pods = self.pods_with_ports(contents);
        before.chain(all_services(contents)).chain(pods).collect()
    }

    fn pods_with_ports(&self, contents: &Contents) -> Vec<ObjectKey> {
        let pods = contents.of_kind(Kind::Pod);
        let compiler = self.compiler();
        let asking = pods.filter(|(_, stored)| {
            stored.state.valid().is_some_and(|it| compiler.host_pod(it).is_some())
        });
        asking.map(|(key, _)| key.clone()).collect()
    }

    /// Records the zone of this node, and returns whether it has changed.
    fn note_zone(&mut self, contents: &Contents) -> bool {
        let zone = zone(contents, &self.here.node);
        std::mem::replace(&mut self.here.zone, zone) != self.here.zone
    }

    /// Compiles changed objects, and returns the same as [`Frontends::follow`].
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
            let now = contents.valid(&object);
            let now = now.and_then(|it| self.compiler().compile(&object, it, &admits));
            self.replace(&object, now, &mut touched);
        }
        touched.into_iter().filter(|key| self.store(*key)).map(|key| key.address.to_ip()).collect()
    }

    /// Replaces the compiled form of an object. Adds the keys that the object claims now or claimed before to
    /// `touched`.
    fn replace(
        &mut self,
        object: &Arc<ObjectKey>,
        compiled: Option<Compiled>,
        touched: &mut BTreeSet<FrontendKey>,
    ) {
        self.omissions.remove(object);
        if let Some(before) = self.claimants.remove(object) {
            self.host_ports.forget(&before.rank);
            self.health_checks.remove(&before.rank);
            for key in before.keys {
                self.claims.remove(&key, object);
                touched.insert(key);
            }
        }
        let Some(compiled) = compiled else { return };
        let Compiled { rank, addresses, health_check, mut frontends, omissions } = compiled;
        if !omissions.is_empty() {
            self.omissions.insert(Arc::clone(object), omissions);
        }
        if rank.is_pod {
            self.host_ports.ask(&rank, &mut frontends);
        }
        if let Some(check) = health_check {
            self.health_checks.insert(Arc::clone(&rank), check);
        }
        let claimant = Claimant { rank, addresses, keys: frontends.keys().copied().collect() };
        for (key, frontend) in frontends {
            self.claims.add(key, claimant.precedence(&key), frontend);
            touched.insert(key);
        }
        self.claimants.insert(Arc::clone(object), claimant);
    }

    /// Records how much of its namespace's share a Service requests.
    fn note_share(&mut self, contents: &Contents, key: &Arc<ObjectKey>) {
        if let Some(before) = self.claimants.get(key) {
            self.shares.remove(&before.rank);
        }
        if let Some(Object::Service(service)) = contents.valid(key)
            && left_alone(service).is_none()
        {
            let name = ObjectName::new(&key.namespace, &key.name);
            let asked = self.compiler().asked(&name, service);
            self.shares.add(&Rank::new(key, service.created), asked);
        }
    }

    fn compiler(&self) -> Compiler<'_> {
        let Self { here, node_ports, external, announced_cluster_ips, slices, shares, .. } = self;
        Compiler { here, node_ports, external, announced_cluster_ips, slices, shares }
    }

    /// Stores in the table which object has a key now. Returns whether the key's address has gained its first frontend
    /// or lost its last one.
    fn store(&mut self, key: FrontendKey) -> bool {
        let frontend = self.claims.first(&key).map(|(_, frontend)| frontend);
        if frontend != self.table.frontend(&key) {
            let frontend = frontend.cloned();
            Arc::make_mut(&mut self.table).set_frontend(key, frontend);
        }
        if self.node_ports.is_of_node(key.address.to_ip()) {
            return false;
        }
        if self.claims.at_address(&key).next().is_some() {
            self.addresses.insert(key.address.to_ip())
        } else {
            self.addresses.remove(&key.address.to_ip())
        }
    }
}

fn all_services(contents: &Contents) -> impl Iterator<Item = ObjectKey> {
    contents.of_kind(Kind::Service).map(|(key, _)| key.clone())
}

mod claims;
mod compile;
pub(super) mod granted;
pub(super) mod health_checks;
pub mod view;

#[cfg(test)]
pub(super) mod tests;
