//! The backends that a new connection to a service may get, by the objects alone.
//!
//! It is the oracle's own reading of "Virtual IPs and Service Proxies" (Kubernetes documentation), KEP-1669 (endpoints
//! that terminate), KEP-2086 (`internalTrafficPolicy`), KEP-2433 and KEP-3015 (hints), and of what kube-proxy does where
//! these are silent. Each question goes through all objects again.
//!
//! The client is a pod or a process of a node; both get the same. Not judged here: clients outside of the cluster,
//! `loadBalancerSourceRanges`, node ports, `externalIPs`, and the addresses of a `ServiceCIDR` that no service has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::addresses::node_addresses;
use super::matching::{in_net, protocol_number};
use manx_objects::contents::Stored;
use manx_objects::object::{
    Kind, Object, ObjectKey, Service, ServicePort, ServiceType, SliceEndpoint,
};

/// The label of a service that another proxy translates, whatever its value is.
const OF_ANOTHER_PROXY: &str = "service.kubernetes.io/service-proxy-name";
/// The label of a service that nobody translates, whatever its value is.
const HEADLESS: &str = "service.kubernetes.io/headless";
/// The label of a node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";
/// `sessionAffinityConfig.clientIP.timeoutSeconds` if absent: three hours.
const AFFINITY_SECONDS: u32 = 10_800;

/// What becomes of a new connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceBackends {
    /// No service has this address and port. The connection is judged by the address itself.
    NotAService,
    /// The client is told that nobody is there.
    Refused,
    /// The client is told nothing: its service has endpoints, and none on this node, where it must be.
    Dropped,
    /// The connection goes to one of these addresses and ports.
    OneOf {
        /// Not empty.
        backends: BTreeSet<(IpAddr, u16)>,
        /// The seconds after its last new connection for which a client keeps its backend, if it does.
        affinity: Option<u32>,
    },
}

/// The services of one cluster.
#[derive(Debug, Clone, Copy)]
pub struct ServiceOracle<'a> {
    objects: &'a BTreeMap<ObjectKey, Stored>,
}

/// An endpoint of a service's port.
#[derive(Debug, Clone, Copy)]
struct Endpoint<'a> {
    of_slice: &'a SliceEndpoint,
    port: u16,
}

impl<'a> ServiceOracle<'a> {
    /// An oracle over all objects of a store.
    pub const fn new(objects: &'a BTreeMap<ObjectKey, Stored>) -> Self {
        Self { objects }
    }

    /// What becomes of a new connection of a client on `node`. A service that is not valid has no known address, so
    /// that none is a service's by it.
    pub fn backends(
        &self,
        node: &str,
        address: IpAddr,
        protocol: u8,
        port: u16,
    ) -> ServiceBackends {
        if self.is_of_pods_or_nodes(address) {
            return ServiceBackends::NotAService;
        }
        let services = self.services_at(address);
        let owner = services
            .iter()
            .find_map(|(key, service)| Some((*key, *service, port_of(service, protocol, port)?)));
        let Some((key, service, port)) = owner else {
            // A cluster IP is nobody else's. A load balancer may serve ports of its own.
            let is_cluster_ip = services.iter().any(|(_, it)| it.cluster_ips.contains(&address));
            return match is_cluster_ip {
                true => ServiceBackends::Refused,
                false => ServiceBackends::NotAService,
            };
        };
        if self.has_unknown_slice(&key.namespace) {
            return ServiceBackends::Refused;
        }
        let endpoints = self.endpoints(key, port, address.is_ipv4());
        // The policy is about cluster IPs. At a load balancer's address a client in the cluster gets any endpoint.
        let local = service.internal_local && service.cluster_ips.contains(&address);
        let chosen = match local {
            true => {
                let here = |it: &Endpoint<'_>| it.of_slice.node.as_deref() == Some(node);
                available(endpoints.iter().copied().filter(here).collect())
            }
            false => self.hinted(node, available(endpoints.clone())),
        };
        if chosen.is_empty() {
            return match local && !available(endpoints).is_empty() {
                true => ServiceBackends::Dropped,
                false => ServiceBackends::Refused,
            };
        }
        let backends = chosen.iter().map(|it| (it.of_slice.address, it.port)).collect();
        let affinity = service.client_affinity.map(|it| it.timeout.unwrap_or(AFFINITY_SECONDS));
        ServiceBackends::OneOf { backends, affinity }
    }

    /// Whether pods or a node may have the address. No service takes it from them.
    fn is_of_pods_or_nodes(&self, address: IpAddr) -> bool {
        self.objects.values().filter_map(|stored| stored.state.valid()).any(|object| match object {
            Object::IpPool(pool) => in_net(pool.cidr, address),
            Object::Node(node) => {
                node.pod_cidrs.iter().any(|block| in_net(*block, address))
                    || node_addresses(node).contains(&address)
            }
            _ => false,
        })
    }

