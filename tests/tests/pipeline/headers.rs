//! Headers between the IP header and the ports: policy sees the ports behind them, or the packet is
//! dropped.

use etherparse::{IpNumber, Ipv4Header, Ipv4Options};
use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::tables::PortId;
use manx_tests::fabric::{Fabric, HOST, pod, policy};
use manx_tests::packet::{TCP, Tuple, UDP, change_v4, with_ttl};

const CLIENT: &str = "10.1.0.1";
const CLIENT6: &str = "fd00:1::1";
const SERVER: &str = "10.1.0.2";
const SERVER6: &str = "fd00:1::2";
/// IPv6's next header for destination options (RFC 8200, section 4.6).
const DESTINATION_OPTIONS: u8 = 60;
/// The most extension headers that are walked.
const LIMIT: usize = 8;

/// A server that accepts port 80.
fn fabric() -> (Fabric, PortId) {
    let only_80 = policy(
        "shop/server",
        "{podSelector: {matchLabels: {app: server}}, ingress: [{ports: [{port: 80}]}]}",
    );
    let fabric = Fabric::new(
        &(pod("shop/client", 0, "{app: client}", &[CLIENT, CLIENT6])
            + &pod("shop/server", 0, "{app: server}", &[SERVER, SERVER6])
            + &only_80),
    );
    let (_, client) = fabric.port("shop/client");
    (fabric, client)
}

/// Sends a packet that must be dropped for this reason, without any output.
fn dies(fabric: &mut Fabric, port: PortId, bytes: &[u8], reason: DropReason) {
    let before = fabric.nodes[0].dropped(port, reason);
    assert_eq!(fabric.send_at(0, port, bytes), []);
    let drops = fabric.nodes[0].drops();
    assert_eq!(fabric.nodes[0].dropped(port, reason), before + 1, "{drops:?}");
}

/// A packet with this many bytes of IPv4 options, all "no operation".
fn with_options(bytes: &[u8], len: usize) -> Vec<u8> {
    let (mut header, payload) = Ipv4Header::from_slice(bytes).unwrap();
    header.options = Ipv4Options::try_from(&vec![1; len][..]).unwrap();
    header.set_payload_len(payload.len()).unwrap();
    header.header_checksum = header.calc_header_checksum();
    let mut all = Vec::new();
    header.write(&mut all).unwrap();
    all.extend(payload);
    all
}

#[test]
fn ipv4_options_are_parsed_over() {
    let (mut fabric, client) = fabric();
    for len in [0, 4, 20, 40] {
        let to = |port: u16| with_options(&Tuple::new(CLIENT, SERVER, TCP, port).opening(), len);
        let delivered = fabric.send("shop/client", &to(80));
        assert_eq!(delivered.len(), 1, "{len} bytes of options");
        let expected = with_ttl(Tuple::new(CLIENT, SERVER, TCP, 80).opening(), 63);
        assert_eq!(delivered[0].frame.bytes, with_options(&expected, len), "and untouched");
        dies(&mut fabric, client, &to(81), DropReason::PolicyIngress);
    }
}

/// A packet with this many destination options headers after the IPv6 header.
fn with_extensions(bytes: &[u8], count: usize) -> Vec<u8> {
    let (ip, transport) = bytes.split_at(40);
    let mut next = ip[6];
    let mut extensions = Vec::new();
    for _ in 0..count {
        // Next header, length 8, one option that pads the other six bytes.
        extensions.splice(0..0, [next, 0, 1, 4, 0, 0, 0, 0]);
        next = DESTINATION_OPTIONS;
    }
    let mut all = [ip, &extensions, transport].concat();
    all[6] = next;
    let len = (extensions.len() + transport.len()) as u16;
    all[4..6].copy_from_slice(&len.to_be_bytes());
    all
}

#[test]
fn ipv6_extension_headers_are_walked_with_a_bound() {
    let (mut fabric, client) = fabric();
    let to = |port: u16, count: usize| {
        with_extensions(&Tuple::new(CLIENT6, SERVER6, TCP, port).opening(), count)
    };
    for count in 0..=LIMIT {
        assert_eq!(fabric.send("shop/client", &to(80, count)).len(), 1, "{count} headers");
        dies(&mut fabric, client, &to(81, count), DropReason::PolicyIngress);
    }
    for port in [80, 81] {
        dies(&mut fabric, client, &to(port, LIMIT + 1), DropReason::Malformed);
    }
}

#[test]
fn what_cannot_be_parsed_is_dropped_and_counted() {
    let (mut fabric, client) = fabric();
    let whole = Tuple::new(CLIENT, SERVER, TCP, 80).opening();
    let whole6 = Tuple::new(CLIENT6, SERVER6, TCP, 80).opening();
    let changed = |whole: &[u8], at: usize, byte: u8| {
        let mut bytes = whole.to_vec();
        bytes[at] = byte;
        bytes
    };
    let mut long = whole.clone();
    change_v4(&mut long, |ip| ip.total_len += 1);
    let mut no_transport = whole.clone();
    no_transport.truncate(24);
    change_v4(&mut no_transport, |ip| ip.total_len = 24);
    for (what, bytes) in [
        ("nothing", vec![]),
        ("no version", changed(&whole, 0, 0x05)),
        ("version 5", changed(&whole, 0, 0x55)),
        ("an IHL below 5", changed(&whole, 0, 0x44)),
        ("an IHL past the end", changed(&whole, 0, 0x4f)),
        ("a wrong checksum", changed(&whole, 8, 63)),
        ("a length past the end", long),
        ("a transport cut short", no_transport),
        ("an IPv6 header cut short", whole6[..39].to_vec()),
        ("an IPv6 length past the end", changed(&whole6, 5, 255)),
        ("an extension header cut short", changed(&whole6[..44], 6, DESTINATION_OPTIONS)),
        ("a routing header of type 0", {
            let mut bytes = with_extensions(&whole6, 1);
            (bytes[6], bytes[42], bytes[43]) = (IpNumber::IPV6_ROUTE_HEADER.0, 0, 1);
            bytes
        }),
    ] {
        let before = fabric.nodes[0].dropped(client, DropReason::Malformed);
        assert_eq!(fabric.send("shop/client", &bytes), [], "{what}");
        let drops = fabric.nodes[0].drops();
        let dropped = fabric.nodes[0].dropped(client, DropReason::Malformed);
        assert_eq!(dropped, before + 1, "{what}: {drops:?}");
    }
    assert_eq!(fabric.send("shop/client", &whole).len(), 1);
}

#[test]
fn no_error_is_sent_about_broadcasts_and_multicasts() {
    let (mut fabric, client) = fabric();
    for destination in ["255.255.255.255", "224.0.0.1", "239.1.2.3"] {
        let mut big = Tuple::new(CLIENT, destination, UDP, 53).data(&[0; 3000]);
        change_v4(&mut big, |ip| ip.dont_fragment = true);
        for ttl in [1, 64] {
            let small = Tuple::new(CLIENT, destination, UDP, 53).opening();
            dies(&mut fabric, client, &with_ttl(small, ttl), DropReason::NotForwardable);
            dies(&mut fabric, client, &with_ttl(big.clone(), ttl), DropReason::NotForwardable);
            let outside = Tuple::new("192.0.2.1", destination, UDP, 53).opening();
            dies(&mut fabric, HOST, &with_ttl(outside, ttl), DropReason::NotForwardable);
        }
    }
}
