//! Values that occur in several of Calico's kinds.

use ipnet::IpNet;
use manx_policy_compiler::selector::Selector;

use super::super::code::Code;
use super::super::cursor::{Cursor, Findings};
use super::super::object::calico::{Action, Order, Port};
use super::super::problem::Cause;
use super::super::syntax::{PORT_NAME, PORT_NUMBER, address, cidr, is_port_name, port_number};
use super::super::tree::Value;

/// The protocol numbers of IANA that checks need.
pub(super) const ICMP: u8 = 1;
pub(super) const ICMPV6: u8 = 58;
const WITH_PORTS: [u8; 3] = [6, 17, 132];

const PROTOCOL: &str = "TCP, UDP, ICMP, ICMPv6, SCTP, UDPLite or a number from 1 to 255";
pub(super) const NET: &str = "a CIDR without host bits, such as 10.0.0.0/8 or fd00::/64";
const SELECTOR: &str = "a selector such as app == 'web'";

/// Returns whether packets of a protocol have ports that policy can match.
pub(super) fn has_ports(protocol: u8) -> bool {
    WITH_PORTS.contains(&protocol)
}

/// Reads a protocol, as IANA's number.
pub(super) fn protocol(cursor: &Cursor<'_>, out: &mut Findings) -> Option<u8> {
    let protocol = match &cursor.node.value {
        Value::Integer(number) => u8::try_from(*number).ok(),
        Value::String(text) => match &**text {
            "TCP" => Some(6),
            "UDP" => Some(17),
            "ICMP" => Some(ICMP),
            "ICMPv6" => Some(ICMPV6),
            "SCTP" => Some(132),
            "UDPLite" => Some(136),
            digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok(),
            _ => None,
        },
        _ => None,
    };
    let protocol = protocol.filter(|number| *number != 0);
    if protocol.is_none() {
        cursor.expected(out, PROTOCOL);
    }
    protocol
}

/// Reads a port, a range written `first:last`, or a port's name.
pub(super) fn port(cursor: &Cursor<'_>, out: &mut Findings) -> Option<Port> {
    let port = match &cursor.node.value {
        Value::Integer(number) => port_number(*number).map(|port| Port::Range(port, port)),
        Value::String(text) => port_text(text),
        _ => None,
    };
    if port.is_none() {
        let expected = format!("{PORT_NUMBER}, a range such as 80:90, or {PORT_NAME}");
        cursor.expected(out, expected);
    }
    port
}

fn port_text(text: &str) -> Option<Port> {
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse().ok()).flatten().and_then(port_number)
    };
    if let Some((first, last)) = text.split_once(':') {
        let (first, last) = (number(first)?, number(last)?);
        return (first <= last).then_some(Port::Range(first, last));
    }
    match number(text) {
        Some(port) => Some(Port::Range(port, port)),
        None => is_port_name(text).then(|| Port::Name(text.to_owned())),
    }
}

/// Reads a net of a rule or a pool. The net needs a prefix length and may not have host bits.
pub(super) fn net(cursor: &Cursor<'_>, out: &mut Findings) -> Option<IpNet> {
    cursor.parsed(out, NET, |text| cidr(text).filter(|net| net.trunc() == *net))
}

/// Parses a net of a network set. A plain address is a net of one address, and host bits are
/// removed.
pub(super) fn net_or_address(text: &str) -> Option<IpNet> {
    cidr(text).map(|net| net.trunc()).or_else(|| address(text).map(IpNet::from))
}

/// Parses an action, in upper or lower case.
pub(super) fn action(text: &str) -> Option<Action> {
    match text.to_ascii_lowercase().as_str() {
        "allow" => Some(Action::Allow),
        "deny" => Some(Action::Deny),
        "pass" | "next-tier" => Some(Action::Pass),
        "log" => Some(Action::Log),
        _ => None,
    }
}

/// Reads `order`: any finite number.
pub(super) fn order(cursor: &Cursor<'_>, out: &mut Findings) -> Option<Order> {
    let number = match &cursor.node.value {
        Value::Integer(number) => Some(*number as f64),
        Value::Float(text) => text.replace('_', "").parse().ok().filter(|n: &f64| n.is_finite()),
        _ => None,
    };
    let order = number.and_then(Order::new);
    if order.is_none() {
        cursor.expected(out, "a number");
    }
    order
}

/// The objects whose labels a selector is matched with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    /// The labels of an endpoint, a set or a service account.
    Labels,
    /// The labels of a namespace, in a rule. The selector `global()` alone is also legal.
    NamespaceOfPeer,
}

/// Reads a selector; an empty one counts as absent.
pub(super) fn selector(cursor: &Cursor<'_>, over: Over, out: &mut Findings) -> Option<String> {
    let text = cursor.filled(out, SELECTOR)?;
    let error = match over {
        Over::Labels => Selector::parse(text).err(),
        Over::NamespaceOfPeer => Selector::parse_namespace(text).err(),
    };
    if let Some(error) = error {
        cursor.error(out, Cause::Selector(error));
        return None;
    }
    Some(text.to_owned())
}

/// Warns of a configuration that no node uses because of its name.
pub(super) fn tell_of_unused(root: &Cursor<'_>, name: &str, out: &mut Findings) {
    if name != "default"
        && !name.starts_with("node.")
        && let Some(metadata) = root.field("metadata")
        && let Some(field) = metadata.field("name")
    {
        let message = "is neither default nor node.NAME, so no node uses this configuration";
        field.told(out, Code::UnusedConfiguration, message);
    }
}
