//! The outer headers of datagrams that a tunnel socket receives. The kernel removes the real headers, and these replace
//! them.

use std::net::SocketAddrV4;

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::sys::udp_gso::SuperDatagram;
use crate::wire::{ipv4, protocol, udp};

/// The outer IPv4 and UDP headers.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct OuterHeaders {
    pub(super) ip: ipv4::Header,
    udp: udp::Header,
}

/// The length of [`OuterHeaders`], in bytes.
pub(super) const HEADERS: usize = size_of::<OuterHeaders>();

impl OuterHeaders {
    /// The outer headers of one datagram of a super-datagram that the socket with this address received.
    pub(super) fn new(datagram: &SuperDatagram, local: SocketAddrV4, payload: usize) -> Self {
        let ip = ipv4::Header {
            version_ihl: ipv4::VERSION_IHL,
            dscp_ecn: datagram.tos,
            total_len: ((HEADERS + payload) as u16).into(),
            ttl: 64,
            protocol: protocol::UDP,
            source: datagram.source.octets(),
            destination: local.ip().octets(),
            ..ipv4::Header::default()
        };
        let udp = udp::Header {
            source_port: datagram.source_port.into(),
            destination_port: local.port().into(),
            len: ((udp::HEADER_LEN + payload) as u16).into(),
            checksum: U16::ZERO,
        };
        Self { ip: ip.with_checksum(), udp }
    }
}
