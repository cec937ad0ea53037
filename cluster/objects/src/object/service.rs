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
    /// `metadata.labels` of the service. They are independent of the labels of its endpoints.
    pub labels: Pairs,
    /// `metadata.creationTimestamp`.
    pub created: Option<Created>,
    /// `spec.type`; `ClusterIP` if absent.
    pub service_type: Option<ServiceType>,
    /// `spec.selector`: the labels of the pods that are its endpoints. If it is empty, the endpoints come from
    /// elsewhere.
    pub selector: Pairs,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
    /// `spec.clusterIP` and `clusterIPs`.
    pub cluster_ips: BTreeSet<IpAddr>,
    /// The addresses at which clients reach the service (`spec.clusterIPs`, `externalIPs`, `loadBalancer` addresses).
    pub addresses: BTreeSet<IpAddr>,
    /// `spec.externalIPs`. The author of the service chooses them, and nothing checks that they belong to the cluster.
    pub external_ips: BTreeSet<IpAddr>,
    /// `status.loadBalancer.ingress[].ip` whose `ipMode` is `VIP` or absent: nodes translate packets to these
    /// addresses. If the mode is `Proxy`, the load balancer translates them.
    pub load_balancer_vips: BTreeSet<IpAddr>,
    /// `status.loadBalancer.ingress[].ip` of the `ipMode` `Proxy`.
    pub load_balancer_proxied: BTreeSet<IpAddr>,
    /// `spec.loadBalancerSourceRanges`: the clients that may use the load balancer's addresses. If it is empty, every
    /// client may.
    pub source_ranges: Vec<IpNet>,
    /// `spec.healthCheckNodePort`: the port on which a load balancer asks a node whether the node has an endpoint of
    /// the service.
    pub health_check_port: Option<u16>,
    /// `spec.externalTrafficPolicy: Local`. Packets to the service's node ports, and to its addresses other than
    /// cluster IPs, go to endpoints of the same node and keep the client's address.
    pub keeps_clients: bool,
    /// `spec.internalTrafficPolicy: Local`: clients in the cluster use only endpoints of their own node.
    pub internal_local: bool,
    /// The annotation `lb.projectcalico.org/external-traffic-strategy: maglev`: a connection from outside goes to the
    /// same endpoint, whichever node receives it.
    pub maglev: bool,
    /// `spec.sessionAffinity: ClientIP`: new connections of a client go to the endpoint that it used before.
    pub client_affinity: Option<ClientAffinity>,
    /// `spec.clusterIP: None`: clients reach the endpoints at the endpoints' own addresses and ports.
    pub headless: bool,
    /// `spec.externalName` if `spec.type` is `ExternalName`: DNS answers with this name, and there are no endpoints.
    pub external_name: Option<String>,
}

/// `spec.sessionAffinityConfig.clientIP` of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientAffinity {
    /// `timeoutSeconds`, 1-86400: a client keeps its endpoint for this many seconds after its last new connection.
    /// 10800 if absent.
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
    /// `targetPort`: a single number or a name; the same as `port` if absent.
    pub target: Option<PortNumber>,
    /// `nodePort`: a port of every node that also leads to the service's port.
    pub node_port: Option<u16>,
}

/// `discovery.k8s.io/v1` `EndpointSlice`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSlice {
    /// The label `kubernetes.io/service-name`: the slice's service, in the same namespace.
    pub service: Option<String>,
    /// `endpoints[].addresses`, all of them. Policy uses these; as in Calico, the conditions of an endpoint do not
    /// matter to policy.
    pub addresses: BTreeSet<IpAddr>,
    /// `endpoints[]`, for the translation of services. All addresses are of one family.
    pub endpoints: Box<[SliceEndpoint]>,
    /// `ports[]`. An entry without a number is left out, as in Calico.
    pub ports: Vec<EndpointPort>,
}

/// `endpoints[]` of an `EndpointSlice`. A cluster has very many of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceEndpoint {
    /// The first item of `addresses`. All items lead to the same endpoint. kube-proxy also uses the first one.
    pub address: IpAddr,
    /// `conditions.ready`; true if absent.
    pub ready: bool,
    /// `conditions.serving`; the value of `ready` if absent. It still says whether the endpoint serves while the
    /// endpoint terminates.
    pub serving: bool,
    /// `conditions.terminating`; false if absent.
    pub terminating: bool,
    /// `nodeName`.
    pub node: Option<Arc<str>>,
    /// `hints`; `None` if they name no node and no zone.
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

/// `v1` Endpoints. The cluster copies them to slices if the service of the same name has no selector.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Endpoints {
    /// The slices that result from the subsets. Empty if a label or annotation says that the Endpoints are not a
    /// service's.
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
