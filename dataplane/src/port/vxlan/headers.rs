//! The outer headers of datagrams that a VXLAN socket receives. The kernel removes the real ones; these replace them.

use std::net::Ipv4Addr;

use crate::checksum;
use crate::encapsulation::Encapsulation;
use crate::sys::udp_gso::SuperDatagram;
use crate::wire::ipv4::{self, field};
use crate::wire::{protocol, put, udp, vxlan};

/// Outer IPv4 and UDP headers.
pub(super) const HEADERS: usize = ipv4::HEADER_LEN + udp::HEADER_LEN;
/// Bytes in front of the inner packet.
pub(super) const OUTER: usize = Encapsulation::Vxlan { vni: 0 }.header_len();

/// The outer headers of one datagram of a super-datagram.
pub(super) fn headers(
    super_datagram: &SuperDatagram,
    local: Ipv4Addr,
    payload: usize,
) -> [u8; HEADERS] {
    let mut headers = [0; HEADERS];
    let (ip, datagram) = headers.split_at_mut(ipv4::HEADER_LEN);
    ip[field::VERSION_IHL] = 0x45;
    ip[field::DSCP_ECN] = super_datagram.tos;
    put(ip, field::TOTAL_LEN, &((HEADERS + payload) as u16).to_be_bytes());
    ip[field::TTL] = 64;
    ip[field::PROTOCOL] = protocol::UDP;
    put(ip, field::SOURCE, &super_datagram.source.octets());
    put(ip, field::DESTINATION, &local.octets());
    let sum = checksum::finish(checksum::sum(ip));
    put(ip, field::CHECKSUM, &sum.to_be_bytes());
    put(datagram, 0..2, &super_datagram.source_port.to_be_bytes());
    put(datagram, 2..4, &vxlan::PORT.to_be_bytes());
    put(datagram, 4..6, &((udp::HEADER_LEN + payload) as u16).to_be_bytes());
    headers
}
