//! Services, their endpoints, and the ranges of their addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::created::Created;
use super::pairs::Pairs;
use super::port::{PortNumber, Protocol};

/// A service. Policy reads its endpoints from `EndpointSlices`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the object")]
pub struct Service {
    /// `metadata.labels` of the service, which are not those of its endpoints.
    pub labels: Pairs,
    /// `metadata.creationTimestamp`.
    pub created: Option<Created>,
    /// `spec.type`; `ClusterIP` if absent.
    pub service_type: Option<ServiceType>,
    /// `spec.selector`: the labels of the pods that are its endpoints. Empty: the endpoints come from elsewhere.
    pub selector: Pairs,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
    /// `spec.clusterIP` and `clusterIPs`.
    pub cluster_ips: BTreeSet<IpAddr>,
    /// The addresses at which clients reach the service (`spec.clusterIPs`, `externalIPs`, `loadBalancer` addresses).
    pub addresses: BTreeSet<IpAddr>,
    /// `spec.externalIPs`. Whoever writes the service names them, and nobody checks that they are the cluster's.
    pub external_ips: BTreeSet<IpAddr>,
    /// `status.loadBalancer.ingress[].ip` of the `ipMode` `VIP`, or without one: nodes translate packets to it. With
    /// the mode `Proxy` the load balancer does.
    pub load_balancer_vips: BTreeSet<IpAddr>,
    /// `status.loadBalancer.ingress[].ip` of the `ipMode` `Proxy`.
    pub load_balancer_proxied: BTreeSet<IpAddr>,
    /// `spec.loadBalancerSourceRanges`: the clients of the load balancer's addresses. Empty: every client.
    pub source_ranges: Vec<IpNet>,
    /// `spec.healthCheckNodePort`: the port at which a load balancer asks a node whether it has an endpoint.
    pub health_check_port: Option<u16>,
    /// `spec.externalTrafficPolicy: Local`: packets to the service's node ports and to its addresses other than cluster
    /// IPs go to endpoints of the same node, with the client's own address.
    pub keeps_clients: bool,
    /// `spec.internalTrafficPolicy: Local`: clients in the cluster get endpoints of their own node only.
    pub internal_local: bool,
    /// The annotation `lb.projectcalico.org/external-traffic-strategy: maglev`: whichever node gets a connection from
    /// outside, it goes to the same endpoint.
    pub maglev: bool,
    /// `spec.sessionAffinity: ClientIP`: a client gets the endpoint that it had before.
    pub client_affinity: Option<ClientAffinity>,
    /// `spec.clusterIP: None`: clients reach its endpoints at their own addresses and ports.
    pub headless: bool,
    /// `spec.externalName` if `spec.type` is `ExternalName`: DNS answers with this name, and there are no endpoints.
    pub external_name: Option<String>,
}

/// `spec.sessionAffinityConfig.clientIP` of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientAffinity {
    /// `timeoutSeconds`, 1-86400: the time after its last new connection for which a client keeps its endpoint. 10800 if
    /// absent.
    pub timeout: Option<u32>,
}

/// `spec.type` of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceType {
    ClusterIp,
    NodePort,
    LoadBalancer,
    ExternalName,
}

/// `networking.k8s.io/v1` `ServiceCIDR`: ranges from which cluster IPs are taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceCidr {
    /// `spec.cidrs`, without host bits.
    pub cidrs: Vec<IpNet>,
}

/// `spec.ports[]` of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    pub name: Option<String>,
    /// `protocol`; TCP if absent.
    pub protocol: Option<Protocol>,
    /// `port`, 1-65535.
    pub port: u16,
    /// `targetPort`: a number without an end, or a name; the same as `port` if absent.
    pub target: Option<PortNumber>,
    /// `nodePort`: the port of each node at which the service's port is also reached.
    pub node_port: Option<u16>,
}

/// `discovery.k8s.io/v1` `EndpointSlice`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSlice {
    /// The label `kubernetes.io/service-name`: the slice's service, in the same namespace.
    pub service: Option<String>,
    /// `endpoints[].addresses`, all of them. Policy uses these; as in Calico, an endpoint's conditions do not matter to
    /// it.
    pub addresses: BTreeSet<IpAddr>,
    /// `endpoints[]`, for translation. Their addresses are of one family.
    pub endpoints: Box<[SliceEndpoint]>,
    /// `ports[]`. An entry without a number is left out, as in Calico.
    pub ports: Vec<EndpointPort>,
}

/// `endpoints[]` of an `EndpointSlice`. A cluster has very many of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceEndpoint {
    /// The first one of `addresses`. All of them lead to the same endpoint, and kube-proxy uses the first one, too.
    pub address: IpAddr,
    /// `conditions.ready`; true if absent.
    pub ready: bool,
    /// `conditions.serving`; as `ready` if absent. It says the same of an endpoint that terminates.
    pub serving: bool,
    /// `conditions.terminating`; false if absent.
    pub terminating: bool,
    /// `nodeName`.
    pub node: Option<Arc<str>>,
    /// `hints`; `None` if they name nothing.
    pub hints: Option<Arc<Hints>>,
}

/// `hints` of an endpoint: the clients for which it is meant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hints {
    /// `forNodes[].name`.
    pub nodes: Box<[Box<str>]>,
    /// `forZones[].name`.
    pub zones: Box<[Box<str>]>,
}

/// `v1` Endpoints, as the cluster copies them if the service of this name has no selector.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Endpoints {
    /// The slices that are made of the subsets. Empty if the Endpoints say that they belong to no service.
    pub slices: Vec<EndpointSlice>,
}

/// `ports[]` of an `EndpointSlice`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointPort {
    /// `name`, the name of the service's port.
    pub name: Option<String>,
    /// `protocol`; TCP if absent.
    pub protocol: Protocol,
    /// `port`, 1-65535.
    pub port: u16,
}
