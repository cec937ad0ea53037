//! The terms of rules about an address: predicates, which are true or false of it, and port sets.

use std::fmt;

use ipnet::IpNet;

use crate::model::{Family, ObjectName, Protocol};
use crate::selector::Selector;

/// Every protocol and port that a port set has at any address. Each has a predicate that is true of the addresses at
/// which the port set has it.
pub(crate) type PossiblePorts = Box<[(Protocol, u16, PredicateId)]>;

/// A condition that is true or false of an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Predicate {
    /// The address is of this family.
    Family(Family),
    /// Some member that has the address matches.
    Members(Selector),
    /// The address is in this net, which has no host bits.
    Net(IpNet),
    /// The address is an endpoint of the service.
    Service(ObjectName),
    /// Some member that has the address matches the selector and gives this name to this port number.
    NamesPort {
        /// The selector of the members. `None` means all members.
        selector: Option<Selector>,
        /// The name.
        name: String,
        /// The protocol.
        protocol: Protocol,
        /// The number.
        port: u16,
    },
    /// The address is an endpoint of the service, and this is a port of that endpoint.
    ServicePort {
        /// The service.
        service: ObjectName,
        /// The protocol.
        protocol: Protocol,
        /// The number.
        port: u16,
    },
}

impl fmt::Display for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Family(Family::V4) => f.write_str("IPv4"),
            Self::Family(Family::V6) => f.write_str("IPv6"),
            Self::Members(selector) => write!(f, "members {selector}"),
            Self::Net(net) => write!(f, "in {net}"),
            Self::Service(service) => write!(f, "endpoints of service {service}"),
            Self::NamesPort { selector: None, name, protocol, port } => {
                write!(f, "members whose {name} is {protocol} {port}")
            }
            Self::NamesPort { selector: Some(selector), name, protocol, port } => {
                write!(f, "members {selector} whose {name} is {protocol} {port}")
            }
            Self::ServicePort { service, protocol, port } => {
                write!(f, "endpoints of service {service} with {protocol} {port}")
            }
        }
    }
}

/// The index of a predicate. The two families have the first indexes.
pub type PredicateId = u32;

/// A term about an address whose result is a set of protocols and ports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortSet {
    /// The port numbers to which the matching members at the address give this name.
    Named {
        /// The selector of the members. `None` means all members.
        selector: Option<Selector>,
        /// The name.
        name: String,
    },
    /// The ports of the address as an endpoint of this service.
    Service(ObjectName),
}

/// The index of a port set.
pub type PortSetId = u32;