    /// The services that are translated at an address, the oldest first. One without `creationTimestamp` counts as
    /// younger than all others; of one age the first by namespace and name counts as older.
    fn services_at(&self, address: IpAddr) -> Vec<(&'a ObjectKey, &'a Service)> {
        let mut found = Vec::new();
        for (key, stored) in self.objects {
            if let Some(Object::Service(service)) = stored.state.valid()
                && is_translated(service, address.is_ipv4())
                && has_address(service, address)
            {
                found.push((key, &**service));
            }
        }
        found.sort_by_key(|(key, it)| (it.created.is_none(), it.created, *key));
        found
    }

    /// Whether a slice of the namespace is not valid: it may be any service's.
    fn has_unknown_slice(&self, namespace: &str) -> bool {
        self.objects.iter().any(|(key, stored)| {
            key.kind == Kind::EndpointSlice
                && key.namespace == namespace
                && stored.state.valid().is_none()
        })
    }

    /// The endpoints of a service's port, of one family, whatever their conditions. A port has the endpoints of the
    /// slices' ports with its name and protocol.
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

    /// Those of the available endpoints that are meant for clients on `node`: by the nodes that they name, or else by the
    /// zones. Hints count only if every endpoint that is ready has one, and one of them is for this node (this zone).
    fn hinted(&self, node: &str, endpoints: Vec<Endpoint<'a>>) -> Vec<Endpoint<'a>> {
        // Nobody keeps the hints of endpoints that terminate up to date.
        if endpoints.iter().any(|it| !it.of_slice.ready) {
            return endpoints;
        }
        let nodes = |it: &Endpoint<'a>| it.of_slice.hints.as_ref().map(|hints| &hints.nodes);
        let zones = |it: &Endpoint<'a>| it.of_slice.hints.as_ref().map(|hints| &hints.zones);
        let zone = self.zone(node);
        let meant = |names: Option<&'a Box<[Box<str>]>>, wanted: &str| {
            names.is_some_and(|names| names.iter().any(|name| **name == *wanted))
        };
        if endpoints.iter().all(|it| nodes(it).is_some_and(|names| !names.is_empty()))
            && endpoints.iter().any(|it| meant(nodes(it), node))
        {
            return endpoints.into_iter().filter(|it| meant(nodes(it), node)).collect();
        }
        if let Some(zone) = zone
            && endpoints.iter().all(|it| zones(it).is_some_and(|names| !names.is_empty()))
            && endpoints.iter().any(|it| meant(zones(it), zone))
        {
            return endpoints.into_iter().filter(|it| meant(zones(it), zone)).collect();
        }
        endpoints
    }

    /// The zone of a node, if its object says so.
    fn zone(&self, node: &str) -> Option<&'a str> {
        let stored = self.objects.get(&ObjectKey::new(Kind::Node, "", node))?;
        let Object::Node(node) = stored.state.valid()? else { return None };
        node.labels.get(ZONE).map(String::as_str)
    }
}

/// Whether nodes translate a service's addresses of one family. kube-proxy needs a cluster IP of the family, also for a
/// load balancer's address.
fn is_translated(service: &Service, ipv4: bool) -> bool {
    service.service_type != Some(ServiceType::ExternalName)
        && !service.headless
        && !service.labels.contains_key(OF_ANOTHER_PROXY)
        && !service.labels.contains_key(HEADLESS)
        && service.cluster_ips.iter().any(|it| it.is_ipv4() == ipv4)
}

/// Whether clients reach a service at an address that nodes translate.
fn has_address(service: &Service, address: IpAddr) -> bool {
    let is_balanced = service.service_type == Some(ServiceType::LoadBalancer);
    service.cluster_ips.contains(&address)
        || is_balanced && service.load_balancer_vips.contains(&address)
}

fn port_of(service: &Service, protocol: u8, port: u16) -> Option<&ServicePort> {
    let same = |it: &&ServicePort| it.port == port && protocol_number(it.protocol) == protocol;
    service.ports.iter().find(same)
}

/// Whether an address of an endpoint is somebody's. One that means the node itself, or no single host, is not: who
/// writes slices could reach by it what is not a pod's.
const fn may_be_sent_to(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(it) => it.is_link_local(),
        IpAddr::V6(it) => it.is_unicast_link_local(),
    };
    !is_link_local && !address.is_loopback() && !address.is_multicast() && !address.is_unspecified()
}

/// The endpoints that new connections may get: those that are ready, or, if there are none, those that terminate and
/// still serve (KEP-1669).
fn available(endpoints: Vec<Endpoint<'_>>) -> Vec<Endpoint<'_>> {
    let ready: Vec<_> = endpoints.iter().copied().filter(|it| it.of_slice.ready).collect();
    if !ready.is_empty() {
        return ready;
    }
    let last = |it: &Endpoint<'_>| it.of_slice.serving && it.of_slice.terminating;
    endpoints.into_iter().filter(last).collect()
}
