//! Services and their endpoints.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::pairs::Pairs;
use super::port::{PortNumber, Protocol};

/// A service. Policy reads its endpoints from `EndpointSlices`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Service {
    /// `metadata.labels` of the service, which are not those of its endpoints.
    pub labels: Pairs,
    /// `spec.selector`: the labels of the pods that are its endpoints. Empty: the endpoints come from elsewhere.
    pub selector: Pairs,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
    /// `spec.clusterIP` and `clusterIPs`.
    pub cluster_ips: BTreeSet<IpAddr>,
    /// The addresses at which clients reach the service (`spec.clusterIPs`, `externalIPs`, `loadBalancer` addresses).
    pub addresses: BTreeSet<IpAddr>,
    /// `spec.externalTrafficPolicy: Local`: packets to the service's node ports and to its addresses other than cluster
    /// IPs go to endpoints of the same node, with the client's own address.
    pub keeps_clients: bool,
    /// `spec.clusterIP: None`: clients reach its endpoints at their own addresses and ports.
    pub headless: bool,
    /// `spec.externalName` if `spec.type` is `ExternalName`: DNS answers with this name, and there are no endpoints.
    pub external_name: Option<String>,
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
    /// `endpoints[].addresses`. As in Calico, an endpoint's conditions do not matter.
    pub addresses: BTreeSet<IpAddr>,
    /// `ports[]`. An entry without a number is left out, as in Calico.
    pub ports: Vec<EndpointPort>,
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
