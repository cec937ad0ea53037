//! The part of Ethernet that a link with two ends needs: framing, and answers to a kernel's requests for addresses.
//!
//! The pod's end of a link sees a network. It asks for the hardware address of a neighbour (ARP, RFC 826; neighbour
//! solicitation, RFC 4861). The answer is always this end's hardware address, because every address is reached through
//! it: proxy ARP (RFC 1027). Two kinds of requests get no answer: a request for one of the pod's own addresses, and a
//! request that tests whether an address is free (ARP probes, RFC 5227; duplicate address detection, RFC 4862). An
//! answer to these would claim the address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::IntoBytes;

use crate::checksum::{finish, is_right, sum};
use crate::packet::Packet;
use crate::wire::address::Address;
use crate::wire::address::pseudo;
pub use crate::wire::ethernet::{HEADER_LEN as ETHERNET_LEN, ethertype};
use crate::wire::icmpv6::kind;
use crate::wire::{arp, ethernet, ipv4, ipv6, ndp, protocol};

/// An Ethernet header.
pub type EthernetHeader = [u8; ETHERNET_LEN];
/// A hardware address.
pub type Mac = [u8; 6];

/// The longest answer, in bytes.
pub const REPLY_MAX: usize = ETHERNET_LEN + ipv6::HEADER_LEN + ndp::ADVERTISEMENT_LEN;

/// One end of a link with two ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// This end's hardware address.
    pub own: Mac,
    /// The other end's hardware address. It is configured, not learned, so that a pod cannot redirect packets that are
    /// sent to it.
    pub peer: Mac,
    /// The other end's own addresses; a request for one of them gets no answer.
    pub addresses: Vec<IpAddr>,
}

/// A frame that answers a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    bytes: [u8; REPLY_MAX],
    len: usize,
}

impl Reply {
    /// The frame's bytes, starting at the Ethernet header.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// What a link does with a received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// The frame holds an IP packet of this length; padding may follow it.
    Packet(usize),
    /// The frame is a request; this is the answer.
    Question(Reply),
    /// The frame is a link message of this length for the other side of a [relay](super::relay).
    Message(usize),
    /// The frame is not for this end: it has another hardware address, is broadcast or multicast, has another protocol,
    /// or is a link message.
    NotOurs,
    /// Its ethertype and its IP header contradict each other, or it is shorter than the IP header says.
    Malformed,
}

impl Link {
    /// The header of a frame from this end to the other; `None` for a packet that is neither IPv4 nor IPv6.
    #[inline]
    pub fn header(&self, packet: &[u8]) -> Option<EthernetHeader> {
        Some(ethernet::header(self.peer, self.own, ip_ethertype(packet)?))
    }

    /// Classifies a frame, which is given as its header and the bytes after it.
    ///
    /// IP inside a broadcast or multicast frame is not delivered. It must not be forwarded (RFC 1812, 5.3.4), and the
    /// router is the only neighbour that it reaches.
    #[inline]
    pub fn sort(&self, header: &EthernetHeader, payload: &[u8]) -> Frame {
        let Ok(frame) = ethernet::View::new_checked(header) else { return Frame::Malformed };
        let (to, ethertype) = (frame.destination, frame.ethertype.get());
        let to_us = to == self.own;
        match ethertype {
            ethertype::IPV6 if is_neighbour_discovery(payload) => {
                self.advertise(to, payload).map_or(Frame::NotOurs, Frame::Question)
            }
            ethertype::IPV4 | ethertype::IPV6 if to_us => {
                packet_len(ethertype, payload).map_or(Frame::Malformed, Frame::Packet)
            }
            ethertype::ARP if to_us || to == [0xff; 6] => {
                self.answer_arp(payload).map_or(Frame::NotOurs, Frame::Question)
            }
            _ => Frame::NotOurs,
        }
    }

    fn reply(&self, ethertype: u16, payload: &[u8]) -> Reply {
        let mut bytes = [0; REPLY_MAX];
        let len = ETHERNET_LEN + payload.len();
        let header = ethernet::header(self.peer, self.own, ethertype);
        bytes[..ETHERNET_LEN].copy_from_slice(&header);
        bytes[ETHERNET_LEN..len].copy_from_slice(payload);
        Reply { bytes, len }
    }

