//! The Ethernet frames between a pod and its node, if another CNI plugin has connected the pod. Manx stands between the
//! two.
//!
//! Manx has no address there. Link messages (ARP, RFC 826; neighbour discovery, RFC 4861) are relayed unchanged, so
//! that the pod and the node learn each other's addresses. A pod may ask and answer only for its own addresses, and may
//! not be a router. The node is trusted, but frames that its bridge floods to all pods are filtered. A link message
//! must not carry other data, because policy does not judge it. So no bytes after the message are relayed, and a
//! message from a pod may have only the options that it needs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::link::{
    EthernetHeader, Frame, Mac, has_right_checksum, ip_ethertype, is_neighbour_discovery,
    packet_len,
};
use crate::wire::ethernet::{self, ethertype};
use crate::wire::icmpv6::kind;
use crate::wire::{arp, extension, icmpv6, ipv6, ndp, protocol};

/// The length of the longest link message that is relayed, in bytes after the Ethernet header: the MTU of Ethernet.
pub const MESSAGE_MAX: usize = 1500;
/// The largest number of bytes of options in a pod's neighbour discovery message: both link-layer addresses and a
/// nonce.
const OPTIONS_MAX: usize = 24;
const BROADCAST: Mac = [0xff; 6];
/// The first bytes of the hardware addresses of IPv6's multicast groups (RFC 2464, section 7).
const MULTICAST_V6: [u8; 2] = [0x33, 0x33];
/// A placeholder for no hardware address, in packets that did not come by a pod's link.
const NO_MAC: Mac = [0; 6];

/// One side of the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The pod's side: received frames come from the pod.
    Pod,
    /// The node's side, with the network that the other plugin connects to it.
    Node,
}

/// A pod and the node's end of its link, as the other plugin has created them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ends {
    /// The pod's hardware address.
    pub pod: Mac,
    /// The hardware address of the node's end.
    pub node: Mac,
    /// The pod's addresses.
    pub addresses: Vec<IpAddr>,
}

/// Classifies and builds the frames of one side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relay {
    side: Side,
    ends: Ends,
}

impl Relay {
    /// Creates both sides, the pod's side first. The pod's link-local address is the one that follows from its hardware
    /// address.
    pub fn sides(ends: &Ends) -> [Self; 2] {
        let mut ends = ends.clone();
        ends.addresses.push(link_local(ends.pod).into());
        [Side::Pod, Side::Node].map(|side| Self { side, ends: ends.clone() })
    }

    /// Classifies a frame of this side, which is given as its header and the bytes after it. A [`Frame::Message`] is
    /// relayed to the other side.
    ///
    /// IP inside a broadcast or multicast frame is not relayed, because policy judges packets from one end to one other
    /// end.
    #[inline]
    pub fn sort(&self, header: &EthernetHeader, payload: &[u8]) -> Frame {
        let Ok(frame) = ethernet::View::new_checked(header) else { return Frame::Malformed };
        let ethertype = frame.ethertype.get();
        let is_ours = match self.side {
            Side::Pod => is_unicast(frame.destination),
            Side::Node => frame.destination == self.ends.pod,
        };
        match ethertype {
            ethertype::IPV6 if is_neighbour_discovery(payload) => {
                message(self.relayed_neighbour_discovery(frame, payload))
            }
            ethertype::IPV6 if hides_neighbour_discovery(payload) => Frame::NotOurs,
            ethertype::IPV4 | ethertype::IPV6 if is_ours => {
                packet_len(ethertype, payload).map_or(Frame::Malformed, Frame::Packet)
            }
            ethertype::ARP => message(self.relayed_arp(frame, payload)),
            _ => Frame::NotOurs,
        }
    }

    /// The header of a frame of this side. `neighbour` is the hardware address to which the pod sent the packet. On the
    /// node's side, the frame goes to that address. A packet that the pod did not send by this link (because the node
    /// has translated it) goes to the node's own end, which a bridge also accepts as its own address. `None`: the
    /// packet is neither IPv4 nor IPv6.
    #[inline]
    pub fn header(&self, packet: &[u8], neighbour: Mac) -> Option<EthernetHeader> {
        let (destination, source) = match self.side {
            Side::Pod => (self.ends.pod, self.ends.node),
            Side::Node if neighbour == NO_MAC => (self.ends.node, self.ends.pod),
            Side::Node => (neighbour, self.ends.pod),
        };
        is_unicast(destination).then_some(ethernet::header(
            destination,
            source,
            ip_ethertype(packet)?,
        ))
    }

    /// The side of this relay.
    #[inline]
    pub fn side(&self) -> Side {
        self.side
    }

