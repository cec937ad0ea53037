//! The packets of an attacker, in whole batches. Each packet follows the virtio header that the kernel of a pod would
//! write.

use std::net::Ipv4Addr;

use clap::ValueEnum;
use manx_dataplane::checksum::{finish, fold, sum};
use manx_dataplane::packet::{Checksum, Offload, SegmentKind, Segmentation};
use manx_dataplane::port::virtio::{self, HEADER_LEN};
use manx_dataplane::wire::address::Address;
use manx_dataplane::wire::address::pseudo;
use manx_dataplane::wire::protocol;

use crate::host::sys::{BATCH, Batch};
use crate::path::agents::cluster::Attack;
use crate::path::constants::{ATTACK_PORTS, PORT};
use crate::path::traffic::SMALL;

/// The packets of an attacker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// None: the process only computes.
    Loop,
    /// Small packets of [`BATCH`] flows.
    Small,
    /// Small packets, each of a different flow.
    New,
    /// Small packets, each of a different flow, to ports that no policy allows.
    Denied,
    /// First and last fragments of small datagrams, in turn.
    Fragments,
    /// TCP super-packets of 480 segments of one byte.
    Segments,
    /// UDP super-packets of 64 segments of one byte, the number that every kernel accepts.
    SegmentsUdp,
    /// Small packets whose TTL expires at this node.
    Ttl,
    /// Packets that are larger than the path's MTU and must not be fragmented (DF).
    TooBig,
    /// TCP super-packets of 64 KB.
    Super,
}

impl Kind {
    /// A description of the packets and their destination.
    pub(super) const fn description(self) -> &'static str {
        match self {
            Self::Loop => "nothing",
            Self::Small => "64-byte packets of 64 flows to its node",
            Self::New => "64-byte packets to its node, each a new flow",
            Self::Denied => "64-byte packets to its node, each a new flow that is denied",
            Self::Fragments => "44-byte fragments to its node, two a datagram",
            Self::Segments => "520-byte packets of 480 TCP segments, by IPIP",
            Self::SegmentsUdp => "92-byte packets of 64 UDP segments, by IPIP",
            Self::Ttl => "64-byte packets whose TTL ends",
            Self::TooBig => "3,000-byte packets with DF, by IPIP",
            Self::Super => "64 KB super-packets, by IPIP",
        }
    }

    /// The pod to which they are sent. Super-packets and packets that are too big go to the pod on the other node, and
    /// all others to the pod on the attacker's node.
    pub(super) const fn target(self, attack: &Attack) -> Ipv4Addr {
        match self {
            Self::Segments | Self::SegmentsUdp | Self::TooBig | Self::Super => attack.far,
            Self::Loop | Self::Small | Self::New | Self::Denied | Self::Fragments | Self::Ttl => {
                attack.near
            }
        }
    }
}

const IP: usize = 20;
const TCP: usize = 20;
const UDP: usize = 8;
/// The number of payload bytes after the UDP header of a first fragment, and the number in the last fragment, which has
/// no UDP header. Both packets have the same length.
const FRAGMENTS: [usize; 2] = [16, 24];
/// For each kind of super-packet, its number of payload bytes, and the number in each of its segments.
const TINY_TCP: (usize, u16) = (480, 1);
const TINY_UDP: (usize, u16) = (64, 1);
const WHOLE: (usize, u16) = (45 * 1440, 1440);
/// The same for a packet that is too big, which has a single segment. The kernel forwards it whole, because only
/// super-packets may be larger than the MTU.
const TOO_BIG: (usize, u16) = (2960, 2960);
/// The first source port. Packets of different flows have `SOURCES` source ports.
const FIRST_SOURCE: u16 = 10_000;
const SOURCES: u32 = 40_000;
/// The first port that no policy allows.
const DENIED: u16 = 7000;
const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;

/// A batch, and the fields that change from one batch to the next.
pub(super) struct Packets {
    batch: Batch,
    kind: Kind,
    /// The number of bytes in front of each IP header.
    front: usize,
    /// For each packet, the sum over its IP header without checksum and identification. The checksum of a fragment is
    /// computed from it.
    sums: Vec<u32>,
    /// The number of packets that have been made so far.
    made: u32,
}

