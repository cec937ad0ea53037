//! A packet at an interface of a node.

use std::net::IpAddr;

use super::direction::Direction;
use super::packet::Packet;
use super::place::Place;

/// A packet that passes an interface of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crossing<'a> {
    pub node: &'a str,
    pub interface: &'a str,
    /// The interface's addresses. They identify a host endpoint that has no interface name.
    pub addresses: &'a [IpAddr],
    /// Ingress packets enter the node by the interface, egress packets leave it.
    pub direction: Direction,
    /// Whether the packet is neither from nor for a process of the node.
    pub forwarded: bool,
    pub source: IpAddr,
    /// The destination address, after destination NAT.
    pub destination: IpAddr,
    /// The packet's protocol and L4 header, after destination NAT.
    pub packet: Packet,
    /// Destination and ports before destination NAT, if they differ.
    pub original: Option<(IpAddr, Packet)>,
}

impl Crossing<'_> {
    /// The places where policy judges it, in order.
    pub(super) fn places(&self) -> [Place; 3] {
        let last = if self.forwarded { Place::Forward } else { Place::Host };
        [Place::Untracked, Place::PreDnat, last]
    }

    /// Destination and ports as policy sees them last.
    pub(super) fn last(&self) -> (IpAddr, Packet) {
        (self.destination, self.packet)
    }

    /// Destination and ports before destination NAT, which comes before egress.
    pub(super) fn first(&self) -> (IpAddr, Packet) {
        match self.original {
            Some(original) if self.direction == Direction::Ingress => original,
            _ => self.last(),
        }
    }
}
