use std::net::IpAddr;

use etherparse::{Icmpv4Type, Icmpv6Type, SlicedPacket, TransportSlice, icmpv4, icmpv6};
use proptest::prelude::*;

use super::*;
use crate::parse::parse;
use crate::wire::{Malformed, arbitrary};

const ERRORS: [ErrorKind; 4] = [
    ErrorKind::TooBig { mtu: 1480 },
    ErrorKind::TimeExceeded,
    ErrorKind::HostUnreachable,
    ErrorKind::PortUnreachable,
];

fn ours(v4: bool) -> Address {
    let v6 = IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]);
    if v4 { Address::v4([10, 0, 0, 1]) } else { v6.into() }
}

/// Sets a source and a destination for which errors about the packet may be sent.
fn addressed(mut bytes: Vec<u8>, last: u8) -> Vec<u8> {
    if bytes[0] >> 4 == 4 {
        bytes[12..20].copy_from_slice(&[10, 0, 0, last, 10, 0, 1, 9]);
        ipv4::View::new_checked_mut(&mut bytes[..]).unwrap().fill_checksum();
    } else {
        bytes[8..40].fill(0);
        (bytes[8], bytes[23], bytes[24], bytes[39]) = (0xfd, last, 0xfd, 9);
    }
    bytes
}

fn ask(bytes: &[u8], error: ErrorKind) -> Option<Packet> {
    let parsed = parse(bytes).unwrap();
    build_error(bytes, &parsed, error, ours(parsed.is_v4()), &mut Pool::new(1))
}

proptest! {
    #[test]
    fn an_answer_reads_right_and_quotes_what_it_is_about(
        (_, _, bytes) in arbitrary::described(), error in prop::sample::select(&ERRORS[..]),
    ) {
        let bytes = addressed(bytes, 7);
        let about = parse(&bytes).unwrap();
        let answer = ask(&bytes, error).unwrap();
        let parsed = parse(answer.bytes()).unwrap();
        prop_assert_eq!((parsed.source, parsed.destination), (ours(about.is_v4()), about.source));
        prop_assert_eq!(usize::from(parsed.total_len), answer.len());
        let message = &answer.bytes()[usize::from(parsed.transport_offset)..];
        prop_assert!(checksum::tests::transport_is_right(parsed.source, parsed.destination, parsed.protocol, message));

        let sliced = SlicedPacket::from_ip(answer.bytes()).unwrap();
        let quote = match sliced.transport.unwrap() {
            TransportSlice::Icmpv4(icmp) => {
                use icmpv4::{DestUnreachableHeader as Header, TimeExceededCode as Code};
                prop_assert!(answer.len() <= 576);
                prop_assert_eq!(icmp.header().icmp_type.calc_checksum(icmp.payload()), icmp.checksum());
                let expected = match error {
                    ErrorKind::TooBig { .. } => Icmpv4Type::DestinationUnreachable(
                        Header::FragmentationNeeded { next_hop_mtu: 1480 }),
                    ErrorKind::TimeExceeded => Icmpv4Type::TimeExceeded(Code::TtlExceededInTransit),
                    ErrorKind::HostUnreachable => Icmpv4Type::DestinationUnreachable(Header::Host),
                    ErrorKind::PortUnreachable => Icmpv4Type::DestinationUnreachable(Header::Port),
                };
                prop_assert_eq!(icmp.icmp_type(), expected);
                icmp.payload().to_vec()
            }
            TransportSlice::Icmpv6(icmp) => {
                use icmpv6::{DestUnreachableCode as Unreachable, TimeExceededCode as Code};
                prop_assert!(answer.len() <= 1280);
                let address = |a: Address| a.to_bits().to_be_bytes();
                prop_assert!(icmp.is_checksum_valid(address(parsed.source), address(parsed.destination)));
                let expected = match error {
                    ErrorKind::TooBig { mtu } => Icmpv6Type::PacketTooBig { mtu },
                    ErrorKind::TimeExceeded => Icmpv6Type::TimeExceeded(Code::HopLimitExceeded),
                    ErrorKind::HostUnreachable => Icmpv6Type::DestinationUnreachable(Unreachable::Address),
                    ErrorKind::PortUnreachable => Icmpv6Type::DestinationUnreachable(Unreachable::Port),
                };
                prop_assert_eq!(icmp.icmp_type(), expected);
                icmp.payload().to_vec()
            }
            other => panic!("{other:?}"),
        };
        prop_assert!(bytes.starts_with(&quote));
        let full = if parsed.is_v4() { 576 } else { 1280 };
        prop_assert!(quote.len() == bytes.len() || answer.len() == full);

        let inner = parse_quoted(answer.bytes(), &parsed).unwrap();
        prop_assert_eq!((inner.source, inner.destination, inner.protocol), (about.source, about.destination, about.protocol));
        prop_assert_eq!((inner.source_port, inner.destination_port), (about.source_port, about.destination_port));

        prop_assert!(ask(answer.bytes(), error).is_none(), "no error about an error");
    }

    #[test]
    fn arbitrary_quotes_never_panic((_, _, bytes) in arbitrary::described(), quote: Vec<u8>) {
        let mut answer = ask(&addressed(bytes, 7), ErrorKind::TimeExceeded).unwrap();
        let parsed = parse(answer.bytes()).unwrap();
        let at = usize::from(parsed.header_len);
        for (byte, new) in answer.bytes_mut()[at..].iter_mut().zip(quote) {
            *byte = new;
        }
        let _ = parse_quoted(answer.bytes(), &parsed);
    }
}

