//! The key under which a packet's flow is known, and what policy is asked for it.

use manx_policy_compiler::model::{Protocol, Shown, Transport};

use crate::flow::{FlowEntry, FlowKey, Orientation};
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
    key(parsed.source, parsed.destination, ports, parsed.protocol, parsed.icmp())
}

/// Asking and answering are different ends of a query's flow: a request never passes as the reply to another one.
#[inline(never)]
pub(super) fn key(
    source: Address,
    destination: Address,
    ports: [u16; 2],
    upper: u8,
    icmp: Option<(u8, u8)>,
) -> (FlowKey, Orientation) {
    let Some((kind, code)) = icmp else {
        return FlowKey::new(source, destination, ports[0], ports[1], upper);
    };
    match query(source, upper, kind) {
        Some((other, asks)) if code == 0 => {
            FlowKey::query(source, destination, ports[0], [kind, other], asks, upper)
        }
        _ => FlowKey::message(source, destination, kind, code, upper),
    }
}

/// Of an ICMP query or reply the other's type, and whether it is the query. The other family's ICMP asks nothing.
pub(super) fn query(source: Address, upper: u8, kind: u8) -> Option<(u8, bool)> {
    match (upper, source.is_v4()) {
        (protocol::ICMPV4, true) => icmpv4::kind::query(kind),
        (protocol::ICMPV6, false) => icmpv6::kind::query(kind),
        _ => None,
    }
}

/// What policy is asked for a flow: what its first packet showed.
pub(super) fn transport(entry: &FlowEntry) -> Transport {
    let (key, original) = (entry.key(), entry.original());
    let protocol = key.protocol();
    let shown = match (protocol, Protocol::from_number(protocol)) {
        (protocol::ICMPV4 | protocol::ICMPV6, _) => {
            let low = key.icmp_type();
            match (key.icmp_code(), original) {
                (Some(code), _) => Shown::Icmp { kind: low, code },
                (None, Orientation::LowToHigh) => Shown::Icmp { kind: low, code: 0 },
                (None, Orientation::HighToLow) => {
                    let other = query(key.source(original).0, protocol, low);
                    Shown::Icmp { kind: other.map_or(low, |(other, _)| other), code: 0 }
                }
            }
        }
        (_, Some(_)) => Shown::Ports {
            source: key.source(original).1,
            destination: key.destination(original).1,
        },
        _ => Shown::Nothing,
    };
    Transport { protocol, shown }
}
