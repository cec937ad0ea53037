//! The parts of a valid Service or pod that the table of services leaves out, with the reasons.

use std::fmt;
use std::net::IpAddr;

use manx_dataplane::services::FrontendKey;
use manx_objects::object::ObjectKey;
use manx_policy_compiler::model::Protocol;

use super::bounds::{
    MOST_BACKENDS, MOST_EXTERNAL_IPS, MOST_HEALTH_CHECKS, MOST_HOST_PORTS, MOST_OF_NAMESPACE,
    MOST_PORTS, MOST_SERVICES,
};

/// A part of a Service, or of a pod with host ports, that clients do not reach.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Omission {
    /// The address is an address of a node, or an address that pods may have.
    Address(IpAddr),
    /// The settings do not allow one of its `externalIPs`.
    ExternalIp(IpAddr),
    /// The Service has more of the allowed `externalIPs` than nodes translate.
    TooManyExternalIps,
    /// An older object has the same address, protocol and port. A Service comes before a pod.
    Taken {
        /// The common address, protocol and port.
        key: FrontendKey,
        /// The other object.
        by: ObjectKey,
    },
    /// An endpoint has an address to which no packet may be sent.
    Backend(IpAddr),
    /// The node port is outside the range for services.
    NodePort(u16),
    /// The port for health checks is outside the range for services.
    HealthCheckPort(u16),
    /// An older Service has the same port for health checks, or any Service has it as a node port.
    HealthCheckTaken {
        /// The port.
        port: u16,
        /// The other Service.
        by: ObjectKey,
    },
    /// Older Services already have the maximum number of ports for health checks.
    TooManyHealthChecks,
    /// A slice of the Service's namespace is invalid, so the Service's endpoints are not known.
    Endpoints,
    /// Older Services of the namespace already reach the maximum number of Services or of backends.
    Namespace,
    /// An annotation requests that all nodes choose the same endpoint, but a traffic policy makes each node use its own
    /// endpoints.
    MaglevLocal,
    /// The Service has more ports than nodes translate.
    TooManyPorts,
    /// The Service has more endpoints, for all its ports together, than nodes accept.
    TooManyBackends,
    /// A pod's `hostIP` is not an address of the node at which such ports are served.
    HostAddress {
        /// The `hostIP`.
        address: IpAddr,
        /// The `hostPort`.
        port: u16,
    },
    /// A pod's `hostPort` cannot be expressed in a routing rule.
    HostPort(u16),
    /// A pod's `hostPort` is reserved for a program of nodes.
    PortOfNode(u16),
    /// A process of the node uses a pod's `hostPort`, or used it when the pod was added.
    HostPortInUse(FrontendKey),
    /// Older pods of the node already have the maximum number of host ports.
    TooManyHostPorts,
}

impl Omission {
    /// Returns whether the omission concerns only a port for health checks, not an address that clients reach.
    pub fn is_of_health_check(&self) -> bool {
        matches!(
            self,
            Self::HealthCheckPort(_) | Self::HealthCheckTaken { .. } | Self::TooManyHealthChecks
        )
    }
}

