//! A packet at an interface of a node.

use std::net::IpAddr;

use super::direction::Direction;
use super::packet::Packet;
use super::place::Place;

/// A packet that passes an interface of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crossing<'a> {
    /// The node.
    pub node: &'a str,
    /// The interface's name.
    pub interface: &'a str,
    /// The interface's addresses; a host endpoint without an interface name is found by them.
    pub addresses: &'a [IpAddr],
    /// Ingress comes in by the interface, egress goes out.
    pub direction: Direction,
    /// Whether it is neither from nor for a process of the node.
    pub forwarded: bool,
    /// The source address.
    pub source: IpAddr,
    /// The destination address, after destination NAT.
    pub destination: IpAddr,
    /// What the packet shows, after destination NAT.
    pub packet: Packet,
    /// Destination and ports before destination NAT, if they differ.
    pub original: Option<(IpAddr, Packet)>,
}

impl Crossing<'_> {
    /// The places where it is judged, in order.
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
