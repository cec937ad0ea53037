//! The ways in which a node translates addresses, and the addresses that these ways need.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::IpNet;

use super::links::net;

/// A way in which a node translates addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A pod sends to a Service's cluster IP. Its backend is a pod.
    ClusterIp,
    /// A host outside sends to a Service's node port. Its backend is a pod.
    NodePort,
    /// A pod sends to a host outside, which sees the address of the node.
    Out,
}

/// The address of the node that translates.
pub const NODE: Ipv4Addr = Ipv4Addr::new(172, 18, 0, 2);
/// The address of a host on the node's link that is not a node. The host has no route to pods and to cluster IPs.
pub const OUTSIDE: Ipv4Addr = Ipv4Addr::new(172, 18, 0, 9);
/// The range of cluster IPs.
pub const SERVICE_RANGE: &str = "10.96.0.0/16";
/// The Service that gets the traffic.
pub const SERVICE: &str = "web";
pub const CLUSTER_IP: Ipv4Addr = Ipv4Addr::new(10, 96, 255, 1);
pub const SERVICE_PORT: u16 = 80;
pub const NODE_PORT: u16 = 30_080;

/// The number of ports of the host outside to which pods open connections. Several are needed: for one destination, a
/// node has only some thousand source ports, and the port of a closed connection cannot be used again for a while.
pub const OUT_PORTS: u16 = 64;

/// The number of Services other than [`SERVICE`]. Each has one port.
pub const OTHER_SERVICES: u16 = 1000;
/// The number of backends of each of these services.
pub const OTHER_BACKENDS: u8 = 3;

impl Way {
    /// The address and port at which the Service is reached in this way. `None` for [`Way::Out`], which uses no
    /// Service.
    pub const fn service(self) -> Option<SocketAddr> {
        match self {
            Self::ClusterIp => Some(SocketAddr::new(IpAddr::V4(CLUSTER_IP), SERVICE_PORT)),
            Self::NodePort => Some(SocketAddr::new(IpAddr::V4(NODE), NODE_PORT)),
            Self::Out => None,
        }
    }

    /// The number of ports, starting with [`PORT`](super::constants::PORT), that policies and filters allow.
    pub const fn ports(self) -> u16 {
        match self {
            Self::ClusterIp | Self::NodePort => 1,
            Self::Out => OUT_PORTS,
        }
    }
}

/// An address on the node's link.
pub fn on_link(address: Ipv4Addr) -> IpNet {
    let [a, b, c, d] = address.octets();
    net(a, b, c, d, 24)
}

/// The cluster IP of one of the [other services](OTHER_SERVICES).
pub const fn other_service(index: u16) -> Ipv4Addr {
    let [high, low] = index.to_be_bytes();
    Ipv4Addr::new(10, 96, high, low)
}
