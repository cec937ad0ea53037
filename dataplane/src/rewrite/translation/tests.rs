use etherparse::IpHeaders;
use proptest::prelude::*;

use super::*;
use crate::icmp::{ErrorKind, build_error};
use crate::packet::{Checksum, Pool};
use crate::wire::address::pseudo;
use crate::wire::arbitrary::{self, Transport};

/// Two ends. Their IPv6 or IPv4 addresses are such that routers forward packets to them.
fn ends() -> impl Strategy<Value = [([u8; 16], u16); 2]> {
    any::<[([u8; 16], u16); 2]>().prop_map(|ends| {
        ends.map(|(mut bytes, port)| {
            (bytes[0], bytes[12]) = (0xfd, 10);
            (bytes, port)
        })
    })
}

/// The translation to these ends. An echo has one identifier, which is the first port.
fn translation(
    is_v4: bool,
    ends: [([u8; 16], u16); 2],
    transport: &Transport,
    protocol: u8,
) -> Translation {
    let [from, to] = ends.map(|(bytes, port)| {
        let v4 = [bytes[12], bytes[13], bytes[14], bytes[15]];
        (if is_v4 { Address::v4(v4) } else { Address::v6(bytes) }, port)
    });
    let (key, orientation) = match (transport, is_v4) {
        (Transport::Echo { reply, .. }, _) => {
            let (request, answer) = if is_v4 { (8, 0) } else { (128, 129) };
            let types = if *reply { [answer, request] } else { [request, answer] };
            FlowKey::query(from.0, to.0, from.1, types, !reply, protocol)
        }
        _ => FlowKey::new(from.0, to.0, from.1, to.1, protocol),
    };
    Translation { key, orientation }
}

/// The headers with these ends in place of their own.
fn with_ends(
    headers: &IpHeaders,
    transport: &Transport,
    translation: &Translation,
) -> (IpHeaders, Transport) {
    let [from, to] = translation.ends();
    let (mut headers, mut transport) = (headers.clone(), transport.clone());
    match &mut headers {
        IpHeaders::Ipv4(header, _) => {
            [header.source, header.destination] =
                [from, to].map(|it| it.0.to_v4().unwrap().octets());
        }
        IpHeaders::Ipv6(header, _) => {
            [header.source, header.destination] = [from, to].map(|it| it.0.to_bits().to_be_bytes());
        }
    }
    match &mut transport {
        Transport::Tcp(header) => (header.source_port, header.destination_port) = (from.1, to.1),
        Transport::Udp(source, destination) | Transport::Sctp(source, destination) => {
            (*source, *destination) = (from.1, to.1);
        }
        Transport::Echo { reply, id, .. } => *id = if *reply { !from.1 } else { from.1 },
        Transport::Other(_) => {}
    }
    (headers, transport)
}

/// A packet with ports or an identifier.
fn packet() -> impl Strategy<Value = (IpHeaders, Transport, Vec<u8>)> {
    let has_ports = |transport: &Transport| !matches!(transport, Transport::Other(_));
    arbitrary::described()
        .prop_filter("it has ports", move |(_, transport, _)| has_ports(transport))
}

fn payload<'a>(bytes: &'a [u8], headers: &IpHeaders, transport: &Transport) -> &'a [u8] {
    let upper = match transport {
        Transport::Tcp(header) => header.header_len(),
        Transport::Udp(..) | Transport::Echo { .. } => 8,
        _ => 12,
    };
    &bytes[headers.header_len() + upper..]
}