    fn answer_arp(&self, payload: &[u8]) -> Option<Reply> {
        let request = arp::View::new_checked(payload).ok()?;
        let sender = Ipv4Addr::from(request.sender_protocol);
        let target = Ipv4Addr::from(request.target_protocol);
        // An announcement (sender and target are equal) and a probe (it has no sender) do not ask for an address.
        if request.operation.get() != arp::operation::REQUEST
            || sender == target
            || sender.is_unspecified()
            || !self.answers_for(IpAddr::V4(target))
        {
            return None;
        }
        Some(self.reply(ethertype::ARP, request.answer(self.own).as_bytes()))
    }

    /// Answers a neighbour solicitation that passes the checks of RFC 4861, 7.1.1, as 7.2.4 requires.
    fn advertise(&self, to: Mac, payload: &[u8]) -> Option<Reply> {
        let ip = ipv6::View::new_checked(payload).ok()?;
        let question = ndp::View::new_checked(ip.payload()).ok()?;
        let is_question = question.icmp.kind == kind::NEIGHBOUR_SOLICITATION;
        if !is_question || !(to == self.own || to[..2] == [0x33, 0x33]) {
            return None;
        }
        let sender = Ipv6Addr::from(ip.source);
        let target = Ipv6Addr::from(question.target);
        // The source `::` tests whether the address is free.
        if !has_right_checksum(ip)
            || sender.is_unspecified()
            || sender.is_multicast()
            || !self.answers_for(IpAddr::V6(target))
        {
            return None;
        }
        let mut message = question.advertisement(self.own);
        let sum = message_sum(question.target, ip.source, message.as_bytes());
        message.header.icmp.checksum = finish(sum).into();
        let header = ipv6::header(
            question.target,
            ip.source,
            protocol::ICMPV6,
            ndp::HOP_LIMIT,
            ndp::ADVERTISEMENT_LEN as u16,
        );
        Some(self.reply(ethertype::IPV6, &[&header, message.as_bytes()].concat()))
    }

    fn answers_for(&self, target: IpAddr) -> bool {
        let reachable = match target {
            IpAddr::V4(a) => {
                !(a.is_unspecified() || a.is_broadcast() || a.is_multicast() || a.is_loopback())
            }
            IpAddr::V6(a) => !(a.is_unspecified() || a.is_multicast() || a.is_loopback()),
        };
        reachable && !self.addresses.contains(&target)
    }
}

/// The packet's length according to its own header. `None` if the frame is shorter, or holds no IP packet.
///
/// An IPv6 packet of payload length 0 may be a super-packet beyond 64 KB and takes the whole frame.
#[inline]
pub fn packet_len(ethertype: u16, payload: &[u8]) -> Option<usize> {
    match ethertype {
        ethertype::IPV4 => {
            Some(usize::from(ipv4::View::new_checked(payload).ok()?.total_len.get()))
        }
        ethertype::IPV6 => {
            let ip = ipv6::View::new_checked(payload).ok()?;
            Some(if ip.payload_len.get() == 0 { payload.len() } else { ip.total_len() })
        }
        _ => None,
    }
}

/// Cuts a packet that an IPv4 socket has received to the length that its header states. Returns whether it is a whole
/// IPv4 packet.
#[inline]
pub(super) fn trim_ipv4(packet: &mut Packet) -> bool {
    let len = packet_len(ethertype::IPV4, packet.bytes());
    len.inspect(|len| packet.set_len(*len)).is_some()
}

/// The ethertype of an IP packet; `None` for any other.
#[inline]
pub(super) fn ip_ethertype(packet: &[u8]) -> Option<u16> {
    match packet.first()? >> 4 {
        4 => Some(ethertype::IPV4),
        6 => Some(ethertype::IPV6),
        _ => None,
    }
}

/// Whether a message is a router message, a neighbour message or a redirect, which no router forwards.
pub(super) fn is_neighbour_discovery(payload: &[u8]) -> bool {
    ipv6::View::new_checked(payload).is_ok_and(|ip| {
        ip.next_header == protocol::ICMPV6
            && ip.hop_limit == ndp::HOP_LIMIT
            && ip.payload().first().is_some_and(|&first| kind::is_neighbour_discovery(first))
    })
}