impl fmt::Display for Omission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(
                f,
                "its address {address} is a node's or lies in a pool of pods, so it is not translated: give it one of the \
                 service range"
            ),
            Self::ExternalIp(address) => write!(
                f,
                "its external IP {address} is not translated, because it lies in no net that the cluster leaves to \
                 externalIPs: expected one of --external-ips (MANX_EXTERNAL_IPS), or none"
            ),
            Self::TooManyExternalIps => Bound::ExternalIps.fmt(f),
            Self::Taken { key, by } => write_taken(f, key, by),
            Self::Backend(address) => write!(
                f,
                "its endpoint {address} gets no connections, because it is loopback, link-local, multicast or reserved: \
                 correct the EndpointSlice"
            ),
            Self::NodePort(port) => write_out_of_range(f, ("nodePort", *port), "translated"),
            Self::HealthCheckPort(port) => {
                write_out_of_range(f, ("healthCheckNodePort", *port), "served")
            }
            Self::HealthCheckTaken { port, by } => write!(
                f,
                "its healthCheckNodePort {port} is a port of {by}, which comes first, so it is not served: give one of them another"
            ),
            Self::TooManyHealthChecks => Bound::HealthChecks.fmt(f),
            Self::Namespace => Bound::OfNamespace.fmt(f),
            Self::MaglevLocal => f.write_str(
                "its annotation lb.projectcalico.org/external-traffic-strategy has no effect, because externalTrafficPolicy \
                 Local has each node choose among its own endpoints: expected externalTrafficPolicy Cluster",
            ),
            Self::TooManyPorts => Bound::Ports.fmt(f),
            Self::TooManyBackends => Bound::Backends.fmt(f),
            Self::HostAddress { address, port } => write!(
                f,
                "its hostPort {port} leads nowhere at {address}, its hostIP: expected none, 127.0.0.1, or the node's first \
                 address of a family (InternalIP), if its kernel has it"
            ),
            Self::HostPort(port) => write!(
                f,
                "its hostPort {port} leads nowhere, because no routing rule can name that port: expected one from 1 to 65534"
            ),
            Self::PortOfNode(port) => write!(
                f,
                "its hostPort {port} leads nowhere, because that port is for a program of nodes (SSH, BGP, etcd, the control plane, \
                 DHCP, VXLAN): choose another"
            ),
            Self::HostPortInUse(key) => write_in_use(f, key),
            Self::TooManyHostPorts => Bound::HostPorts.fmt(f),
            Self::Endpoints => f.write_str(
                "connections to it are refused, because an EndpointSlice of its namespace is not valid and may be its: \
                 correct that one",
            ),
        }
    }
}

/// Writes that an older object has the same address, protocol and port.
fn write_taken(f: &mut fmt::Formatter<'_>, key: &FrontendKey, by: &ObjectKey) -> fmt::Result {
    let FrontendKey { address, protocol, port } = key;
    write!(
        f,
        "{by}, which comes first, has {address} with {} port {port}, too, and gets the connections: give one \
         of them another address or port",
        protocol_name(*protocol)
    )
}

/// Writes that a port of this field is outside the range for services. `effect` is what nodes would otherwise do with
/// the port.
fn write_out_of_range(
    f: &mut fmt::Formatter<'_>,
    (field, port): (&str, u16),
    effect: &str,
) -> fmt::Result {
    write!(
        f,
        "its {field} {port} is not {effect}, because it lies outside of the nodes' range for services: expected one \
         of --node-ports (MANX_NODE_PORTS)"
    )
}

/// Writes that a process of the node uses a pod's `hostPort`.
fn write_in_use(f: &mut fmt::Formatter<'_>, key: &FrontendKey) -> fmt::Result {
    let FrontendKey { address, protocol, port } = key;
    write!(
        f,
        "its hostPort {port} ({}) leads nowhere at {address}, because a process of the node listens there or is connected \
         from there, or did when the pod came: choose another, or end that process and make the pod anew",
        protocol_name(*protocol)
    )
}

fn protocol_name(number: u8) -> &'static str {
    Protocol::from_number(number).map_or("any", Protocol::name)
}

/// A bound that a Service, its namespace or the host ports of a node exceed.
#[derive(Clone, Copy)]
enum Bound {
    ExternalIps,
    HealthChecks,
    OfNamespace,
    Ports,
    Backends,
    HostPorts,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ExternalIps => write!(
                f,
                "only the first {MOST_EXTERNAL_IPS} of its externalIPs are translated: make several Services of it"
            ),
            Self::HealthChecks => write!(
                f,
                "its healthCheckNodePort is not served, because Services that came before it have {MOST_HEALTH_CHECKS}, which is as \
                 many as Manx serves on a node: load balancers find no node for it, unless it has externalTrafficPolicy Cluster"
            ),
            Self::OfNamespace => write!(
                f,
                "it is not translated, because the first Services of its namespace are {MOST_SERVICES}, or have {MOST_OF_NAMESPACE} \
                 endpoints (those of each port), which is as many as Manx takes of a namespace: divide it"
            ),
            Self::Ports => write!(
                f,
                "only its first {MOST_PORTS} ports are translated: make several Services of it"
            ),
            Self::Backends => write!(
                f,
                "connections to some of its ports are refused, because those of all its ports together have more than \
                 {MOST_BACKENDS} endpoints: make several Services of it"
            ),
            Self::HostPorts => write!(
                f,
                "one or more of its host ports lead nowhere, because pods that came before it have {MOST_HOST_PORTS}, which is \
                 as many as Manx gives on a node: use a Service with a nodePort"
            ),
        }
    }
}