proptest! {
    /// The adjusted checksums equal those that are computed from the whole packet with its new ends.
    #[test]
    fn a_translated_packet_is_the_one_that_its_new_ends_would_have_sent(
        (headers, transport, bytes) in packet(), ends in ends(),
    ) {
        let parsed = parse(&bytes).unwrap();
        let new = translation(parsed.is_v4(), ends, &transport, parsed.protocol);
        let (headers, transport) = with_ends(&headers, &transport, &new);
        let mut expected = arbitrary::build(&headers, &transport, payload(&bytes, &headers, &transport));
        if let Transport::Sctp(..) = transport {
            sctp::fill_checksum(&mut expected[headers.header_len()..]).unwrap();
        }
        let mut packet = Pool::new(1).take_filled(&bytes).unwrap();
        prop_assert_eq!(new.apply(&mut packet), Ok(()));
        if let Transport::Sctp(..) = transport && new.keeps_ports([parsed.source_port, parsed.destination_port]) {
            return Ok(());
        }
        prop_assert_eq!(packet.bytes(), expected);
    }

    /// A packet with a partial checksum, as a super-packet has, is translated like one with a finished checksum.
    #[test]
    fn a_partial_checksum_stays_one((_, transport, bytes) in packet(), ends in ends()) {
        let parsed = parse(&bytes).unwrap();
        let offset = match transport {
            Transport::Tcp(_) => tcp::CHECKSUM_OFFSET,
            Transport::Udp(..) => udp::CHECKSUM_OFFSET,
            _ => return Ok(()),
        };
        let new = translation(parsed.is_v4(), ends, &transport, parsed.protocol);
        let mut pool = Pool::new(2);
        let mut finished = pool.take_filled(&bytes).unwrap();
        new.apply(&mut finished).unwrap();
        let start = usize::from(parsed.transport_offset);
        let len = (bytes.len() - start) as u32;
        let seed = fold(pseudo(parsed.source, parsed.destination, parsed.protocol, len));
        let mut packet = pool.take_filled(&bytes).unwrap();
        packet.bytes_mut()[start + offset..][..2].copy_from_slice(&seed.to_be_bytes());
        packet.offload.checksum = Checksum::Partial { start: start as u16, offset: offset as u16 };
        prop_assert_eq!(new.apply(&mut packet), Ok(()));
        prop_assert!(packet.offload.checksum.is_partial());
        packet.complete_checksum().unwrap();
        prop_assert_eq!(packet.bytes(), finished.bytes());
    }

    /// A packet that is not parsed again gets the same bytes, whatever its checksum is and whatever follows after it.
    #[test]
    fn a_whole_packet_becomes_the_same_whether_it_is_parsed_again_or_not(
        (_, transport, mut bytes) in packet(), ends in ends(),
        checksum in prop_oneof![Just(None), Just(Some(0)), any::<u16>().prop_map(Some)],
        is_partial: bool, padding in 0..20_usize,
    ) {
        let parsed = parse(&bytes).unwrap();
        let start = parsed.transport_offset;
        let field = match transport {
            Transport::Tcp(_) => Some(tcp::CHECKSUM_OFFSET),
            Transport::Udp(..) => Some(udp::CHECKSUM_OFFSET),
            Transport::Sctp(..) => None,
            Transport::Echo { .. } | Transport::Other(_) => return Ok(()),
        };
        if let Some((field, checksum)) = field.zip(checksum) {
            bytes[usize::from(start) + field..][..2].copy_from_slice(&checksum.to_be_bytes());
        }
        bytes.resize(bytes.len() + padding, 0xa5);
        let new = translation(parsed.is_v4(), ends, &transport, parsed.protocol);
        let mut pool = Pool::new(2);
        let [mut general, mut short] = [(); 2].map(|()| pool.take_filled(&bytes).unwrap());
        if let Some(field) = field.filter(|_| is_partial) {
            let checksum = Checksum::Partial { start, offset: field as u16 };
            (general.offload.checksum, short.offload.checksum) = (checksum, checksum);
        }
        prop_assert_eq!(new.apply(&mut general), Ok(()));
        prop_assert_eq!(new.apply_to_whole(&mut short), Ok(()));
        prop_assert_eq!(short.bytes(), general.bytes());
        prop_assert_eq!(short.offload, general.offload);
    }

    /// An error about a translated packet becomes the error that the packet's sender would have got about its own
    /// packet.
    #[test]
    fn an_error_is_translated_to_one_about_the_packet_before(
        (_, transport, bytes) in packet(), old in ends(), new in ends(), by_the_end: bool,
    ) {
        let parsed = parse(&bytes).unwrap();
        let is_v4 = parsed.is_v4();
        let [old, new] = [old, new].map(|ends| translation(is_v4, ends, &transport, parsed.protocol));
        let mut pool = Pool::new(4);
        let mut sent = pool.take_filled(&bytes).unwrap();
        old.apply(&mut sent).unwrap();
        let mut went = pool.take_filled(sent.bytes()).unwrap();
        new.apply(&mut went).unwrap();
        let router = if is_v4 { Address::v4([10, 0, 0, 1]) } else { Address::v6([0xfd; 16]) };
        let mut error = |about: &Packet, of: &Translation| {
            let from = if by_the_end { of.ends()[1].0 } else { router };
            let parsed = parse(about.bytes()).unwrap();
            build_error(about.bytes(), &parsed, ErrorKind::HostUnreachable, from, &mut pool).unwrap()
        };
        let (expected, mut packet) = (error(&sent, &old), error(&went, &new));
        prop_assert_eq!(old.apply(&mut packet), Ok(()));
        let (found, expected) = (packet.bytes(), expected.bytes());
        if let Transport::Sctp(..) = transport {
            // The quoted checksum covers the whole packet, which is not all quoted, so it is not compared.
            let quoted = 2 * usize::from(parsed.transport_offset) + if is_v4 { 8 } else { 0 };
            prop_assert_eq!(&found[..quoted.min(20)], &expected[..quoted.min(20)]);
        } else {
            prop_assert_eq!(found, expected);
        }
        let read = parse(found).unwrap();
        let message = &found[usize::from(read.transport_offset)..usize::from(read.total_len)];
        prop_assert!(crate::checksum::tests::transport_is_right(read.source, read.destination, read.protocol, message));
    }
}

