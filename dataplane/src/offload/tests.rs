//! Laws of segmentation and coalescing, on generated packets.

use std::collections::BTreeMap;

use etherparse::{Ipv4Header, Ipv6Header, TcpHeader, UdpHeader};
use proptest::prelude::*;

use super::coalesce::{coalesce, may_coalesce};
use super::headers::{ACK, CWR, FIN, FLAGS, Headers, PSH, Shape, TCP, UDP};
use super::join::join;
use super::segment::segment;
use crate::checksum::fold;
use crate::drop_reason::DropReason;
use crate::packet::Capabilities;
use crate::packet::{Checksum, Offload, Packet, Pool, SegmentKind, Segmentation};

const ECE: u8 = 0x40;

/// All header fields that segments share or that segmentation computes.
#[derive(Debug, Clone)]
struct Template {
    v6: bool,
    tcp: bool,
    /// The IPv4 options or, over IPv6, a hop-by-hop header, as a number of 32-bit words.
    ip_options: u8,
    tcp_options: u8,
    tos: u8,
    ttl: u8,
    dont_fragment: bool,
    source_port: u16,
    ack: u32,
    window: u16,
}

fn template(tcp: bool) -> impl Strategy<Value = Template> {
    (any::<bool>(), 0u8..=10, 0u8..=10, any::<(u8, u8, bool, u16, u32, u16)>()).prop_map(
        move |(
            v6,
            ip_options,
            tcp_options,
            (tos, ttl, dont_fragment, source_port, ack, window),
        )| {
            Template {
                v6,
                tcp,
                ip_options,
                tcp_options,
                tos,
                ttl,
                dont_fragment,
                source_port,
                ack,
                window,
            }
        },
    )
}

impl Template {
    fn plain() -> Self {
        Self {
            v6: false,
            tcp: true,
            ip_options: 0,
            tcp_options: 3,
            tos: 2,
            ttl: 63,
            dont_fragment: true,
            source_port: 40_000,
            ack: 7,
            window: 500,
        }
    }

    /// A packet with correct lengths and checksums, written byte by byte.
    fn packet(&self, id: u16, sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let protocol = if self.tcp { TCP } else { UDP };
        let mut bytes = Vec::new();
        if self.v6 {
            bytes.extend([0x60 | self.tos >> 4, self.tos << 4, 1, 2, 0, 0, protocol, self.ttl]);
            bytes.extend([0xfd; 15]);
            bytes.push(1);
            bytes.extend([0xfd; 15]);
            bytes.push(2);
            if self.ip_options > 0 {
                bytes[6] = 0;
                // The header holds one PadN option over its whole length (RFC 8200, section 4.2).
                bytes.extend([protocol, 0, 1, 4, 0, 0, 0, 0]);
            }
        } else {
            bytes.extend([0x45 + self.ip_options, self.tos, 0, 0]);
            bytes.extend(id.to_be_bytes());
            bytes.extend([u8::from(self.dont_fragment) << 6, 0, self.ttl, protocol, 0, 0]);
            bytes.extend([10, 0, 0, 1, 10, 0, 0, 2]);
            bytes.extend(std::iter::repeat_n(1, usize::from(self.ip_options) * 4));
        }
        bytes.extend(self.source_port.to_be_bytes());
        bytes.extend(80u16.to_be_bytes());
        if self.tcp {
            bytes.extend(sequence.to_be_bytes());
            bytes.extend(self.ack.to_be_bytes());
            bytes.extend([(5 + self.tcp_options) << 4, flags]);
            bytes.extend(self.window.to_be_bytes());
            bytes.extend([0; 4]);
            bytes.extend(std::iter::repeat_n(1, usize::from(self.tcp_options) * 4));
        } else {
            bytes.extend([0; 4]);
        }
        bytes.extend(payload);
        if self.v6 {
            let len = (bytes.len() - 40) as u16;
            bytes[4..6].copy_from_slice(&len.to_be_bytes());
        } else {
            let len = bytes.len() as u16;
            bytes[2..4].copy_from_slice(&len.to_be_bytes());
        }
        let headers = shape(&bytes);
        let len = bytes.len();
        headers.write_lengths(&mut bytes, len);
        let (headers_of, payload) = bytes.split_at_mut(headers.payload);
        headers.write_checksum(headers_of, payload);
        bytes
    }
}

fn shape(bytes: &[u8]) -> Headers {
    match Shape::classify(bytes) {
        Shape::Whole(headers) => headers,
        other => panic!("{other:?}: {bytes:?}"),
    }
}

