//! The backends that a new connection to a service may get, from the objects alone.
//!
//! This module implements these documents independently of the product: "Virtual IPs and Service Proxies" (Kubernetes
//! documentation), KEP-1669 (terminating endpoints), KEP-2086 (`internalTrafficPolicy`), KEP-2433 and KEP-3015 (hints).
//! Where the documents leave something open, the module follows kube-proxy. Each call reads all objects again.
//!
//! The client is a pod or a process of a node (the results are equal for both), or it is outside the cluster and its
//! packets arrive at a node. These are not judged here: `loadBalancerSourceRanges`, node ports, and the addresses of a
//! `ServiceCIDR` that no service has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::addresses::node_addresses;
use super::blocks::{self, BlockSource};
use super::matching::{in_net, protocol_number};
use ipnet::IpNet;
use manx_objects::contents::Stored;
use manx_objects::object::{
    Hints, Kind, Object, ObjectKey, Service, ServicePort, ServiceType, SliceEndpoint,
};

/// The label of a service that another proxy translates. Its value does not matter.
const OF_ANOTHER_PROXY: &str = "service.kubernetes.io/service-proxy-name";
/// The label of a service that nothing translates. Its value does not matter.
const HEADLESS: &str = "service.kubernetes.io/headless";
/// The label with the zone of a node.
const ZONE: &str = "topology.kubernetes.io/zone";
/// The default of `sessionAffinityConfig.clientIP.timeoutSeconds`: three hours.
const AFFINITY_SECONDS: u32 = 10_800;

/// The treatment of a new connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceBackends {
    /// No service has this address and port. The connection is judged untranslated.
    NotAService,
    /// The connection is refused: the client gets an answer that there is no endpoint.
    Refused,
    /// The packets are dropped: the service has endpoints, but none on this node, where the endpoint must be.
    Dropped,
    /// The connection goes to one of these addresses and ports.
    OneOf {
        /// The addresses and ports, at least one.
        backends: BTreeSet<(IpAddr, u16)>,
        /// If the service has client affinity, a client keeps its backend for this number of seconds after its last new
        /// connection.
        affinity: Option<u32>,
    },
}

/// The services of one cluster.
#[derive(Debug)]
pub struct ServiceOracle<'a> {
    objects: &'a BTreeMap<ObjectKey, Stored>,
    /// The nets in which `externalIPs` take effect.
    external: &'a [IpNet],
}

/// An endpoint of a service's port.
#[derive(Debug, Clone, Copy)]
struct Endpoint<'a> {
    of_slice: &'a SliceEndpoint,
    port: u16,
}

impl<'a> ServiceOracle<'a> {
    /// Returns an oracle for all objects of a store, in a cluster in which no `externalIPs` take effect.
    pub const fn new(objects: &'a BTreeMap<ObjectKey, Stored>) -> Self {
        Self { objects, external: &[] }
    }

    /// Sets the nets in which `externalIPs` take effect.
    #[must_use]
    pub const fn with_external_ips(self, external: &'a [IpNet]) -> Self {
        Self { external, ..self }
    }

    /// Returns the treatment of a new connection of a client on `node`, or of a client outside the cluster whose
    /// packets arrive at `node`. An invalid service is ignored, because its addresses are not known.
    pub fn backends(
        &self,
        (node, from_outside): (&str, bool),
        address: IpAddr,
        protocol: u8,
        port: u16,
    ) -> ServiceBackends {
        let Some((key, service, port)) = self.owner(address, protocol, port) else {
            // A cluster IP belongs to its service alone, so connections to other ports of this address are refused. At
            // the address of a load balancer, the load balancer may serve other ports.
            let is_cluster_ip = !self.is_of_pods_or_nodes(address)
                && self
                    .services_at(address)
                    .iter()
                    .any(|(_, it)| it.cluster_ips.contains(&address));
            return if is_cluster_ip {
                ServiceBackends::Refused
            } else {
                ServiceBackends::NotAService
            };
        };
        if self.has_unknown_slice(&key.namespace) {
            return ServiceBackends::Refused;
        }
        let endpoints = self.endpoints(key, port, address.is_ipv4());
        // The internal policy applies to cluster IPs. The external policy applies to load balancers' addresses and
        // external IPs. At these addresses, a client in the cluster gets any endpoint.
        let local = if service.cluster_ips.contains(&address) {
            service.internal_local
        } else {
            service.keeps_clients && from_outside
        };
        let chosen = if local {
            let here = |it: &Endpoint<'_>| it.of_slice.node.as_deref() == Some(node);
            available(endpoints.iter().copied().filter(here).collect())
        } else if service.maglev
            && !service.keeps_clients
            && !service.cluster_ips.contains(&address)
        {
            // The result must not depend on the node that receives the connection.
            available(endpoints.clone())
        } else {
            self.hinted(node, available(endpoints.clone()))
        };
        if chosen.is_empty() {
            // kube-proxy refuses connections while no node has an endpoint.
            let is_elsewhere = local && !available(endpoints).is_empty();
            return if is_elsewhere { ServiceBackends::Dropped } else { ServiceBackends::Refused };
        }
        let backends = chosen.iter().map(|it| (it.of_slice.address, it.port)).collect();
        let affinity = service.client_affinity.map(|it| it.timeout.unwrap_or(AFFINITY_SECONDS));
        ServiceBackends::OneOf { backends, affinity }
    }