impl Packets {
    /// Creates packets from one pod to another, each after this link header.
    pub(super) fn new(kind: Kind, from: Ipv4Addr, to: Ipv4Addr, link: &[u8]) -> Self {
        let messages: Vec<Vec<u8>> = (0..BATCH)
            .map(|index| {
                let (packet, offload) = packet(kind, from, to, index as u16);
                let header = virtio::encode(offload, &packet, link.len());
                [&header[..], link, &packet].concat()
            })
            .collect();
        let mut batch = Batch::new(messages[0].len());
        for (index, message) in messages.iter().enumerate() {
            batch.write(index, 0, message);
        }
        let front = HEADER_LEN + link.len();
        let sums = messages.iter().map(|message| {
            let header = &message[front..front + IP];
            sum(&header[..10]) + sum(&header[12..])
        });
        Self { batch, kind, front, sums: sums.collect(), made: 0 }
    }

    pub(super) fn next(&mut self) -> &mut Batch {
        match self.kind {
            Kind::New => self.set_ports(PORT),
            Kind::Denied => self.set_ports(DENIED),
            Kind::Fragments => self.set_ids(),
            _ => {}
        }
        &mut self.batch
    }

    /// Gives each packet a different flow. The flows repeat after `SOURCES * ATTACK_PORTS` packets.
    fn set_ports(&mut self, first: u16) {
        for index in 0..BATCH {
            let source = FIRST_SOURCE + (self.made % SOURCES) as u16;
            let target = first + (self.made / SOURCES % u32::from(ATTACK_PORTS)) as u16;
            let ports = [source.to_be_bytes(), target.to_be_bytes()].concat();
            self.batch.write(index, self.front + IP, &ports);
            self.made = self.made.wrapping_add(1);
        }
    }

    /// Gives each pair of fragments a different identification.
    fn set_ids(&mut self) {
        for (index, without) in self.sums.iter().enumerate() {
            let id = (self.made / 2) as u16;
            self.batch.write(index, self.front + 4, &id.to_be_bytes());
            let checksum = finish(without + u32::from(id));
            self.batch.write(index, self.front + 10, &checksum.to_be_bytes());
            self.made = self.made.wrapping_add(1);
        }
    }
}

/// The packet at this index of a batch, and the content of its virtio header.
fn packet(kind: Kind, from: Ipv4Addr, to: Ipv4Addr, index: u16) -> (Vec<u8>, Offload) {
    let source = FIRST_SOURCE + index;
    let udp = |payload| udp(source, UDP + payload, payload);
    let whole = |ttl, transport: Vec<u8>| {
        (
            [&ip(from, to, protocol::UDP, ttl, 0, transport.len())[..], &transport].concat(),
            Offload::default(),
        )
    };
    let cut = |segment: SegmentKind, (payload, size)| {
        let (protocol, mut transport, offset) = match segment {
            SegmentKind::Udp => (protocol::UDP, udp(payload), 6),
            SegmentKind::Tcp4 | SegmentKind::Tcp6 => (protocol::TCP, tcp(source, payload), 16),
        };
        let [from_address, to_address] = [from, to].map(|it| Address::v4(it.octets()));
        let started = fold(pseudo(from_address, to_address, protocol, transport.len() as u32));
        transport[offset..offset + 2].copy_from_slice(&started.to_be_bytes());
        let offload = Offload {
            checksum: Checksum::Partial { start: IP as u16, offset: offset as u16 },
            segmentation: Some(Segmentation { kind: segment, size, ecn: false }),
        };
        let header = ip(from, to, protocol, 64, DONT_FRAGMENT, transport.len());
        ([&header[..], &transport].concat(), offload)
    };
    match kind {
        Kind::Loop | Kind::Small | Kind::New | Kind::Denied => whole(64, udp(SMALL)),
        Kind::Ttl => whole(1, udp(SMALL)),
        Kind::Fragments => {
            let [first, last] = FRAGMENTS;
            let (place, part) = if index.is_multiple_of(2) {
                (MORE_FRAGMENTS, self::udp(source, UDP + first + last, first))
            } else {
                (((UDP + first) / 8) as u16, vec![0; last])
            };
            let header = ip(from, to, protocol::UDP, 64, place, part.len());
            ([&header[..], &part].concat(), Offload::default())
        }
        Kind::Segments => cut(SegmentKind::Tcp4, TINY_TCP),
        Kind::SegmentsUdp => cut(SegmentKind::Udp, TINY_UDP),
        Kind::TooBig => cut(SegmentKind::Tcp4, TOO_BIG),
        Kind::Super => cut(SegmentKind::Tcp4, WHOLE),
    }
}

