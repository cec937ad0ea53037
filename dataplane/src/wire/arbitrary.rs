//! Valid packets for tests, built by etherparse from generated headers.

use etherparse::{
    IpAuthHeader, IpDscp, IpEcn, IpFragOffset, IpHeaders, IpNumber, Ipv4Header, Ipv4Options,
    Ipv6Extensions, Ipv6FlowLabel, Ipv6FragmentHeader, Ipv6Header, Ipv6RawExtHeader,
    Ipv6RoutingExtensions, PacketBuilder, TcpHeader,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// The bytes after the IP headers.
#[derive(Debug, Clone)]
pub(crate) enum Transport {
    Tcp(Box<TcpHeader>),
    Udp(u16, u16),
    Sctp(u16, u16),
    Echo { reply: bool, id: u16, sequence: u16 },
    Other(u8),
}

fn tcp_header() -> impl Strategy<Value = TcpHeader> {
    let numbers: (_, _, _, _, _, _) =
        (any::<u16>(), any::<u16>(), any::<u32>(), any::<u32>(), any::<u16>(), any::<u16>());
    (numbers, any::<u8>(), vec(Just(1u8), 0..=40)).prop_map(|(n, flags, options)| {
        let mut header = TcpHeader::new(n.0, n.1, n.2, n.4);
        header.acknowledgment_number = n.3;
        header.urgent_pointer = n.5;
        [header.fin, header.syn, header.rst, header.psh] =
            [0, 1, 2, 3].map(|bit| flags >> bit & 1 != 0);
        [header.ack, header.urg, header.ece, header.cwr] =
            [4, 5, 6, 7].map(|bit| flags >> bit & 1 != 0);
        header.set_options_raw(&options).unwrap();
        header
    })
}

fn transport() -> impl Strategy<Value = Transport> {
    prop_oneof![
        tcp_header().prop_map(|header| Transport::Tcp(Box::new(header))),
        any::<(u16, u16)>().prop_map(|(s, d)| Transport::Udp(s, d)),
        any::<(u16, u16)>().prop_map(|(s, d)| Transport::Sctp(s, d)),
        any::<(bool, u16, u16)>().prop_map(|(reply, id, sequence)| Transport::Echo {
            reply,
            id,
            sequence
        }),
        prop_oneof![Just(4u8), Just(47), Just(50), Just(59), Just(253)].prop_map(Transport::Other),
    ]
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![vec(any::<u8>(), 0..64), vec(any::<u8>(), 0..3000)]
}

/// Options of RFC 791: no operation, record route (not copied), router alert and security (copied).
fn options4() -> impl Strategy<Value = Ipv4Options> {
    let option = prop_oneof![
        Just(vec![1]),
        Just(vec![7, 7, 4, 0, 0, 0, 0]),
        Just(vec![0x94, 4, 0, 0]),
        Just(vec![0x82, 5, 9, 9, 9])
    ];
    vec(option, 0..6).prop_map(|options| {
        let mut bytes = options.concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        Ipv4Options::try_from(&bytes[..]).unwrap()
    })
}

fn headers4() -> impl Strategy<Value = IpHeaders> {
    let flags = (0u8..64, 0u8..4, any::<u16>(), any::<bool>(), any::<u8>());
    (flags, any::<[u8; 4]>(), any::<[u8; 4]>(), options4()).prop_map(
        |((dscp, ecn, id, df, ttl), source, destination, options)| {
            let mut header = Ipv4Header::new(0, ttl, IpNumber::UDP, source, destination).unwrap();
            header.dscp = IpDscp::try_new(dscp).unwrap();
            header.ecn = IpEcn::try_new(ecn).unwrap();
            header.identification = id;
            header.dont_fragment = df;
            header.options = options;
            IpHeaders::Ipv4(header, etherparse::Ipv4Extensions::default())
        },
    )
}

fn extensions6() -> impl Strategy<Value = Ipv6Extensions> {
    let raw = || Ipv6RawExtHeader::new_raw(IpNumber::UDP, &[0; 14]).unwrap();
    any::<[bool; 5]>().prop_map(move |with| Ipv6Extensions {
        hop_by_hop_options: with[0].then(raw),
        destination_options: with[1].then(raw),
        routing: with[2].then(|| Ipv6RoutingExtensions {
            routing: raw(),
            final_destination_options: with[1].then(raw),
        }),
        fragment: with[3]
            .then(|| Ipv6FragmentHeader::new(IpNumber::UDP, IpFragOffset::ZERO, false, 7)),
        auth: with[4].then(|| IpAuthHeader::new(IpNumber::UDP, 1, 2, &[0; 12]).unwrap()),
    })
}

fn headers6() -> impl Strategy<Value = IpHeaders> {
    (any::<u8>(), 0u32..1 << 20, any::<u8>(), any::<[u8; 16]>(), any::<[u8; 16]>(), extensions6())
        .prop_map(|(class, label, hop_limit, source, destination, extensions)| {
            let header = Ipv6Header {
                traffic_class: class,
                flow_label: Ipv6FlowLabel::try_new(label).unwrap(),
                hop_limit,
                source,
                destination,
                ..Ipv6Header::default()
            };
            IpHeaders::Ipv6(header, extensions)
        })
}

/// Builds a packet with correct lengths and checksums.
pub(crate) fn build(headers: &IpHeaders, transport: &Transport, payload: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ip(headers.clone());
    let v4 = headers.ipv4().is_some();
    let mut bytes = Vec::new();
    match (transport, v4) {
        (Transport::Tcp(header), _) => {
            builder.tcp_header((**header).clone()).write(&mut bytes, payload)
        }
        (&Transport::Udp(source, destination), _) => {
            builder.udp(source, destination).write(&mut bytes, payload)
        }
        (&Transport::Echo { reply: false, id, sequence }, true) => {
            builder.icmpv4_echo_request(id, sequence).write(&mut bytes, payload)
        }
        (&Transport::Echo { reply: true, id, sequence }, true) => {
            builder.icmpv4_echo_reply(id, sequence).write(&mut bytes, payload)
        }
        (&Transport::Echo { reply: false, id, sequence }, false) => {
            builder.icmpv6_echo_request(id, sequence).write(&mut bytes, payload)
        }
        (&Transport::Echo { reply: true, id, sequence }, false) => {
            builder.icmpv6_echo_reply(id, sequence).write(&mut bytes, payload)
        }
        (&Transport::Sctp(source, destination), _) => {
            let ports = [source.to_be_bytes(), destination.to_be_bytes()].concat();
            let packet = [&ports[..], &[0; 8], payload].concat();
            builder.write(&mut bytes, IpNumber::SCTP, &packet)
        }
        (&Transport::Other(protocol), _) => builder.write(&mut bytes, IpNumber(protocol), payload),
    }
    .unwrap();
    bytes
}

/// A whole IPv4 packet.
pub(crate) fn packet4() -> impl Strategy<Value = Vec<u8>> {
    (headers4(), transport(), payload()).prop_map(|(h, t, p)| build(&h, &t, &p))
}

/// A whole IPv6 packet. Some have the header of an atomic fragment (RFC 6946).
pub(crate) fn packet6() -> impl Strategy<Value = Vec<u8>> {
    (headers6(), transport(), payload()).prop_map(|(h, t, p)| build(&h, &t, &p))
}

/// A whole packet, and the headers that it was built from.
pub(crate) fn described() -> impl Strategy<Value = (IpHeaders, Transport, Vec<u8>)> {
    (prop_oneof![headers4().boxed(), headers6().boxed()], transport(), payload()).prop_map(
        |(headers, transport, payload)| {
            let bytes = build(&headers, &transport, &payload);
            (headers, transport, bytes)
        },
    )
}

/// A TCP segment.
pub(crate) fn tcp() -> impl Strategy<Value = Vec<u8>> {
    (tcp_header(), payload()).prop_map(|(header, payload)| {
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend(payload);
        bytes
    })
}

/// A UDP datagram.
pub(crate) fn udp() -> impl Strategy<Value = Vec<u8>> {
    (any::<(u16, u16)>(), payload()).prop_map(|((source, destination), payload)| {
        let header =
            etherparse::UdpHeader::without_ipv4_checksum(source, destination, payload.len())
                .unwrap();
        [&header.to_bytes()[..], &payload].concat()
    })
}
