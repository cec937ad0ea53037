//! The addresses of services that a node announces to its BGP peers.
//!
//! The ranges are those of `BGPConfiguration/default` ([`AnnouncedNets`]). Every node announces them. A node also
//! announces single addresses:
//!
//! | the Service | announced by |
//! |---|---|
//! | `externalTrafficPolicy: Local` | the nodes on which it has a ready endpoint |
//! | others, if the range is this single address | every node |
//! | others, with `serviceLoadBalancerAggregation: Disabled` and a load balancer's address | every node, while an endpoint is ready |
//!
//! If several Services name one address in `externalIPs`, the first one decides. The order is the one in which Services
//! get the address's ports. If other Services have the address as a cluster IP or a load balancer's address, only they
//! decide. Otherwise the author of a Service could name the address of another Service, and divert its clients to
//! nodes without an endpoint.
//!
//! A node with the label `node.kubernetes.io/exclude-from-external-load-balancers` announces nothing.
//!
//! Source: Calico's documentation, "Advertise Kubernetes service IP addresses". (Calico announces an address as long as
//! any Service has it.)

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use manx_objects::contents::{Changes, Contents};
use manx_objects::object::{Kind, Object, ObjectKey, Service};
use manx_policy_compiler::model::ObjectName;

use self::nets::{AnnouncedNets, Condition};
use super::addresses::{AddressKind, addresses, left_alone};
use super::bounds::MOST_ANNOUNCED;
use super::rank::{Precedence, Rank};
use super::slices::Slices;

pub mod nets;

#[cfg(test)]
mod tests;

/// The label of nodes that must not receive traffic from outside the cluster.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// See the module. The result depends only on the current objects, never on the changes that led to them.
#[derive(Debug)]
pub struct Announced {
    node: String,
    /// The nets in which an address of `externalIPs` takes effect.
    external: Vec<IpNet>,
    slices: Slices,
    services: HashMap<ObjectKey, Known>,
    /// The Services that have each address, in order of precedence.
    order: BTreeMap<IpAddr, BTreeSet<Precedence>>,
}

/// The addresses that a node announces.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AnnouncedRoutes {
    /// The ranges and the single addresses.
    pub routes: BTreeSet<IpNet>,
    /// The number of single addresses that are left out because there are too many.
    pub left_out: usize,
}

/// A Service with its addresses.
#[derive(Debug, PartialEq, Eq)]
struct Known {
    rank: Arc<Rank>,
    addresses: BTreeMap<IpAddr, Claim>,
}

/// The data of a Service about one of its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Claim {
    kind: AddressKind,
    /// Whether `externalTrafficPolicy` is `Local`.
    is_local: bool,
    /// Whether an endpoint of the address's family is ready: on any node, and on this node.
    is_ready: bool,
    is_ready_here: bool,
}

impl Known {
    fn precedence(&self, kind: AddressKind) -> Precedence {
        Precedence { is_external_ip: kind.is_external_ip(), rank: Arc::clone(&self.rank) }
    }
}

impl Announced {
    /// Returns the value for a cluster without objects. An address of `externalIPs` counts only if it is in one of the
    /// nets `external`.
    pub fn new(node: &str, external: Vec<IpNet>) -> Self {
        Self {
            node: node.to_owned(),
            external,
            slices: Slices::default(),
            services: HashMap::new(),
            order: BTreeMap::new(),
        }
    }

    /// Applies the changes that led to `contents`. All earlier changes must have been applied. Returns whether the
    /// announced addresses may have changed.
    pub fn follow(&mut self, contents: &Contents, changes: &Changes) -> bool {
        let mut changed = BTreeSet::new();
        match changes {
            Changes::Objects(objects) => {
                for (key, before) in objects {
                    let states = (
                        before.as_ref().map(|stored| &stored.state),
                        contents.objects.get(key).map(|stored| &stored.state),
                    );
                    match key.kind {
                        Kind::Service => _ = changed.insert(key.clone()),
                        Kind::EndpointSlice if states.0 != states.1 => {
                            changed.extend(self.slices.follow(contents, key, states));
                        }
                        _ => {}
                    }
                }
            }
            Changes::Everything => {
                self.slices = Slices::default();
                for (key, stored) in contents.of_kind(Kind::EndpointSlice) {
                    self.slices.add(key, &stored.state);
                }
                changed.extend(self.services.keys().cloned());
                changed.extend(contents.of_kind(Kind::Service).map(|(key, _)| key.clone()));
            }
        }
        let mut differs = false;
        for key in changed {
            differs |= self.replace(contents, key);
        }
        differs
    }