/// An IPv4 header with its checksum. `place` holds the flags and the fragment offset.
fn ip(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, ttl: u8, place: u16, payload: usize) -> [u8; IP] {
    let mut header = [0; IP];
    (header[0], header[8], header[9]) = (0x45, ttl, protocol);
    header[2..4].copy_from_slice(&((IP + payload) as u16).to_be_bytes());
    header[6..8].copy_from_slice(&place.to_be_bytes());
    header[12..16].copy_from_slice(&from.octets());
    header[16..20].copy_from_slice(&to.octets());
    let checksum = finish(sum(&header));
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    header
}

/// A UDP header with this length field and without a checksum (RFC 768), followed by this many payload bytes.
fn udp(source: u16, len: usize, payload: usize) -> Vec<u8> {
    let mut bytes = vec![0; UDP + payload];
    bytes[..2].copy_from_slice(&source.to_be_bytes());
    bytes[2..4].copy_from_slice(&PORT.to_be_bytes());
    bytes[4..6].copy_from_slice(&(len as u16).to_be_bytes());
    bytes
}

/// A TCP segment of a connection that was never opened, with this many payload bytes.
fn tcp(source: u16, payload: usize) -> Vec<u8> {
    let mut bytes = vec![0; TCP + payload];
    bytes[..2].copy_from_slice(&source.to_be_bytes());
    bytes[2..4].copy_from_slice(&PORT.to_be_bytes());
    // These are the data offset, ACK, and a window that is not 0.
    (bytes[12], bytes[13], bytes[14]) = (5 << 4, 0x10, 0xff);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use manx_dataplane::checksum::is_right;
    use manx_dataplane::packet::Pool;
    use manx_dataplane::parse::parse;

    const FROM: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 4);
    const TO: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 5);

    #[test]
    fn a_port_accepts_packets_of_every_kind_and_counts_their_segments() {
        let kinds = [
            (Kind::Small, 64, 1),
            (Kind::New, 64, 1),
            (Kind::Denied, 64, 1),
            (Kind::Fragments, 44, 1),
            (Kind::Segments, 520, 480),
            (Kind::SegmentsUdp, 92, 64),
            (Kind::Ttl, 64, 1),
            (Kind::TooBig, 3000, 1),
            (Kind::Super, 64_840, 45),
        ];
        for (kind, len, segments) in kinds {
            for (link, index) in [(&[][..], 0), (&[0xee; 14], 1)] {
                let (bytes, offload) = packet(kind, FROM, TO, index);
                let header = virtio::encode(offload, &bytes, link.len());
                assert_eq!(virtio::decode(&header, &bytes, link.len()), Ok(offload), "{kind:?}");
                assert!(
                    is_right(sum(&bytes[..IP])) && parse(&bytes).is_ok(),
                    "{kind:?}: {bytes:?}"
                );
                let mut packet = Pool::new(1).take_filled(&bytes).unwrap();
                packet.offload = offload;
                let headers = match offload.segmentation.map(|it| it.kind) {
                    Some(SegmentKind::Tcp4) => IP + TCP,
                    _ => IP + UDP,
                };
                assert_eq!((packet.len(), packet.segments(headers)), (len, segments), "{kind:?}");
            }
        }
    }
}