/// Bytes that look random and differ at every offset that matters.
fn payload(seed: u32, len: usize) -> Vec<u8> {
    let mut state = u64::from(seed) | 1 << 40;
    (0..len)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

/// Turns a packet with a full checksum into a super-packet as a device delivers it.
fn super_packet(pool: &mut Pool, bytes: &[u8], size: u16) -> Packet {
    let headers = shape(bytes);
    let mut packet = pool.take_filled(bytes).unwrap();
    let at = headers.transport + headers.checksum_offset();
    let partial = fold(headers.pseudo_header(bytes, bytes.len())).to_be_bytes();
    packet.bytes_mut()[at..at + 2].copy_from_slice(&partial);
    let ecn = headers.protocol == TCP && bytes[headers.transport + FLAGS] & CWR != 0;
    packet.offload = Offload {
        checksum: Checksum::Partial {
            start: headers.transport as u16,
            offset: headers.checksum_offset() as u16,
        },
        segmentation: Some(Segmentation { kind: headers.kind(), size, ecn }),
    };
    packet
}

/// The slow, obvious reference: another library writes the header values, one segment at a time.
fn reference(bytes: &[u8], size: usize) -> Vec<Vec<u8>> {
    let headers = shape(bytes);
    let data = &bytes[headers.payload..];
    let chunks: Vec<&[u8]> = data.chunks(size).collect();
    let last = chunks.len() - 1;
    let between = |from: usize| bytes[from..headers.transport].to_vec();
    let mut sequence = 0;
    chunks
        .iter()
        .enumerate()
        .map(|(index, chunk)| {
            let transport_len = headers.payload - headers.transport + chunk.len();
            let mut out = Vec::new();
            let (v4, v6) = if headers.v6 {
                let (mut ip, _) = Ipv6Header::from_slice(bytes).unwrap();
                ip.payload_length = (headers.transport - 40 + transport_len) as u16;
                ip.write(&mut out).unwrap();
                out.extend(between(40));
                (None, Some(ip))
            } else {
                let (mut ip, _) = Ipv4Header::from_slice(bytes).unwrap();
                ip.total_len = (headers.transport + transport_len) as u16;
                ip.identification = ip.identification.wrapping_add(index as u16);
                ip.header_checksum = ip.calc_header_checksum();
                ip.write_raw(&mut out).unwrap();
                (Some(ip), None)
            };
            if headers.protocol == TCP {
                let (mut tcp, _) = TcpHeader::from_slice(&bytes[headers.transport..]).unwrap();
                tcp.sequence_number = tcp.sequence_number.wrapping_add(sequence);
                tcp.fin &= index == last;
                tcp.psh &= index == last;
                tcp.cwr &= index == 0;
                tcp.checksum = match (&v4, &v6) {
                    (Some(ip), _) => tcp.calc_checksum_ipv4(ip, chunk).unwrap(),
                    (_, Some(ip)) => {
                        tcp.calc_checksum_ipv6_raw(ip.source, ip.destination, chunk).unwrap()
                    }
                    _ => unreachable!(),
                };
                tcp.write(&mut out).unwrap();
            } else {
                let (mut udp, _) = UdpHeader::from_slice(&bytes[headers.transport..]).unwrap();
                udp.length = transport_len as u16;
                udp.checksum = match (&v4, &v6) {
                    (Some(ip), _) => {
                        udp.calc_checksum_ipv4_raw(ip.source, ip.destination, chunk).unwrap()
                    }
                    (_, Some(ip)) => {
                        udp.calc_checksum_ipv6_raw(ip.source, ip.destination, chunk).unwrap()
                    }
                    _ => unreachable!(),
                };
                udp.write(&mut out).unwrap();
            }
            out.extend(*chunk);
            sequence += chunk.len() as u32;
            out
        })
        .collect()
}

fn bytes_of(packets: &[Packet]) -> Vec<Vec<u8>> {
    packets.iter().map(|packet| packet.bytes().to_vec()).collect()
}

/// The packets that coalesced packets stand for: each super-packet is segmented again.
fn segmented(pool: &mut Pool, batch: Vec<Packet>) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for packet in batch {
        if packet.offload.segmentation.is_none() {
            all.push(packet.bytes().to_vec());
            pool.put(packet);
            continue;
        }
        let mut out = Vec::new();
        segment(packet, 65_535, pool, &mut out).unwrap();
        for packet in out {
            all.push(packet.bytes().to_vec());
            pool.put(packet);
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn segments_equal_the_reference_and_fit_the_link(
        template in any::<bool>().prop_flat_map(template),
        flags in any::<u8>(),
        (id, sequence, seed) in any::<(u16, u32, u32)>(),
        (size, len) in (1u16..3000, 1usize..20_000).prop_filter("bounded", |(s, l)| l / usize::from(*s) < 200),
        form in 0u8..3,
        squeeze in 0usize..200,
    ) {
        let mut pool = Pool::new(512);
        let flags = flags & (FIN | PSH | CWR | ECE) | ACK;
        let bytes = template.packet(id, sequence, flags, &payload(seed, len));
        let headers = shape(&bytes);
        let mut packet = super_packet(&mut pool, &bytes, size);
        if form > 0 {
            packet.bytes_mut().copy_from_slice(&bytes);
            packet.offload.checksum = if form == 1 { Checksum::Verified } else { Checksum::Unverified };
        }
        let whole = headers.payload + usize::from(size);
        let mtu = if template.tcp { (whole - squeeze.min(usize::from(size) / 2)).max(headers.payload + 1) } else { whole };
        packet.neighbour = [seed as u8 | 1; 6];
        let neighbour = packet.neighbour;
        let mut out = Vec::new();
        segment(packet, mtu, &mut pool, &mut out).unwrap();
        let expected = reference(&bytes, usize::from(size).min(mtu - headers.payload));
        prop_assert_eq!(bytes_of(&out), expected);
        for packet in &out {
            prop_assert!(packet.len() <= mtu);
            prop_assert_eq!(packet.neighbour, neighbour);
            prop_assert!(headers.verify(packet.bytes()) && headers.verify_ip(packet.bytes()));
            prop_assert_eq!(packet.offload, Offload { checksum: Checksum::Verified, segmentation: None });
        }
    }

    #[test]
    fn segment_then_coalesce_is_identity(
        template in any::<bool>().prop_flat_map(template),
        flags in any::<u8>(),
        (id, sequence, seed) in any::<(u16, u32, u32)>(),
        (size, len) in (1u16..9000, 1usize..65_000)
            .prop_filter("several segments", |&(s, l)| l > usize::from(s) && l / usize::from(s) < 200),
    ) {
        prop_assume!(template.tcp || len.div_ceil(usize::from(size)) <= 64);
        let mut pool = Pool::new(256);
        let flags = flags & (FIN | PSH | CWR | ECE) | ACK;
        let room = 65_535 - template.packet(0, 0, ACK, &[]).len();
        let bytes = template.packet(id, sequence, flags, &payload(seed, len.min(room)));
        let packet = super_packet(&mut pool, &bytes, size);
        let (before, offload) = (packet.bytes().to_vec(), packet.offload);
        prop_assume!(before.len() - shape(&before).payload > usize::from(size));
        let mut out = Vec::new();
        segment(packet, 65_535, &mut pool, &mut out).unwrap();
        for packet in &mut out {
            packet.offload.checksum = Checksum::Unverified;
        }
        // `may_coalesce` makes no statement about headers with options.
        if template.ip_options == 0 {
            prop_assert!(may_coalesce(&out));
        }
        coalesce(&mut out, Capabilities::ALL, &mut pool);
        prop_assert_eq!(out.len(), 1);
        prop_assert_eq!(out[0].bytes(), before.as_slice());
        prop_assert_eq!(out[0].offload, offload);
        prop_assert_eq!(pool.available(), 255, "every other buffer is back");
    }

    /// Streams of both protocols are interleaved, with gaps, retransmissions, flags, odd sizes and corruption. Whatever
    /// was merged falls apart into exactly the packets that arrived, in each connection's order, and the port takes
    /// every kind that was built.
    #[test]
    fn coalesce_then_segment_gives_each_connection_as_it_came(
        template in template(true),
        steps in prop::collection::vec((0u16..10, 0u8..24, 0usize..4), 1..120),
        (tcp_segmentation, udp_segmentation) in any::<(bool, bool)>(),
    ) {
        let takes = Capabilities { tcp_segmentation, udp_segmentation, ..Capabilities::ALL };
        let mut pool = Pool::new(256);
        let mut streams: BTreeMap<u16, (u16, u32)> = BTreeMap::new();
        let mut batch = Vec::new();
        let mut came: BTreeMap<u16, Vec<Vec<u8>>> = BTreeMap::new();
        for (index, &(stream, event, len)) in steps.iter().enumerate() {
            let (id, sequence) = streams.entry(stream).or_insert((u16::MAX - 2, u32::MAX - 300));
            let len = [100, 100, 100, 37][len];
            let mut template = Template { source_port: stream, tcp: stream < 6, ..template.clone() };
            let mut flags = ACK;
            match event {
                0 => *sequence = sequence.wrapping_add(1),
                1 => *sequence = sequence.wrapping_sub(100),
                2 => flags |= PSH,
                3 => flags |= FIN,
                4 => flags |= CWR,
                5 => flags |= ECE,
                6 => template.ttl ^= 1,
                7 => template.window ^= 1,
                8 => template.ack ^= 1,
                9 => *id = id.wrapping_add(3),
                _ => {}
            }
            let mut bytes = template.packet(*id, *sequence, flags, &payload(index as u32, len));
            if event == 11 {
                *bytes.last_mut().unwrap() ^= 0x10;
            }
            *sequence = sequence.wrapping_add(len as u32);
            *id = id.wrapping_add(1);
            came.entry(stream).or_default().push(bytes.clone());
            batch.push(pool.take_filled(&bytes).unwrap());
        }
        let count = batch.len();
        coalesce(&mut batch, takes, &mut pool);
        prop_assert!(batch.iter().all(|packet| takes.take(packet.offload)));
        prop_assert_eq!(pool.available(), 256 - batch.len());
        prop_assert!(batch.len() <= count);
        let mut again: BTreeMap<u16, Vec<Vec<u8>>> = BTreeMap::new();
        for bytes in segmented(&mut pool, batch) {
            let at = shape(&bytes).transport;
            let stream = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            again.entry(stream).or_default().push(bytes);
        }
        prop_assert_eq!(again, came);
        prop_assert_eq!(pool.available(), 256);
    }

    /// A stream of segments may contain anything, and its payload lies in one piece. The joined packet is the one that
    /// coalescing builds first, in the same form, and the bytes after it stay unchanged.
    #[test]
    fn join_gives_the_first_packet_that_coalesce_gives(
        template in template(true),
        events in prop::collection::vec(0u8..64, 1..60),
        last in 1usize..=100,
    ) {
        let mut pool = Pool::new(64);
        let (mut id, mut sequence) = (u16::MAX - 2, u32::MAX - 300);
        let mut packets = Vec::new();
        for (index, event) in events.iter().enumerate() {
            let mut template = template.clone();
            let mut flags = ACK;
            match event {
                0 => sequence = sequence.wrapping_add(1),
                1 => flags |= PSH,
                2 => flags |= FIN,
                3 => flags |= CWR,
                4 => flags |= ECE,
                5 => template.ttl ^= 1,
                6 => template.window ^= 1,
                7 => template.source_port ^= 1,
                8 => id = id.wrapping_add(3),
                _ => {}
            }
            let len = if index + 1 == events.len() { last } else { 100 };
            let mut bytes = template.packet(id, sequence, flags, &payload(index as u32, len));
            match event {
                9 => *bytes.last_mut().unwrap() ^= 0x10,
                10 if !template.v6 => bytes[11] ^= 1,
                11 => bytes[if template.v6 { 5 } else { 3 }] ^= 1,
                _ => {}
            }
            sequence = sequence.wrapping_add(len as u32);
            id = id.wrapping_add(1);
            packets.push(bytes);
        }
        let (first, others) = packets.split_first().unwrap();
        let header_len = first.len() - if others.is_empty() { last } else { 100 };
        let mut bytes = first.clone();
        for other in others {
            bytes.extend(&other[header_len..]);
        }
        let before = bytes.clone();
        let headers = others.iter().map(|bytes| &bytes[..header_len]);
        let joined = join(&mut bytes, first.len(), headers);
        let mut batch: Vec<_> = packets.iter().map(|bytes| pool.take_filled(bytes).unwrap()).collect();
        coalesce(&mut batch, Capabilities::ALL, &mut pool);
        let expected = &batch[0];
        match joined {
            None => {
                prop_assert_eq!(expected.offload.segmentation, None);
                prop_assert_eq!(bytes, before);
            }
            Some(joined) => {
                prop_assert_eq!(&bytes[..joined.len], expected.bytes());
                prop_assert_eq!(joined.offload, expected.offload);
                prop_assert_eq!(joined.segments as u64, expected.segments(header_len));
                prop_assert_eq!(&bytes[joined.len..], &before[joined.len..]);
            }
        }
    }

    #[test]
    fn arbitrary_bytes_neither_panic_nor_change(packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..10)) {
        let mut pool = Pool::new(16);
        let mut batch: Vec<_> = packets.iter().map(|bytes| pool.take_filled(bytes).unwrap()).collect();
        may_coalesce(&batch);
        coalesce(&mut batch, Capabilities::ALL, &mut pool);
        prop_assert_eq!(batch.len(), packets.len());
        for (mut packet, bytes) in batch.into_iter().zip(&packets) {
            prop_assert_eq!(packet.bytes(), bytes.as_slice());
            packet.offload.segmentation = Some(Segmentation { kind: SegmentKind::Tcp4, size: 10, ecn: false });
            let _ = segment(packet, 1500, &mut pool, &mut Vec::new());
        }
    }
}

/// Two segments that would merge if the second were not changed.
fn pair(change: impl Fn(&mut Template, &mut u16, &mut u32, &mut u8)) -> usize {
    let mut pool = Pool::new(4);
    let first = Template::plain();
    let (mut second, mut id, mut sequence, mut flags) = (first.clone(), 11, 1100, ACK);
    change(&mut second, &mut id, &mut sequence, &mut flags);
    let packets = [
        first.packet(10, 1000, ACK, &payload(1, 100)),
        second.packet(id, sequence, flags, &payload(2, 100)),
    ];
    let mut batch: Vec<_> = packets.iter().map(|b| pool.take_filled(b).unwrap()).collect();
    coalesce(&mut batch, Capabilities::ALL, &mut pool);
    batch.len()
}

#[test]
fn every_difference_that_segmentation_would_lose_forbids_merging() {
    assert_eq!(pair(|_, _, _, _| {}), 1);
    assert_eq!(pair(|_, _, _, flags| *flags |= PSH), 1);
    assert_eq!(pair(|_, _, _, flags| *flags |= FIN), 1);
    assert_eq!(pair(|_, id, _, _| *id = 10), 1, "a fixed identification with Don't Fragment");
    assert_eq!(pair(|_, id, _, _| *id = 12), 2);
    assert_eq!(pair(|_, _, sequence, _| *sequence += 1), 2);
    assert_eq!(pair(|_, _, sequence, _| *sequence -= 100), 2);
    for flag in [0x02, 0x04, 0x20, ECE, CWR] {
        assert_eq!(pair(|_, _, _, flags| *flags |= flag), 2, "flag {flag:#x}");
    }
    assert_eq!(pair(|t, _, _, _| t.ttl = 1), 2);
    assert_eq!(pair(|t, _, _, _| t.tos = 1), 2);
    assert_eq!(pair(|t, _, _, _| t.dont_fragment = false), 2);
    assert_eq!(pair(|t, _, _, _| t.ack += 1), 2);
    assert_eq!(pair(|t, _, _, _| t.window += 1), 2);
    assert_eq!(pair(|t, _, _, _| t.tcp_options = 2), 2);
    assert_eq!(pair(|t, _, _, _| t.ip_options = 1), 2);
    assert_eq!(pair(|t, _, _, _| t.source_port += 1), 2);
    assert_eq!(pair(|t, _, _, _| t.v6 = true), 2);
}

#[test]
fn a_run_ends_at_the_longest_ip_packet_and_another_begins() {
    let mut pool = Pool::new(128);
    let template = Template::plain();
    let mut batch = Vec::new();
    for index in 0..60u16 {
        let bytes =
            template.packet(index, u32::from(index) * 1400, ACK, &payload(u32::from(index), 1400));
        batch.push(pool.take_filled(&bytes).unwrap());
    }
    coalesce(&mut batch, Capabilities::ALL, &mut pool);
    let lens: Vec<usize> = batch.iter().map(|packet| packet.len()).collect();
    assert_eq!(lens, [52 + 46 * 1400, 52 + 14 * 1400]);
}

/// Datagrams of `len` bytes each, with identifications as one sender gives them.
fn datagrams(len: usize, count: u16) -> Vec<Vec<u8>> {
    let template = Template { tcp: false, ..Template::plain() };
    (0..count).map(|n| template.packet(n, 0, 0, &payload(n.into(), len))).collect()
}

fn merged(packets: &[Vec<u8>], change: impl Fn(usize, &mut Packet)) -> Vec<usize> {
    let mut pool = Pool::new(packets.len());
    let mut batch: Vec<_> = packets.iter().map(|b| pool.take_filled(b).unwrap()).collect();
    batch.iter_mut().enumerate().for_each(|(at, packet)| change(at, packet));
    coalesce(&mut batch, Capabilities::ALL, &mut pool);
    batch.iter().map(|packet| packet.segments(28) as usize).collect()
}

#[test]
fn a_run_of_datagrams_ends_where_a_socket_takes_no_more_and_another_begins() {
    assert_eq!(merged(&datagrams(18, 150), |_, _| {}), [64, 64, 22]);
    assert_eq!(merged(&datagrams(0, 3), |_, _| {}), [1, 1, 1], "empty ones would vanish");
}

#[test]
fn a_datagram_that_a_super_packet_could_not_give_back_passes_alone() {
    let all = datagrams(18, 4);
    let unchecked = |at: usize, packet: &mut Packet| {
        if at == 1 {
            packet.bytes_mut()[26..28].fill(0);
        }
    };
    assert_eq!(merged(&all, unchecked), [1, 1, 2], "no checksum");
    // UDP options (RFC 9868) follow after the length that the UDP header states.
    let mut shorter = all.clone();
    for packet in &mut shorter[2..] {
        packet[25] -= 2;
        let headers = shape(packet);
        let (head, payload) = packet.split_at_mut(headers.payload);
        headers.write_checksum(head, payload);
    }
    assert_eq!(merged(&shorter, |_, _| {}), [2, 1, 1], "more than the datagram");
    let partial = |_: usize, packet: &mut Packet| {
        let headers = shape(packet.bytes());
        let sum = fold(headers.pseudo_header(packet.bytes(), packet.len())).to_be_bytes();
        packet.bytes_mut()[26..28].copy_from_slice(&sum);
        packet.offload.checksum = Checksum::Partial { start: 20, offset: 6 };
    };
    assert_eq!(merged(&all, partial), [4], "unfinished, as a pod sends them");
}

#[test]
fn a_corrupt_segment_passes_alone_with_its_wrong_checksum() {
    let mut pool = Pool::new(8);
    let template = Template::plain();
    let mut packets: Vec<_> = (0..4u16)
        .map(|n| template.packet(n, u32::from(n) * 100, ACK, &payload(u32::from(n), 100)))
        .collect();
    packets[1][60] ^= 1;
    let mut batch: Vec<_> = packets.iter().map(|b| pool.take_filled(b).unwrap()).collect();
    coalesce(&mut batch, Capabilities::ALL, &mut pool);
    assert_eq!(batch.len(), 3);
    assert_eq!(batch[1].bytes(), packets[1]);
    assert_eq!(batch[1].offload, Offload::default());
}

#[test]
fn a_packet_that_cannot_be_segmented_is_returned_with_the_reason() {
    let mut pool = Pool::new(4);
    let mut out = Vec::new();
    let tcp = Template::plain().packet(1, 1, ACK, &payload(1, 4000));
    let udp = Template { tcp: false, ..Template::plain() }.packet(1, 0, 0, &payload(1, 4000));
    let mut try_one = |packet: Packet, mtu: usize| -> DropReason {
        let before = packet.bytes().to_vec();
        let (packet, reason) = segment(packet, mtu, &mut Pool::new(0), &mut out).unwrap_err();
        assert_eq!(packet.bytes(), before);
        assert!(out.is_empty());
        reason
    };
    assert_eq!(try_one(super_packet(&mut pool, &tcp, 1000), 1500), DropReason::NoBuffer);
    assert_eq!(try_one(super_packet(&mut pool, &tcp, 1000), 52), DropReason::TooBig);
    assert_eq!(try_one(super_packet(&mut pool, &udp, 1473), 1500), DropReason::TooBig);
    let mut pool = Pool::new(4);
    let mut wrong = super_packet(&mut pool, &tcp, 1000);
    wrong.offload.checksum = Checksum::Unverified;
    assert_eq!(try_one(wrong, 1500), DropReason::Malformed);
    let mut wrong = super_packet(&mut pool, &tcp, 1000);
    wrong.offload.segmentation =
        Some(Segmentation { kind: SegmentKind::Tcp6, size: 1000, ecn: false });
    assert_eq!(try_one(wrong, 1500), DropReason::Malformed);
    let mut long = pool.take_filled(&tcp).unwrap();
    long.offload.checksum = Checksum::Partial { start: 4050, offset: 16 };
    assert_eq!(try_one(long, 1500), DropReason::TooBig);
}