    /// Returns all endpoints of a service, independently of their conditions and nodes. A UDP client may keep any of
    /// these endpoints, even one that new connections do not get, because UDP has no connections that end. For
    /// endpoints that are not among these, kube-proxy clears connection tracking.
    pub fn all_backends(
        &self,
        address: IpAddr,
        protocol: u8,
        port: u16,
    ) -> BTreeSet<(IpAddr, u16)> {
        let Some((key, _, port)) = self.owner(address, protocol, port) else {
            return BTreeSet::new();
        };
        if self.has_unknown_slice(&key.namespace) {
            return BTreeSet::new();
        }
        let endpoints = self.endpoints(key, port, address.is_ipv4());
        endpoints.iter().map(|it| (it.of_slice.address, it.port)).collect()
    }

    /// Returns the service that has an address, protocol and port.
    fn owner(
        &self,
        address: IpAddr,
        protocol: u8,
        port: u16,
    ) -> Option<(&'a ObjectKey, &'a Service, &'a ServicePort)> {
        if self.is_of_pods_or_nodes(address) {
            return None;
        }
        // A service that got the address from the cluster or a load balancer comes before a service that only names it
        // in `externalIPs`.
        let (given, named): (Vec<_>, Vec<_>) =
            self.services_at(address).into_iter().partition(|(_, it)| is_given(it, address));
        let services = given.into_iter().chain(named);
        let mut owners =
            services.filter_map(|(key, it)| Some((key, it, port_of(it, protocol, port)?)));
        owners.next()
    }

    /// Returns whether pods or a node may have the address. If so, no service has it.
    fn is_of_pods_or_nodes(&self, address: IpAddr) -> bool {
        let source = BlockSource::assumed(self.objects);
        let mut objects = self.objects.values().filter_map(|stored| stored.state.valid());
        let is_of_object = |object: &Object| match object {
            Object::IpPool(pool) => pool.is_for_cluster() && in_net(pool.cidr, address),
            Object::Node(node) => node_addresses(node, source).contains(&address),
            _ => false,
        };
        objects.any(is_of_object)
            || blocks::of_nodes(self.objects, source).values().any(|node| node.contain(address))
    }

    /// Returns the services that are translated at an address, the oldest first. A service without `creationTimestamp`
    /// counts as younger than all others. Among services of the same age, the first by namespace and name counts as
    /// older.
    fn services_at(&self, address: IpAddr) -> Vec<(&'a ObjectKey, &'a Service)> {
        let mut found = Vec::new();
        for (key, stored) in self.objects {
            if let Some(Object::Service(service)) = stored.state.valid()
                && is_translated(service, address.is_ipv4())
                && (is_given(service, address) || self.is_external_ip(service, address))
            {
                found.push((key, &**service));
            }
        }
        found.sort_by_key(|(key, it)| (it.created.is_none(), it.created, *key));
        found
    }

    /// Returns whether an address is one of a service's `externalIPs` and takes effect. In kube-proxy, all
    /// `externalIPs` take effect.
    fn is_external_ip(&self, service: &Service, address: IpAddr) -> bool {
        service.external_ips.contains(&address)
            && self.external.iter().any(|it| in_net(*it, address))
    }

    /// Returns whether a slice of the namespace is invalid. Such a slice may belong to any service.
    fn has_unknown_slice(&self, namespace: &str) -> bool {
        self.objects.iter().any(|(key, stored)| {
            key.kind == Kind::EndpointSlice
                && key.namespace == namespace
                && stored.state.valid().is_none()
        })
    }