/// Whether the checksum of an ICMPv6 message is right.
pub(super) fn has_right_checksum(ip: &ipv6::View) -> bool {
    is_right(message_sum(ip.source, ip.destination, ip.payload()))
}

/// The sum over the pseudo-header and the message (RFC 8200, 8.1), not yet folded.
fn message_sum(source: [u8; 16], destination: [u8; 16], message: &[u8]) -> u32 {
    let (source, destination) = (Address::v6(source), Address::v6(destination));
    pseudo(source, destination, protocol::ICMPV6, message.len() as u32) + sum(message)
}

#[cfg(test)]
mod tests {
    use etherparse::{IpNumber, PacketBuilder, SlicedPacket};
    use proptest::prelude::*;

    use super::*;

    const OWN: Mac = [2, 0, 0, 0, 0, 1];
    const POD: Mac = [2, 0, 0, 0, 0, 2];
    const POD4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    const POD6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
    const OTHER6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9);

    fn link() -> Link {
        Link { own: OWN, peer: POD, addresses: vec![POD4.into(), POD6.into()] }
    }

    fn sort(frame: &[u8]) -> Frame {
        link().sort(frame.first_chunk().unwrap(), &frame[ETHERNET_LEN..])
    }

    fn arp(to: Mac, operation: u8, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
        let mut frame = Vec::new();
        frame.extend(to);
        frame.extend(POD);
        frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
        frame.extend(POD);
        frame.extend(sender);
        frame.extend([0; 6]);
        frame.extend(target);
        frame
    }

    fn solicitation(to: Mac, sender: Ipv6Addr, target: Ipv6Addr, hop_limit: u8) -> Vec<u8> {
        let mut message = [0; 20];
        message[4..].copy_from_slice(&target.octets());
        let bytes5to8 = [0; 4];
        let destination = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 9];
        let builder =
            PacketBuilder::ethernet2(POD, to).ipv6(sender.octets(), destination, hop_limit);
        let mut frame = Vec::new();
        builder
            .icmpv6_raw(kind::NEIGHBOUR_SOLICITATION, 0, bytes5to8)
            .write(&mut frame, &message[4..])
            .unwrap();
        frame
    }

    #[test]
    fn every_address_is_reached_through_this_end() {
        let Frame::Question(reply) = sort(&arp([0xff; 6], 1, POD4.octets(), [192, 0, 2, 9])) else {
            panic!("unanswered")
        };
        let bytes = reply.bytes();
        assert_eq!(
            (&bytes[..6], &bytes[6..12], &bytes[12..14]),
            (&POD[..], &OWN[..], &[8u8, 6][..])
        );
        assert_eq!(bytes[14..22], [0, 1, 8, 0, 6, 4, 0, 2]);
        assert_eq!((&bytes[22..28], &bytes[28..32]), (&OWN[..], &[192u8, 0, 2, 9][..]));
        assert_eq!((&bytes[32..38], &bytes[38..]), (&POD[..], &POD4.octets()[..]));
        assert!(
            matches!(sort(&arp(OWN, 1, POD4.octets(), [192, 0, 2, 9])), Frame::Question(_)),
            "unicast poll"
        );
    }

    #[test]
    fn arp_that_must_stay_unanswered() {
        let pod = POD4.octets();
        for (why, frame) in [
            ("a probe", arp([0xff; 6], 1, [0; 4], pod)),
            ("a probe of another's address", arp([0xff; 6], 1, [0; 4], [10, 0, 0, 9])),
            ("an announcement", arp([0xff; 6], 1, [10, 0, 0, 9], [10, 0, 0, 9])),
            ("the pod's own address", arp([0xff; 6], 1, [10, 0, 0, 9], pod)),
            ("a reply", arp(OWN, 2, pod, [10, 0, 0, 9])),
            ("multicast", arp([0xff; 6], 1, pod, [224, 0, 0, 1])),
            ("broadcast", arp([0xff; 6], 1, pod, [255; 4])),
            ("another's question", arp([2, 0, 0, 0, 0, 7], 1, pod, [10, 0, 0, 9])),
            ("cut short", arp([0xff; 6], 1, pod, [10, 0, 0, 9])[..40].to_vec()),
        ] {
            assert_eq!(sort(&frame), Frame::NotOurs, "{why}");
        }
    }

    #[test]
    fn a_neighbour_solicitation_is_answered_with_a_valid_advertisement() {
        for to in [OWN, [0x33, 0x33, 0xff, 0, 0, 9]] {
            let Frame::Question(reply) = sort(&solicitation(to, POD6, OTHER6, 255)) else {
                panic!("unanswered")
            };
            let sliced = SlicedPacket::from_ethernet(reply.bytes()).unwrap();
            let Some(etherparse::NetSlice::Ipv6(ip)) = sliced.net else { panic!("no IPv6") };
            assert_eq!((ip.header().source_addr(), ip.header().destination_addr()), (OTHER6, POD6));
            assert_eq!(
                (ip.header().hop_limit(), ip.header().next_header()),
                (255, IpNumber::IPV6_ICMP)
            );
            let Some(etherparse::TransportSlice::Icmpv6(icmp)) = sliced.transport else {
                panic!("no ICMPv6")
            };
            assert!(icmp.is_checksum_valid(OTHER6.octets(), POD6.octets()));
            assert_eq!(icmp.slice()[0], kind::NEIGHBOUR_ADVERTISEMENT);
            assert_eq!(icmp.slice()[8..24], OTHER6.octets());
            assert_eq!(icmp.slice()[24..], [2, 1, 2, 0, 0, 0, 0, 1]);
        }
    }

    #[test]
    fn neighbour_discovery_that_must_stay_unanswered_is_not_passed_on_either() {
        let multicast = [0x33, 0x33, 0xff, 0, 0, 9];
        let mut corrupt = solicitation(multicast, POD6, OTHER6, 255);
        corrupt[60] ^= 1;
        for (why, frame) in [
            (
                "duplicate address detection",
                solicitation(multicast, Ipv6Addr::UNSPECIFIED, OTHER6, 255),
            ),
            ("the pod's own address", solicitation(multicast, OTHER6, POD6, 255)),
            ("a wrong checksum", corrupt),
            ("from beyond a router", solicitation(multicast, POD6, OTHER6, 254)),
            ("another's", solicitation([2, 0, 0, 0, 0, 7], POD6, OTHER6, 255)),
        ] {
            assert_eq!(sort(&frame), Frame::NotOurs, "{why}");
        }
    }

    #[test]
    fn a_frame_for_us_yields_its_packet_without_padding() {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2(POD, OWN)
            .ipv4(POD4.octets(), [10, 0, 0, 9], 64)
            .udp(1, 2)
            .write(&mut frame, b"x")
            .unwrap();
        frame.resize(60, 0);
        assert_eq!(sort(&frame), Frame::Packet(29));
        frame[0] = 0xff;
        assert_eq!(sort(&frame), Frame::NotOurs, "another's");
        frame[..6].copy_from_slice(&OWN);
        frame[17] = 200;
        assert_eq!(sort(&frame), Frame::Malformed, "longer than the frame");
        frame[12..14].copy_from_slice(&0x86ddu16.to_be_bytes());
        assert_eq!(sort(&frame), Frame::Malformed, "IPv4 called IPv6");
        frame[12..14].copy_from_slice(&0x8100u16.to_be_bytes());
        assert_eq!(sort(&frame), Frame::NotOurs, "VLAN");
    }

    #[test]
    fn a_frame_is_addressed_to_the_peer() {
        let header = link().header(&[0x45]).unwrap();
        assert_eq!(header, [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
        assert_eq!(link().header(&[0x60]).unwrap()[12..], [0x86, 0xdd]);
        assert_eq!(link().header(&[0x50]), None);
        assert_eq!(link().header(&[]), None);
    }

    proptest! {
        #[test]
        fn a_packet_always_lies_within_its_frame(
            mut header: EthernetHeader, to_us: bool, kind in 0usize..4, payload in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            if to_us {
                header[..6].copy_from_slice(&OWN);
            }
            if let Some(kind) = [ethertype::IPV4, ethertype::IPV6, ethertype::ARP].get(kind) {
                header[12..].copy_from_slice(&kind.to_be_bytes());
            }
            if let Frame::Packet(len) = link().sort(&header, &payload) {
                prop_assert!(to_us && len <= payload.len());
            }
        }
    }
}