    /// Returns the addresses that the node announces. `is_served` says whether the node translates an address to its
    /// Service.
    pub fn routes(
        &self,
        contents: &Contents,
        nets: &AnnouncedNets,
        is_served: impl Fn(IpAddr) -> bool,
    ) -> AnnouncedRoutes {
        let node = contents.valid(&ObjectKey::new(Kind::Node, "", &self.node));
        if matches!(node, Some(Object::Node(node)) if node.labels.contains_key(EXCLUDED)) {
            return AnnouncedRoutes::default();
        }
        let claims = self.order.iter().filter_map(|(address, all)| {
            let first = all.first()?;
            let counting = if first.is_external_ip { 1 } else { all.len() };
            let mut counting =
                all.iter().take(counting).filter(|it| it.is_external_ip == first.is_external_ip);
            let by = counting.find(|it| self.fulfils(nets, it, *address))?;
            let is_cluster_ip = self.claim(by, *address)?.kind == AddressKind::ClusterIp;
            Some(((by.is_external_ip, is_cluster_ip, &by.rank), *address))
        });
        let mut single: Vec<_> = claims.filter(|(_, address)| is_served(*address)).collect();
        single.sort_unstable();
        let left_out = single.len().saturating_sub(MOST_ANNOUNCED);
        let single = single.into_iter().take(MOST_ANNOUNCED);
        let single = single.map(|(_, address)| IpNet::from(address));
        AnnouncedRoutes {
            routes: nets.announced_whole(&self.external).chain(single).collect(),
            left_out,
        }
    }

    fn claim(&self, by: &Precedence, address: IpAddr) -> Option<&Claim> {
        self.services.get(&*by.rank.object)?.addresses.get(&address)
    }

    /// Returns whether a Service that has an address meets the condition under which the address is announced.
    fn fulfils(&self, nets: &AnnouncedNets, by: &Precedence, address: IpAddr) -> bool {
        let Some(claim) = self.claim(by, address) else { return false };
        match nets.condition(address, claim.kind, claim.is_local) {
            Condition::Never => false,
            Condition::Always => true,
            Condition::Anywhere => claim.is_ready,
            Condition::Here => claim.is_ready_here,
        }
    }

    /// Replaces the data of a Service. Returns whether the data has changed.
    fn replace(&mut self, contents: &Contents, key: ObjectKey) -> bool {
        let now = match contents.valid(&key) {
            Some(Object::Service(service)) => self.known(&key, service),
            _ => None,
        };
        if self.services.get(&key) == now.as_ref() {
            return false;
        }
        if let Some(before) = self.services.remove(&key) {
            for (address, claim) in &before.addresses {
                if let Some(all) = self.order.get_mut(address) {
                    all.remove(&before.precedence(claim.kind));
                    if all.is_empty() {
                        self.order.remove(address);
                    }
                }
            }
        }
        if let Some(now) = now {
            for (address, claim) in &now.addresses {
                self.order.entry(*address).or_default().insert(now.precedence(claim.kind));
            }
            self.services.insert(key, now);
        }
        true
    }

    /// Returns the addresses of a Service. Returns `None` if nodes translate nothing of the Service.
    fn known(&self, key: &ObjectKey, service: &Service) -> Option<Known> {
        if left_alone(service).is_some() {
            return None;
        }
        let name = ObjectName::new(&key.namespace, &key.name);
        // For each family, IPv4 first: whether an endpoint is ready on any node, and on this node.
        let mut ready = [(false, false); 2];
        for endpoint in self.slices.ready((&name, service)) {
            let (anywhere, here) = &mut ready[usize::from(endpoint.address.is_ipv6())];
            *anywhere = true;
            *here |= endpoint.node.as_deref() == Some(&*self.node);
        }
        let all = addresses(service, &self.external).into_iter();
        let addresses = all.filter_map(|(address, ends)| {
            let (kind, _) = ends.ok()?;
            let (is_ready, is_ready_here) = ready[usize::from(address.is_ipv6())];
            let is_local = service.keeps_clients;
            Some((address, Claim { kind, is_local, is_ready, is_ready_here }))
        });
        let rank = Rank::new(&Arc::new(key.clone()), service.created);
        Some(Known { rank, addresses: addresses.collect() })
    }
}