    /// Returns the endpoints of a service's port in one family, independently of their conditions. The endpoints of a
    /// port are those of slices with a port of the same name and protocol.
    fn endpoints(&self, service: &ObjectKey, port: &ServicePort, ipv4: bool) -> Vec<Endpoint<'a>> {
        let mut found = Vec::new();
        for (key, stored) in self.objects {
            let Some(Object::EndpointSlice(slice)) = stored.state.valid() else { continue };
            if key.namespace != service.namespace || slice.service.as_ref() != Some(&service.name) {
                continue;
            }
            for of_slice in &slice.endpoints {
                if of_slice.address.is_ipv4() != ipv4 || !may_be_sent_to(of_slice.address) {
                    continue;
                }
                let same = slice.ports.iter().filter(|it| {
                    it.name == port.name
                        && protocol_number(Some(it.protocol)) == protocol_number(port.protocol)
                });
                found.extend(same.map(|it| Endpoint { of_slice, port: it.port }));
            }
        }
        found
    }

    /// Returns those of the available endpoints that are meant for clients on `node`, by the nodes or else by the zones
    /// in their hints. The nodes (or zones) are used only if every endpoint names some, and at least one endpoint names
    /// this node (or its zone).
    fn hinted(&self, node: &str, endpoints: Vec<Endpoint<'a>>) -> Vec<Endpoint<'a>> {
        // The hints of terminating endpoints are not kept up to date.
        if endpoints.iter().any(|it| !it.of_slice.ready) {
            return endpoints;
        }
        let nodes = |it: &Endpoint<'a>| names(it, |hints| &hints.nodes);
        let zones = |it: &Endpoint<'a>| names(it, |hints| &hints.zones);
        if let Some(meant) = meant_for(&endpoints, nodes, node) {
            return meant;
        }
        let by_zone = self.zone(node).and_then(|zone| meant_for(&endpoints, zones, zone));
        by_zone.unwrap_or(endpoints)
    }

    /// Returns the zone of a node, if its object contains it.
    fn zone(&self, node: &str) -> Option<&'a str> {
        let stored = self.objects.get(&ObjectKey::new(Kind::Node, "", node))?;
        let Object::Node(node) = stored.state.valid()? else { return None };
        node.labels.get(ZONE).map(String::as_str)
    }
}

/// Returns whether nodes translate a service's addresses of one family. kube-proxy requires a cluster IP of the family,
/// even for a load balancer's address.
fn is_translated(service: &Service, ipv4: bool) -> bool {
    service.service_type != Some(ServiceType::ExternalName)
        && !service.headless
        && !service.labels.contains_key(OF_ANOTHER_PROXY)
        && !service.labels.contains_key(HEADLESS)
        && service.cluster_ips.iter().any(|it| it.is_ipv4() == ipv4)
}

/// Returns whether the cluster or a load balancer has assigned an address to a service.
fn is_given(service: &Service, address: IpAddr) -> bool {
    let is_balanced = service.service_type == Some(ServiceType::LoadBalancer);
    service.cluster_ips.contains(&address)
        || is_balanced && service.load_balancer_vips.contains(&address)
}

fn port_of(service: &Service, protocol: u8, port: u16) -> Option<&ServicePort> {
    let same = |it: &&ServicePort| it.port == port && protocol_number(it.protocol) == protocol;
    service.ports.iter().find(same)
}

/// Returns whether the address of an endpoint can be the address of a single host. With other addresses, authors of
/// slices could reach the node itself or hosts on its link. Routers do not forward packets to such addresses (RFC 1122,
/// section 3.2.1.3; RFC 1812, section 5.3.7).
fn may_be_sent_to(address: IpAddr) -> bool {
    let is_special = match address {
        IpAddr::V4(it) => it.is_link_local() || it.octets()[0] == 0 || it.octets()[0] >= 240,
        IpAddr::V6(it) => it.is_unicast_link_local() || it.is_unspecified(),
    };
    !is_special && !address.is_loopback() && !address.is_multicast()
}

/// Returns the names in an endpoint's hints of one type. Without hints there are none.
fn names<'a>(endpoint: &Endpoint<'a>, of: fn(&Hints) -> &[Box<str>]) -> &'a [Box<str>] {
    endpoint.of_slice.hints.as_deref().map_or(&[], of)
}

/// Returns the endpoints whose hints name the client's node (or zone). Returns `None` if these hints are not used: some
/// endpoint names no node (or zone) at all, or no endpoint names the node (or zone) of the client.
fn meant_for<'a>(
    endpoints: &[Endpoint<'a>],
    names: impl Fn(&Endpoint<'a>) -> &'a [Box<str>],
    client: &str,
) -> Option<Vec<Endpoint<'a>>> {
    if endpoints.iter().any(|it| names(it).is_empty()) {
        return None;
    }
    let is_meant = |it: &Endpoint<'a>| names(it).iter().any(|name| **name == *client);
    let meant: Vec<_> = endpoints.iter().copied().filter(is_meant).collect();
    (!meant.is_empty()).then_some(meant)
}

/// Returns the endpoints that new connections may get. These are the ready ones. If none is ready, they are the
/// terminating ones that still serve (KEP-1669).
fn available(endpoints: Vec<Endpoint<'_>>) -> Vec<Endpoint<'_>> {
    let ready: Vec<_> = endpoints.iter().copied().filter(|it| it.of_slice.ready).collect();
    if !ready.is_empty() {
        return ready;
    }
    let last = |it: &Endpoint<'_>| it.of_slice.serving && it.of_slice.terminating;
    endpoints.into_iter().filter(last).collect()
}
