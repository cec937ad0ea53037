//! Compiles one Service or pod to frontends, and records what is left out.
//!
//! The result depends only on the object and on the inputs of the [`Compiler`]; no state is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use manx_dataplane::services::{Clients, Frontend, FrontendKey};
use manx_objects::object::{EndpointSlice, Object, ObjectKey, Pod, Protocol, Service, ServicePort};
use manx_policy_compiler::model::ObjectName;

use super::NodePorts;
use super::health_checks::LocalEndpoints;
use crate::services::addresses::{
    AddressKind, Opening, Untranslated, addresses, left_alone, openings,
};
use crate::services::backends::{Candidate, Here, TrafficPolicy, all, can_be_backend, select};
use crate::services::bounds::{ADDRESSES_OF_NODE, BACKENDS_OF_FRONTEND, MOST_BACKENDS, MOST_PORTS};
use crate::services::host_ports;
use crate::services::numbers;
use crate::services::omission::Omission;
use crate::services::rank::Rank;
use crate::services::shares::Shares;
use crate::services::slices::Slices;

/// The default seconds of session affinity (Kubernetes API, `ClientIPConfig`).
const AFFINITY: u32 = 10_800;

/// The inputs of a compilation besides the object itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Compiler<'a> {
    pub(super) here: &'a Here,
    pub(super) node_ports: &'a NodePorts,
    /// The nets in which an address of `externalIPs` takes effect.
    pub(super) external: &'a [IpNet],
    /// The nets of cluster IPs that routers outside the cluster send to any node.
    pub(super) announced_cluster_ips: &'a [IpNet],
    pub(super) slices: &'a Slices,
    pub(super) shares: &'a Shares,
}

/// The compiled form of a Service or a pod.
#[derive(Debug)]
pub(super) struct Compiled {
    pub(super) rank: Arc<Rank>,
    /// The addresses of a Service that nodes translate, in order.
    pub(super) addresses: Box<[Own]>,
    /// The port on which load balancers ask about the Service, and the answer.
    pub(super) health_check: Option<(u16, LocalEndpoints)>,
    /// The frontends. The frontends of a pod are not used until its ports are granted.
    pub(super) frontends: BTreeMap<FrontendKey, Arc<Frontend>>,
    /// The parts that are not translated, with the reasons.
    pub(super) omissions: BTreeSet<Omission>,
}

/// An address of a Service that nodes translate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Own {
    pub(super) address: IpAddr,
    /// Whether the address may be a service's address.
    pub(super) is_admitted: bool,
    pub(super) is_external_ip: bool,
}

impl Compiled {
    fn new(rank: Arc<Rank>) -> Self {
        Self {
            rank,
            addresses: Box::default(),
            health_check: None,
            frontends: BTreeMap::new(),
            omissions: BTreeSet::new(),
        }
    }
}

/// An address of a Service, with its kind, its policy, and whether it may be a service's address.
type Reached = (IpAddr, (AddressKind, TrafficPolicy), bool);

/// The properties by which frontends of a port are equal: at these addresses of one family (`is_v4`), the same clients
/// get the same endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FrontendClass {
    is_v4: bool,
    policy: TrafficPolicy,
    has_source_ranges: bool,
    takes_visitors: bool,
}

impl FrontendClass {
    /// `announced` contains the nets of cluster IPs that routers outside the cluster send to any node.
    fn new(service: &Service, opening: &Opening, announced: &[IpNet]) -> Self {
        let is_announced = || announced.iter().any(|net| net.contains(&opening.address));
        Self {
            is_v4: opening.address.is_ipv4(),
            policy: opening.policy,
            has_source_ranges: has_source_ranges(service, opening.kind),
            takes_visitors: match opening.kind {
                AddressKind::ClusterIp => !service.internal_local && is_announced(),
                _ => !service.keeps_clients,
            },
        }
    }
}

