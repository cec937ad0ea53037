//! What the table of services leaves out of a valid Service, with the reason.

use std::fmt;
use std::net::IpAddr;

use manx_dataplane::services::FrontendKey;
use manx_policy_compiler::model::{ObjectName, Protocol};

/// A part of a Service that clients do not reach.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Omission {
    /// The address is a node's, or one that pods may have.
    Address(IpAddr),
    /// An older Service has the same address, protocol and port.
    Taken {
        /// What both have.
        key: FrontendKey,
        /// The older one.
        by: ObjectName,
    },
    /// An endpoint has an address to which no packet may be sent.
    Backend(IpAddr),
    /// The node port is none that nodes leave to services.
    NodePort(u16),
    /// A slice of the Service's namespace is not valid, so its endpoints are not known.
    Endpoints,
}

impl fmt::Display for Omission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(
                f,
                "its address {address} is a node's or lies in a pool of pods, so it is not translated: give it one of the \
                 service range"
            ),
            Self::Taken { key: FrontendKey { address, protocol, port }, by } => write!(
                f,
                "Service {by}, which is older, has {address} with {} port {port}, too, and gets the connections: give one \
                 of them another address or port",
                Protocol::from_number(*protocol).map_or("any", Protocol::name)
            ),
            Self::Backend(address) => write!(
                f,
                "its endpoint {address} gets no connections, because it is loopback, link-local, multicast or reserved: \
                 correct the EndpointSlice"
            ),
            Self::NodePort(port) => write!(
                f,
                "its nodePort {port} is not translated, because it lies outside of the nodes' range for services: expected one \
                 of --node-ports (MANX_NODE_PORTS)"
            ),
            Self::Endpoints => f.write_str(
                "connections to it are refused, because an EndpointSlice of its namespace is not valid and may be its: \
                 correct that one",
            ),
        }
    }
}