/// An IPv4 UDP packet between the addresses.
fn v4(source: [u8; 4], destination: [u8; 4], flags_offset: u16) -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0, 36, 0, 7, 0, 0, 64, 17, 0, 0];
    bytes[6..8].copy_from_slice(&flags_offset.to_be_bytes());
    bytes.extend([source, destination].concat());
    bytes.extend([0, 53, 4, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    ipv4::View::new_checked_mut(&mut bytes[..]).unwrap().fill_checksum();
    bytes
}

#[test]
fn nothing_is_said_to_nobody_about_many_or_about_later_fragments() {
    let (one, other) = ([10, 0, 0, 7], [10, 0, 1, 9]);
    for (source, destination, word, told) in [
        (one, other, 0, true),
        (one, other, ipv4::MORE_FRAGMENTS, true),
        (one, other, 3, false),
        ([0; 4], other, 0, false),
        ([255; 4], other, 0, false),
        ([127, 0, 0, 1], other, 0, false),
        ([224, 0, 0, 1], other, 0, false),
        (one, [255; 4], 0, false),
        (one, [224, 0, 0, 1], 0, false),
    ] {
        let bytes = v4(source, destination, word);
        assert_eq!(
            ask(&bytes, ErrorKind::TimeExceeded).is_some(),
            told,
            "{source:?} {destination:?} {word}"
        );
    }
}

#[test]
fn an_ipv6_multicast_packet_may_only_be_too_big() {
    let mut bytes = vec![0; 48];
    (bytes[0], bytes[5], bytes[6], bytes[7]) = (0x60, 8, 17, 64);
    (bytes[8], bytes[24], bytes[39], bytes[45]) = (0xfd, 0xff, 1, 8);
    assert!(ask(&bytes, ErrorKind::TooBig { mtu: 1280 }).is_some());
    assert!(ask(&bytes, ErrorKind::TimeExceeded).is_none());
    bytes[8] = 0;
    assert!(ask(&bytes, ErrorKind::TooBig { mtu: 1280 }).is_none(), "the unspecified source");
}

#[test]
fn the_quote_of_a_super_packet_can_be_read() {
    let mut bytes = v4([10, 0, 0, 7], [10, 0, 1, 9], 0);
    bytes.resize(60_000, 1);
    bytes[24..26].copy_from_slice(&59_980u16.to_be_bytes());
    ipv4::View::new_checked_mut(&mut bytes[..]).unwrap().set_total_len(60_000);
    let answer = ask(&bytes, ErrorKind::TooBig { mtu: 1480 }).unwrap();
    let inner = parse_quoted(answer.bytes(), &parse(answer.bytes()).unwrap()).unwrap();
    assert_eq!((inner.source_port, inner.destination_port), (53, 1024));
}

#[test]
fn a_quote_that_names_no_flow_of_the_receivers_is_nothing() {
    let answer = ask(&v4([10, 0, 0, 7], [10, 0, 1, 9], 0), ErrorKind::TimeExceeded).unwrap();
    let tell = |change: &dyn Fn(&mut [u8])| {
        let mut bytes = answer.bytes().to_vec();
        change(&mut bytes);
        let parsed = parse(&bytes).map_err(|Malformed| "malformed").unwrap();
        parse_quoted(&bytes, &parsed)
    };
    assert!(tell(&|_| ()).is_some());
    assert!(tell(&|b| b[20] = 5).is_none(), "a redirect");
    assert!(tell(&|b| b[28 + 15] = 8).is_none(), "another sender");
    assert!(tell(&|b| b[28 + 7] = 1).is_none(), "a later fragment");
    assert!(tell(&|b| (b[28 + 9], b[48]) = (1, 3)).is_none(), "an error about an error");
    assert!(tell(&|b| b[28] = 0x65).is_none(), "another family");
    let mut short = answer.bytes()[..51].to_vec();
    ipv4::View::new_quoted_mut(&mut short[..]).unwrap().set_total_len(51);
    assert!(parse_quoted(&short, &parse(&short).unwrap()).is_none(), "ports cut off");
}

#[test]
fn over_ipv6_only_the_errors_that_are_defined_are_about_a_packet() {
    let mut bytes = vec![0; 48];
    (bytes[0], bytes[5], bytes[6], bytes[7]) = (0x60, 8, 17, 64);
    (bytes[8], bytes[24], bytes[39], bytes[45]) = (0xfd, 0xfd, 1, 8);
    let answer = ask(&bytes, ErrorKind::TimeExceeded).unwrap();
    for kind in 0..128 {
        let mut bytes = answer.bytes().to_vec();
        bytes[40] = kind;
        let parsed = parse(&bytes).unwrap();
        assert!(parsed.is_icmp_error());
        assert_eq!(parse_quoted(&bytes, &parsed).is_some(), (1..=4).contains(&kind), "type {kind}");
    }
}

#[test]
fn without_a_buffer_there_is_no_answer() {
    let bytes = v4([10, 0, 0, 7], [10, 0, 1, 9], 0);
    let parsed = parse(&bytes).unwrap();
    assert!(
        build_error(&bytes, &parsed, ErrorKind::TimeExceeded, ours(true), &mut Pool::new(0))
            .is_none()
    );
}
