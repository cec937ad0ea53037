//! Protocols and ports of cluster-wide policies.

use super::super::code::Code;
use super::super::cursor::{Cursor, Findings};
use super::super::network_policy;
use super::super::object::Protocol;
use super::super::object::cluster::ClusterProtocol;
use super::super::syntax::{PORT_NAME, PORT_NUMBER, is_port_name};
use super::super::tree::{Entry, Value};
use super::support::Support;

const PORTS: std::ops::RangeInclusive<i128> = 1..=65535;

/// Returns the only field of an entry, which must be one of `known`. Returns `None` if the entry is not valid or not
/// supported.
fn single<'a>(
    cursor: &Cursor<'a>,
    known: &[&str],
    support: &mut Support,
    out: &mut Findings,
) -> Option<&'a str> {
    let Value::Mapping(entries) = &cursor.node.value else {
        cursor.expected(out, "a mapping");
        return None;
    };
    let mut filled = entries.iter().filter(|entry| entry.node.value != Value::Null);
    match (filled.next(), filled.next()) {
        (Some(Entry { key, .. }), None) => support.fields(cursor, known, out).then_some(&**key),
        (Some(_), Some(_)) => {
            cursor.conflict(out, format!("has exactly one of {}", known.join(", ")));
            None
        }
        (None, _) => {
            // By the API's rule, an empty entry means that the entry had a field which was dropped because the reader's
            // version does not know it.
            support.lacks(cursor, cursor.node.at, out);
            None
        }
    }
}

/// Reads one entry of `protocols`.
pub(super) fn protocol(
    cursor: &Cursor<'_>,
    support: &mut Support,
    out: &mut Findings,
) -> Option<ClusterProtocol> {
    let key = single(cursor, &["tcp", "udp", "sctp", "destinationNamedPort"], support, out)?;
    let field = cursor.field(key)?;
    let protocol = match key {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        _ => return named(&field, out),
    };
    if !matches!(field.node.value, Value::Mapping(_)) {
        field.expected(out, "a mapping");
        return None;
    }
    if !support.fields(&field, &["destinationPort"], out) {
        return None;
    }
    let ports = match field.field("destinationPort") {
        Some(port) => Some(destination_port(&port, support, out)?),
        None => None,
    };
    Some(ClusterProtocol::Ports { protocol, ports })
}

fn destination_port(
    cursor: &Cursor<'_>,
    support: &mut Support,
    out: &mut Findings,
) -> Option<(u16, u16)> {
    let key = single(cursor, &["number", "range"], support, out)?;
    let field = cursor.field(key)?;
    if key == "number" {
        let number = field.integer(out, PORT_NUMBER, PORTS)?;
        return Some((number, number));
    }
    if !matches!(field.node.value, Value::Mapping(_)) {
        field.expected(out, "a mapping");
        return None;
    }
    if !support.fields(&field, &["start", "end"], out) {
        return None;
    }
    range(&field, out)
}

/// Reads `start` and `end`; `end` must be greater than `start`.
fn range(cursor: &Cursor<'_>, out: &mut Findings) -> Option<(u16, u16)> {
    let mut bound = |key| {
        let field = cursor.required(out, key, PORT_NUMBER)?;
        field.integer::<u16>(out, PORT_NUMBER, PORTS)
    };
    let (start, end) = (bound("start"), bound("end"));
    let (start, end) = (start?, end?);
    if start >= end
        && let Some(field) = cursor.field("end")
    {
        field.expected(out, format!("a port number above start ({start})"));
    }
    Some((start, end))
}

/// Reads a port name. The API accepts any text. No container can give a port a name such as `8080`, so such an entry
/// matches nothing.
fn named(cursor: &Cursor<'_>, out: &mut Findings) -> Option<ClusterProtocol> {
    let name = cursor.parsed(out, PORT_NAME, |text| (!text.is_empty()).then(|| text.to_owned()))?;
    if !is_port_name(&name) {
        let message =
            format!("matches nothing: no pod has a port of this name, which is not {PORT_NAME}");
        cursor.told(out, Code::NoSuchPort, message);
    }
    Some(ClusterProtocol::Named(name))
}

/// Reads one entry of `ports` of AdminNetworkPolicy.
pub(super) fn port_v1alpha1(
    cursor: &Cursor<'_>,
    support: &mut Support,
    out: &mut Findings,
) -> Option<ClusterProtocol> {
    let key = single(cursor, &["portNumber", "portRange", "namedPort"], support, out)?;
    let field = cursor.field(key)?;
    let known: &[&str] = match key {
        "portNumber" => &["protocol", "port"],
        "portRange" => &["protocol", "start", "end"],
        _ => return named(&field, out),
    };
    if !matches!(field.node.value, Value::Mapping(_)) {
        field.expected(out, "a mapping");
        return None;
    }
    if !support.fields(&field, known, out) {
        return None;
    }
    let protocol = match field.field("protocol") {
        Some(field) => network_policy::policy_protocol(&field, out)?,
        None => Protocol::Tcp,
    };
    let ports = if key == "portNumber" {
        let number = field.required(out, "port", PORT_NUMBER)?;
        let number = number.integer(out, PORT_NUMBER, PORTS)?;
        (number, number)
    } else {
        range(&field, out)?
    };
    Some(ClusterProtocol::Ports { protocol, ports: Some(ports) })
}
