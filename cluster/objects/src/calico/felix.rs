//! The part of `FelixConfiguration` that changes policy, or how pods reach destinations outside the cluster.

use std::net::Ipv4Addr;

use ipnet::IpNet;

use super::super::cursor::{Cursor, Findings};
use super::super::object::Kind;
use super::super::object::calico::{
    EndpointToHost, Failsafe, FelixConfiguration, NatOutgoingExclusions,
};
use super::super::settings::tell;
use super::super::tree::Value;
use super::fixed::OBJECT;
use super::value::{net_or_address, tell_of_unused};

/// Felix also accepts 0, which matches only packets to port 0.
const FAILSAFE_PORT: &str = "a port number from 0 to 65535";
const FAILSAFE: &str = "a failsafe port: a mapping with protocol, port and perhaps net, or text such as tcp:22 or tcp:10.0.0.0/8:22";

/// Reads the settings of Felix that affect policy and traffic that leaves the cluster. Warns of settings that Manx does
/// not implement.
pub(in super::super) fn felix_configuration(
    root: &Cursor<'_>,
    name: &str,
    out: &mut Findings,
) -> FelixConfiguration {
    root.mapping(out, OBJECT, &["status"]);
    tell_of_unused(root, name, out);
    let mut felix = FelixConfiguration::default();
    let Some(spec) = root.field("spec") else { return felix };
    if !tell(&spec, Kind::FelixConfiguration, out) {
        return felix;
    }
    felix.endpoint_to_host = spec
        .field("defaultEndpointToHostAction")
        .filter(|field| !field.is_empty())
        .and_then(|field| {
            field.parsed(out, "Accept, Drop or Return", |text| {
                match text.to_ascii_lowercase().as_str() {
                    "accept" => Some(EndpointToHost::Accept),
                    "drop" => Some(EndpointToHost::Drop),
                    "return" => Some(EndpointToHost::Return),
                    _ => None,
                }
            })
        });
    felix.failsafe_inbound =
        spec.field("failsafeInboundHostPorts").map(|field| failsafes(&field, out));
    felix.failsafe_outbound =
        spec.field("failsafeOutboundHostPorts").map(|field| failsafes(&field, out));
    felix.nat_outgoing_address =
        spec.field("natOutgoingAddress").filter(|field| !field.is_empty()).and_then(|field| {
            field.parsed(out, "an IPv4 address", |text| text.parse::<Ipv4Addr>().ok())
        });
    felix.nat_outgoing_exclusions =
        spec.field("natOutgoingExclusions").filter(|field| !field.is_empty()).and_then(|field| {
            field.parsed(out, "IPPoolsOnly or IPPoolsAndHostIPs", |text| {
                match text.to_ascii_lowercase().as_str() {
                    "ippoolsonly" => Some(NatOutgoingExclusions::IpPoolsOnly),
                    "ippoolsandhostips" => Some(NatOutgoingExclusions::IpPoolsAndHostIps),
                    _ => None,
                }
            })
        });
    felix
}

/// Reads failsafe ports, in either of two forms: the list of objects of the resource, or the text of Felix's own
/// parameter (parts joined by commas, or `none`).
fn failsafes(cursor: &Cursor<'_>, out: &mut Findings) -> Vec<Failsafe> {
    let Value::String(text) = &cursor.node.value else { return cursor.items(out, failsafe) };
    if text.eq_ignore_ascii_case("none") {
        return Vec::new();
    }
    let failsafes: Option<Vec<_>> =
        text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(failsafe_text).collect();
    if failsafes.is_none() {
        cursor.expected(out, format!("parts joined by commas, each {FAILSAFE}; or none"));
    }
    failsafes.unwrap_or_default()
}

fn failsafe(cursor: &Cursor<'_>, out: &mut Findings) -> Option<Failsafe> {
    if let Value::String(text) = &cursor.node.value {
        let failsafe = failsafe_text(text);
        if failsafe.is_none() {
            cursor.expected(out, FAILSAFE);
        }
        return failsafe;
    }
    // If a misspelled `net` were ignored, the port would be open to every peer.
    if !cursor.exact(out, &["protocol", "port", "net"]) {
        return None;
    }
    let protocol = match cursor.field("protocol").filter(|field| !field.is_empty()) {
        Some(field) => field.parsed(out, "TCP, UDP or SCTP", protocol),
        None => Some(TCP),
    };
    let port = cursor
        .required(out, "port", FAILSAFE_PORT)
        .and_then(|field| field.integer(out, FAILSAFE_PORT, 0..=65535));
    let net = match cursor.field("net").filter(|field| !field.is_empty()) {
        Some(field) => Some(field.parsed(out, "an address or a CIDR", net_or_address)?),
        None => None,
    };
    Some(Failsafe { protocol: protocol?, port: port?, net })
}

/// The protocol of a failsafe port that names none.
const TCP: u8 = 6;

fn protocol(text: &str) -> Option<u8> {
    match text.to_ascii_lowercase().as_str() {
        "tcp" => Some(TCP),
        "udp" => Some(17),
        "sctp" => Some(132),
        _ => None,
    }
}

/// Parses `port`, `protocol:port` or `protocol:net:port`. An IPv6 net may be in brackets.
fn failsafe_text(text: &str) -> Option<Failsafe> {
    let (rest, port) = text.rsplit_once(':').unwrap_or(("", text));
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let port = digits.then(|| port.parse().ok()).flatten()?;
    let (protocol_name, net) = match rest.split_once(':') {
        Some((name, net)) => (name, Some(failsafe_net(net)?)),
        None => (rest, None),
    };
    let protocol = if protocol_name.is_empty() { TCP } else { protocol(protocol_name)? };
    Some(Failsafe { protocol, port, net })
}

fn failsafe_net(text: &str) -> Option<IpNet> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    net_or_address(bare.unwrap_or(text))
}
