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
    /// The interface's addresses. A host endpoint that names no interface is found by these addresses.
    pub addresses: &'a [IpAddr],
    /// Ingress packets enter the node through the interface, and egress packets leave it.
    pub direction: Direction,
    /// Whether the packet comes from another host and goes to another host, not from or to a
    /// process of the node.
    pub forwarded: bool,
    pub source: IpAddr,
    /// The destination address, after destination NAT.
    pub destination: IpAddr,
    /// The packet's protocol and L4 header, after destination NAT.
    pub packet: Packet,
    /// The destination address and the ports before destination NAT, if they differ.
    pub original: Option<(IpAddr, Packet)>,
}

impl Crossing<'_> {
    /// Returns the places where policy judges the packet, in order.
    pub(super) fn places(&self) -> [Place; 3] {
        let last = if self.forwarded { Place::Forward } else { Place::Host };
        [Place::Untracked, Place::PreDnat, last]
    }

    /// Returns the destination address and the ports as policy sees them at the last place.
    pub(super) fn last(&self) -> (IpAddr, Packet) {
        (self.destination, self.packet)
    }

    /// Returns the destination address and the ports before destination NAT. For egress,
    /// destination NAT has already been done.
    pub(super) fn first(&self) -> (IpAddr, Packet) {
        match self.original {
            Some(original) if self.direction == Direction::Ingress => original,
            _ => self.last(),
        }
    }
}