    /// The length of an ARP message that is relayed: only the link's padding follows it.
    fn relayed_arp(&self, frame: &ethernet::View, payload: &[u8]) -> Option<usize> {
        let message = arp::View::new_checked(payload).ok()?;
        let sender = Ipv4Addr::from(message.sender_protocol);
        let target = Ipv4Addr::from(message.target_protocol);
        let is_request = message.operation == arp::operation::REQUEST;
        let goes_on = match self.side {
            // The address 0.0.0.0 tests whether an address is free (RFC 5227).
            Side::Pod => {
                frame.source == self.ends.pod
                    && message.sender_hardware == self.ends.pod
                    && (self.is_pods(sender)
                        || sender.is_unspecified() && is_request && self.is_pods(target))
            }
            // The answer to a request of the pod from 0.0.0.0 has that address as its target.
            Side::Node if frame.destination == self.ends.pod => {
                self.is_pods(target) || target.is_unspecified()
            }
            // A sender that asks for its own address announces where it is.
            Side::Node => {
                frame.destination == BROADCAST && (self.is_pods(target) || sender == target)
            }
        };
        let is_known = is_request || message.operation == arp::operation::REPLY;
        (goes_on && is_known).then_some(size_of::<arp::Header>())
    }

    /// The length of a neighbour discovery message that is relayed, according to its header. The message has a correct
    /// checksum.
    fn relayed_neighbour_discovery(&self, frame: &ethernet::View, payload: &[u8]) -> Option<usize> {
        let ip = ipv6::View::new_checked(payload).ok().filter(|ip| has_right_checksum(ip))?;
        let icmp = icmpv6::View::new_checked(ip.payload()).ok()?;
        let ndp = ndp::View::new_checked(ip.payload()).ok();
        let target = ndp.map(|it| Ipv6Addr::from(it.target));
        let is_about_pod = target.is_some_and(|target| self.is_pods(target));
        let sender = Ipv6Addr::from(ip.source);
        let goes_on = match self.side {
            Side::Pod => {
                let is_senders = self.is_pods(sender);
                let options = ndp.map_or(icmp.payload(), |it| it.payload());
                // The source `::` tests whether an address is free (RFC 4862, section 5.4.2), or asks for a router
                // before there is an address.
                let allowed = match icmp.kind {
                    kind::ROUTER_SOLICITATION => is_senders || sender.is_unspecified(),
                    kind::NEIGHBOUR_SOLICITATION => {
                        target.is_some() && is_senders || is_about_pod && sender.is_unspecified()
                    }
                    kind::NEIGHBOUR_ADVERTISEMENT => is_senders && is_about_pod,
                    _ => false,
                };
                allowed && frame.source == self.ends.pod && self.are_pods(options)
            }
            Side::Node => {
                let reaches = frame.destination == self.ends.pod
                    || frame.destination.starts_with(&MULTICAST_V6);
                match icmp.kind {
                    kind::NEIGHBOUR_SOLICITATION => reaches && is_about_pod,
                    kind::NEIGHBOUR_ADVERTISEMENT => reaches && target.is_some(),
                    kind::ROUTER_ADVERTISEMENT => reaches,
                    _ => false,
                }
            }
        };
        goes_on.then(|| ipv6::HEADER_LEN + ip.payload().len())
    }

    /// Whether a pod may send these options. Any others could claim the hardware address of another host or of a group.
    fn are_pods(&self, options: &[u8]) -> bool {
        let is_allowed = |(kind, value): (u8, &[u8])| match kind {
            ndp::option::SOURCE_LINK_ADDRESS | ndp::option::TARGET_LINK_ADDRESS => {
                value == self.ends.pod
            }
            ndp::option::NONCE => value.len() == 6,
            _ => false,
        };
        options.len() <= OPTIONS_MAX && ndp::Options(options).all(|it| it.is_some_and(is_allowed))
    }

    fn is_pods(&self, address: impl Into<IpAddr>) -> bool {
        self.ends.addresses.contains(&address.into())
    }
}

/// Whether a packet is a link message after extension headers. Kernels accept those, too, but no honest neighbour sends
/// one.
fn hides_neighbour_discovery(payload: &[u8]) -> bool {
    let Ok(ip) = ipv6::View::new_checked(payload) else { return false };
    if ip.hop_limit != ndp::HOP_LIMIT {
        return false;
    }
    extension::walk(ip.next_header, ip.payload()).is_ok_and(|walked| {
        walked.protocol == protocol::ICMPV6
            && walked.fragment.is_none_or(|(fragment, _)| fragment.offset == 0)
            && ip.payload().get(walked.offset).is_some_and(|it| kind::is_neighbour_discovery(*it))
    })
}

fn message(len: Option<usize>) -> Frame {
    len.filter(|len| *len <= MESSAGE_MAX).map_or(Frame::NotOurs, Frame::Message)
}

#[inline]
fn is_unicast(to: Mac) -> bool {
    to[0] & 1 == 0
}

/// The link-local address that an interface derives from its hardware address (RFC 4291, appendix A).
fn link_local(mac: Mac) -> Ipv6Addr {
    let [front, back] = [[mac[0] ^ 2, mac[1], mac[2], 0xff], [0xfe, mac[3], mac[4], mac[5]]];
    let id = u64::from(u32::from_be_bytes(front)) << 32 | u64::from(u32::from_be_bytes(back));
    Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(id))
}

#[cfg(test)]
mod tests;