#[test]
fn a_later_fragment_gets_addresses_alone() {
    let mut bytes = vec![0; ipv4::HEADER_LEN + 16];
    bytes[..10].copy_from_slice(&[0x45, 0, 0, 36, 0, 7, 0, 2, 64, protocol::UDP]);
    bytes[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    ipv4::View::new_checked_mut(&mut bytes[..]).unwrap().fill_checksum();
    let ends = [([10; 16], 1000), ([10; 16], 80)];
    let new = translation(true, ends, &Transport::Udp(0, 0), protocol::UDP);
    let mut packet = Pool::new(1).take_filled(&bytes).unwrap();
    new.apply(&mut packet).unwrap();
    let parsed = parse(packet.bytes()).unwrap();
    assert_eq!((parsed.source, parsed.destination), (new.ends()[0].0, new.ends()[1].0));
    assert_eq!(packet.bytes()[ipv4::HEADER_LEN..], bytes[ipv4::HEADER_LEN..]);
}

#[test]
fn a_datagram_without_a_checksum_gets_none() {
    let mut bytes = vec![0; ipv4::HEADER_LEN + 12];
    bytes[..10].copy_from_slice(&[0x45, 0, 0, 32, 0, 7, 0, 0, 64, protocol::UDP]);
    bytes[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    bytes[ipv4::HEADER_LEN + 5] = 12;
    ipv4::View::new_checked_mut(&mut bytes[..]).unwrap().fill_checksum();
    let new =
        translation(true, [([10; 16], 1000), ([10; 16], 80)], &Transport::Udp(0, 0), protocol::UDP);
    let mut packet = Pool::new(1).take_filled(&bytes).unwrap();
    new.apply(&mut packet).unwrap();
    assert_eq!(packet.bytes()[ipv4::HEADER_LEN + udp::CHECKSUM_OFFSET..][..2], [0; 2]);
}
