//! The key of a packet's flow, and the packet as policy judges it.

use manx_policy_compiler::model::{L4Header, Protocol, Transport};

use crate::flow::{FlowKey, Orientation};
use crate::parse::Parsed;
use crate::wire::address::Address;
use crate::wire::{icmpv4, icmpv6, protocol};

/// The key of a packet's flow.
#[inline]
pub fn flow_key(parsed: &Parsed) -> (FlowKey, Orientation) {
    if parsed.has_ports {
        return FlowKey::new(
            parsed.source,
            parsed.destination,
            parsed.source_port,
            parsed.destination_port,
            parsed.protocol,
        );
    }
    let ports = [parsed.source_port, parsed.destination_port];
    key_from_parts(parsed.source, parsed.destination, ports, parsed.protocol, parsed.icmp())
}

/// The two ends of an ICMP query's flow have different ports, one for the side that asks and one for the side that
/// answers. So a request never passes as the reply to another request.
#[inline(never)]
pub(super) fn key_from_parts(
    source: Address,
    destination: Address,
    ports: [u16; 2],
    upper: u8,
    icmp: Option<(u8, u8)>,
) -> (FlowKey, Orientation) {
    let Some((kind, code)) = icmp else {
        return FlowKey::new(source, destination, ports[0], ports[1], upper);
    };
    match icmp_query(source, upper, kind) {
        Some((other, asks)) if code == 0 => {
            FlowKey::query(source, destination, ports[0], [kind, other], asks, upper)
        }
        _ => FlowKey::message(source, destination, kind, code, upper),
    }
}

/// The key and orientation of a packet after its source and destination have been replaced. For an ICMP query, the port
/// of the source is the identifier, and the port of the destination is ignored.
pub(super) fn key_with_ends(
    key: &FlowKey,
    orientation: Orientation,
    source: (Address, u16),
    destination: (Address, u16),
) -> (FlowKey, Orientation) {
    let protocol = key.protocol();
    if Protocol::from_number(protocol).is_some() {
        return FlowKey::new(source.0, destination.0, source.1, destination.1, protocol);
    }
    let (icmp, ports) = match l4_without_ports(*key, orientation) {
        L4Header::Icmp { kind, code } => (Some((kind, code)), [source.1; 2]),
        _ => (None, [source.1, destination.1]),
    };
    key_from_parts(source.0, destination.0, ports, protocol, icmp)
}

/// For an ICMP query or reply: the type of the packets in the other direction, and whether this packet is the query.
pub(super) fn icmp_query(source: Address, upper: u8, kind: u8) -> Option<(u8, bool)> {
    match (upper, source.is_v4()) {
        (protocol::ICMPV4, true) => icmpv4::kind::query(kind),
        (protocol::ICMPV6, false) => icmpv6::kind::query(kind),
        _ => None,
    }
}

/// The protocol and L4 header of a packet with this key and orientation, as policy judges them.
#[inline(always)]
#[expect(clippy::inline_always, reason = "every new flow")]
pub(super) fn transport(key: &FlowKey, orientation: Orientation) -> Transport {
    let protocol = key.protocol();
    let l4 = if Protocol::from_number(protocol).is_some() {
        let [source, destination] = [key.source(orientation).1, key.destination(orientation).1];
        L4Header::Ports { source, destination }
    } else {
        l4_without_ports(*key, orientation)
    };
    Transport { protocol, l4 }
}

#[inline(never)]
fn l4_without_ports(key: FlowKey, orientation: Orientation) -> L4Header {
    let protocol = key.protocol();
    if !matches!(protocol, protocol::ICMPV4 | protocol::ICMPV6) {
        return L4Header::Nothing;
    }
    let low = key.icmp_type();
    match (key.icmp_code(), orientation) {
        (Some(code), _) => L4Header::Icmp { kind: low, code },
        (None, Orientation::LowToHigh) => L4Header::Icmp { kind: low, code: 0 },
        (None, Orientation::HighToLow) => {
            let other = icmp_query(key.source(orientation).0, protocol, low);
            L4Header::Icmp { kind: other.map_or(low, |(other, _)| other), code: 0 }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::parse::parse;
    use crate::wire::arbitrary::{packet4, packet6};

    proptest! {
        #[test]
        fn a_key_holds_all_that_policy_needs_of_a_packet(
            mut bytes in prop_oneof![packet4(), packet6()],
            kind in prop_oneof![any::<u8>(), prop::sample::select(&[0, 8, 13, 14, 128, 129][..])],
            code in prop_oneof![Just(0), any::<u8>()],
        ) {
            let Ok(parsed) = parse(&bytes) else { return Ok(()) };
            if parsed.icmp().is_some()
                && let Some(said) = bytes.get_mut(parsed.transport_offset.into()..)
                && let Some(said) = said.first_chunk_mut()
            {
                *said = [kind, code];
            }
            let Ok(parsed) = parse(&bytes) else { return Ok(()) };
            let l4 = match parsed.icmp() {
                Some((kind, code)) => L4Header::Icmp { kind, code },
                None if parsed.has_ports => {
                    L4Header::Ports { source: parsed.source_port, destination: parsed.destination_port }
                }
                None => L4Header::Nothing,
            };
            let (key, orientation) = flow_key(&parsed);
            let asked = Transport { protocol: parsed.protocol, l4 };
            prop_assert_eq!(transport(&key, orientation), asked);
            prop_assert_eq!(key.source(orientation).0, parsed.source);
            prop_assert_eq!(key.destination(orientation).0, parsed.destination);
        }
    }
}
