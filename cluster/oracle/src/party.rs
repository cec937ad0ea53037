//! The ends of connections.

use std::fmt;
use std::net::IpAddr;

/// One end of a connection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Party {
    /// A pod, with one of its addresses.
    Pod {
        namespace: String,
        name: String,
        /// The address of the pod that the connection uses.
        address: IpAddr,
    },
    /// A node, with one of its addresses.
    Node {
        name: String,
        /// The address of the node that the connection uses.
        address: IpAddr,
    },
    /// An address that belongs to neither a pod nor a node.
    Address(IpAddr),
}

impl Party {
    /// Returns the address in the packets.
    pub fn address(&self) -> IpAddr {
        match self {
            Self::Pod { address, .. } | Self::Node { address, .. } | Self::Address(address) => {
                *address
            }
        }
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod { namespace, name, address } => write!(f, "{namespace}/{name} ({address})"),
            Self::Node { name, address } => write!(f, "node {name} ({address})"),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// Returns whether both ends are the same pod, perhaps with different addresses.
pub(super) fn is_same_pod(from: &Party, to: &Party) -> bool {
    match (from, to) {
        (
            Party::Pod { namespace, name, .. },
            Party::Pod { namespace: other_namespace, name: other, .. },
        ) => (namespace, name) == (other_namespace, other),
        _ => false,
    }
}