impl Compiler<'_> {
    /// Compiles an object to frontends. Returns `None` if nothing of the object is translated. `admits` says whether an
    /// address may be a service's address.
    pub(super) fn compile(
        &self,
        key: &Arc<ObjectKey>,
        object: &Object,
        admits: impl Fn(IpAddr) -> bool,
    ) -> Option<Compiled> {
        match object {
            Object::Service(service) if left_alone(service).is_none() => {
                let name = ObjectName::new(&key.namespace, &key.name);
                let mut compiled = Compiled::new(Rank::new(key, service.created));
                if self.shares.leaves_out(&compiled.rank) {
                    compiled.omissions.insert(Omission::Namespace);
                } else {
                    self.compile_service((&name, service), admits, &mut compiled);
                }
                Some(compiled)
            }
            object => {
                let pod = self.host_pod(object)?;
                let mut compiled = Compiled::new(Rank::new(key, pod.created));
                let omissions = &mut compiled.omissions;
                compiled.frontends = host_ports::asked(pod, &self.node_ports.addresses, omissions);
                Some(compiled)
            }
        }
    }

    /// Returns the pod, if the object is a pod of this node that requests host ports.
    pub(super) fn host_pod<'a>(&self, object: &'a Object) -> Option<&'a Pod> {
        let Object::Pod(pod) = object else { return None };
        let is_here = pod.node_name.as_ref() == Some(&self.here.node);
        (self.node_ports.of_pods && is_here && host_ports::has_some(pod)).then_some(pod)
    }

    /// Returns how much of its namespace's share a Service requests, in backends. Each frontend counts as the number of
    /// backends that take the same memory. The result is at most the number of backends that one Service may have. The
    /// result is the same on all nodes.
    pub(super) fn asked(&self, name: &ObjectName, service: &Service) -> usize {
        let ports = translated_ports(service);
        let slices = self.slices.of_ports(name, ports);
        let backends: usize = slices.iter().flatten().map(|(it, _)| it.endpoints.len()).sum();
        let reached = addresses(service, self.external).values().filter(|it| it.is_ok()).count();
        let node_ports = ports.iter().filter(|it| it.node_port.is_some()).count();
        let frontends = ports.len() * reached + node_ports * ADDRESSES_OF_NODE;
        (backends + frontends * BACKENDS_OF_FRONTEND).min(MOST_BACKENDS)
    }

    fn compile_service(
        &self,
        (name, service): (&ObjectName, &Service),
        admits: impl Fn(IpAddr) -> bool,
        compiled: &mut Compiled,
    ) {
        let Compiled { health_check, omissions, .. } = compiled;
        *health_check = self.compile_health_check((name, service), omissions);
        let reached = self.reached_addresses(service, admits, omissions);
        let ranges = Clients::of(&service.source_ranges);
        let ports = translated_ports(service);
        if ports.len() < service.ports.len() {
            omissions.insert(Omission::TooManyPorts);
        }
        let mut left = MOST_BACKENDS;
        for (port, slices) in ports.iter().zip(self.slices.of_ports(name, ports)) {
            let service = (name, service, &ranges);
            self.compile_port(service, (port, &slices), &reached, &mut left, compiled);
        }
        let own = |(address, (kind, _), is_admitted): Reached| Own {
            address,
            is_admitted,
            is_external_ip: kind.is_external_ip(),
        };
        compiled.addresses = reached.into_iter().map(own).collect();
    }

    /// Returns the addresses of a Service that nodes translate, in order.
    fn reached_addresses(
        &self,
        service: &Service,
        admits: impl Fn(IpAddr) -> bool,
        omissions: &mut BTreeSet<Omission>,
    ) -> Vec<Reached> {
        let mut reached = Vec::new();
        for (address, ends) in addresses(service, self.external) {
            match ends {
                Ok(ends) => reached.push((address, ends, admits(address))),
                Err(Untranslated::External) => {
                    omissions.insert(Omission::ExternalIp(address));
                }
                Err(Untranslated::TooManyExternal) => {
                    omissions.insert(Omission::TooManyExternalIps);
                }
                Err(_) => {}
            }
        }
        let is_of_any_node = |(_, (kind, _), _): &Reached| kind.is_of_any_node();
        if service.maglev && service.keeps_clients && reached.iter().any(is_of_any_node) {
            omissions.insert(Omission::MaglevLocal);
        }
        reached
    }

    /// Compiles a port. `slices` are the slices that have this port. `left` is the number of the Service's endpoints
    /// that may still be examined.
    fn compile_port(
        &self,
        (name, service, ranges): (&ObjectName, &Service, &Clients),
        (port, slices): (&ServicePort, &[(&EndpointSlice, u16)]),
        reached: &[Reached],
        left: &mut usize,
        Compiled { frontends, omissions, .. }: &mut Compiled,
    ) {
        let mut made: BTreeMap<FrontendClass, Arc<Frontend>> = BTreeMap::new();
        let of_node = (self.node_ports.range, self.node_ports.of_services());
        for opening in openings((service, port), reached, of_node) {
            let opening = match opening {
                Ok(opening) => opening,
                Err(omission) => {
                    omissions.insert(omission);
                    continue;
                }
            };
            let class = FrontendClass::new(service, &opening, self.announced_cluster_ips);
            let frontend = made.entry(class).or_insert_with(|| {
                let clients = if class.has_source_ranges { ranges.clone() } else { Clients::All };
                let made = self.frontend((name, service), (port, slices), class, left, omissions);
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

    /// Returns the frontend of a Service's port, for every client. `slices` are the slices that have this port. The
    /// frontend has no backends if there are more endpoints than `left`. All endpoints are subtracted from `left`, also
    /// those that no client gets, because each is examined.
    fn frontend(
        &self,
        (name, service): (&ObjectName, &Service),
        (port, slices): (&ServicePort, &[(&EndpointSlice, u16)]),
        FrontendClass { is_v4, policy, takes_visitors, .. }: FrontendClass,
        left: &mut usize,
        omissions: &mut BTreeSet<Omission>,
    ) -> Frontend {
        let without_backends = Frontend {
            id: numbers::of_port(name, port),
            namespace: numbers::of_namespace(&name.namespace),
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
        let has_all = takes_visitors || port.protocol == Some(Protocol::Udp);
        let lists = if has_all { 2 } else { 1 };
        if count > *left {
            omissions.insert(Omission::TooManyBackends);
            return without_backends;
        }
        *left = left.saturating_sub(count * lists);
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
        let (backends, without_backend) = select(&candidates, policy, self.here);
        let all_backends = if has_all { all(&candidates) } else { Box::default() };
        Frontend { backends, all_backends, without_backend, ..without_backends }
    }
}

/// Returns the ports of a Service that are translated.
fn translated_ports(service: &Service) -> &[ServicePort] {
    &service.ports[..service.ports.len().min(MOST_PORTS)]
}

/// Returns whether the addresses of a slice are of this family. All addresses of a slice are of one family.
fn is_of_family(slice: &EndpointSlice, is_v4: bool) -> bool {
    slice.endpoints.first().is_some_and(|it| it.address.is_ipv4() == is_v4)
}

/// Returns whether an address of this kind serves only the clients in `loadBalancerSourceRanges`.
pub(super) fn has_source_ranges(service: &Service, kind: AddressKind) -> bool {
    kind.heeds_source_ranges() && !service.source_ranges.is_empty()
}

/// Returns the seconds for which a client keeps its backend, if the Service has client affinity.
pub(super) fn affinity(service: &Service) -> Option<u32> {
    service.client_affinity.map(|it| it.timeout.unwrap_or(AFFINITY))
}

/// Returns the key of a frontend at an address; `port` stands for the Service's port.
pub(super) fn frontend_key(address: IpAddr, of: &ServicePort, port: u16) -> FrontendKey {
    let protocol = of.protocol.unwrap_or(Protocol::Tcp).number();
    FrontendKey { address: address.into(), protocol, port }
}
