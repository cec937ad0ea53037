//! `BGPConfiguration` and `BGPPeer`.
//!
//! Source: Calico's API reference and custom resource definitions, 3.30 to 3.33.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnet::IpNet;

use super::super::cursor::{Cursor, Findings};
use super::super::object::Kind;
use super::super::object::bgp::{
    Advertisement, BgpConfiguration, BgpPeer, Community, NextHop, PeeringNodes, Remote, SecretKey,
};
use super::super::settings::tell;
use super::super::syntax::{
    ADDRESS, CIDR, DNS_SUBDOMAIN, PORT_NUMBER, address, cidr, is_dns_subdomain,
};
use super::super::tree::Value;
use super::fixed::OBJECT;
use super::value::{Over, selector, tell_of_unused};

const SYSTEM: &str = "the number of an autonomous system, from 1 to 4294967295";
const DURATION: &str = "a duration such as 120s or 1m30s";
pub(super) const COMMUNITY: &str =
    "a community: two numbers to 65535 such as 65000:100, or three to 4294967295";
pub(super) const PRIORITY: &str = "a priority from 1 to 2147483646";
const PEER: &str = "an address, perhaps with a port: 192.0.2.1, 192.0.2.1:179 or [fd00::1]:179";

/// Reads settings of BGP. Returns `None`, with an error in `out`, if they are not a mapping.
pub(in super::super) fn bgp_configuration(
    root: &Cursor<'_>,
    name: &str,
    out: &mut Findings,
) -> Option<BgpConfiguration> {
    root.mapping(out, OBJECT, &["status"]);
    tell_of_unused(root, name, out);
    let Some(spec) = root.field("spec") else { return Some(BgpConfiguration::default()) };
    if !tell(&spec, Kind::BgpConfiguration, out) {
        return None;
    }
    let mesh = spec.field("nodeToNodeMeshEnabled").and_then(|field| field.boolean(out));
    for key in ["nodeMeshPassword", "nodeMeshMaxRestartTime"] {
        if let Some(field) = spec.field(key).filter(|_| mesh == Some(false)) {
            field.conflict(out, "may not stand beside nodeToNodeMeshEnabled: false");
        }
    }
    let communities = communities(&spec, out);
    let nets = |key: &str, out: &mut Findings| {
        let items = spec.field(key).map(|field| field.items(out, net_of_block));
        items.unwrap_or_default()
    };
    let priority = |key: &str, out: &mut Findings| {
        spec.field(key).and_then(|field| field.integer(out, PRIORITY, 1..=2_147_483_646))
    };
    Some(BgpConfiguration {
        system: system(&spec, "asNumber", out),
        mesh,
        mesh_password: password(&spec, "nodeMeshPassword", out),
        mesh_restart_time: duration(&spec, "nodeMeshMaxRestartTime", out),
        listen_port: spec
            .field("listenPort")
            .filter(|field| field.node.value != Value::Integer(0))
            .and_then(|field| field.integer(out, PORT_NUMBER, 1..=65535)),
        listens_at_node_address: is_second(&spec, "bindMode", ["None", "NodeIP"], out),
        cluster_ips: nets("serviceClusterIPs", out),
        external_ips: nets("serviceExternalIPs", out),
        load_balancer_ips: nets("serviceLoadBalancerIPs", out),
        single_load_balancer_ips: is_second(
            &spec,
            "serviceLoadBalancerAggregation",
            ["Enabled", "Disabled"],
            out,
        ),
        advertisements: advertisements(&spec, &communities, out),
        normal_priority_v4: priority("ipv4NormalRoutePriority", out),
        normal_priority_v6: priority("ipv6NormalRoutePriority", out),
    })
}

/// Returns whether a field has the second of two values. An absent or empty field has the first value.
fn is_second(spec: &Cursor<'_>, key: &str, values: [&str; 2], out: &mut Findings) -> bool {
    let expected = format!("{} or {}", values[0], values[1]);
    let field = spec.field(key).filter(|field| !field.is_empty());
    let read = |text: &str| values.iter().position(|value| *value == text);
    field.and_then(|field| field.parsed(out, &expected, read)) == Some(1)
}

fn net_of_block(item: &Cursor<'_>, out: &mut Findings) -> Option<IpNet> {
    if !item.mapping(out, &["cidr"], &[]) {
        return None;
    }
    let field = item.required(out, "cidr", CIDR)?;
    field.parsed(out, CIDR, cidr).map(|net| net.trunc())
}

/// Reads `communities`: each name, and the community that it stands for.
fn communities(spec: &Cursor<'_>, out: &mut Findings) -> Vec<(String, Community)> {
    let Some(field) = spec.field("communities") else { return Vec::new() };
    field.items(out, |item, out| {
        if !item.mapping(out, &["name", "value"], &[]) {
            return None;
        }
        let expected = "the community's name";
        let name = item.required(out, "name", expected)?.string(out, expected)?.to_owned();
        let value = item.required(out, "value", COMMUNITY)?.parsed(out, COMMUNITY, community)?;
        Some((name, value))
    })
}

fn advertisements(
    spec: &Cursor<'_>,
    named: &[(String, Community)],
    out: &mut Findings,
) -> Vec<Advertisement> {
    let Some(field) = spec.field("prefixAdvertisements") else { return Vec::new() };
    field.items(out, |item, out| {
        if !item.mapping(out, &["cidr", "communities"], &[]) {
            return None;
        }
        let net = item.required(out, "cidr", CIDR)?.parsed(out, CIDR, cidr)?.trunc();
        let expected = format!("{COMMUNITY}; or a name of spec.communities");
        let read = |text: &str| {
            let of_name = || named.iter().find(|(name, _)| name == text).map(|(_, it)| *it);
            community(text).or_else(of_name)
        };
        let communities = item.required(out, "communities", "a list of communities")?;
        let communities = communities.items(out, |item, out| item.parsed(out, &expected, read));
        Some(Advertisement { cidr: net, communities })
    })
}

/// Reads a peer. Returns `None`, with an error in `out`, if the object does not identify the peer.
pub(in super::super) fn bgp_peer(root: &Cursor<'_>, out: &mut Findings) -> Option<BgpPeer> {
    root.mapping(out, OBJECT, &["status"]);
    let spec = root.required(out, "spec", "a mapping with peerIP or peerSelector")?;
    if !tell(&spec, Kind::BgpPeer, out) {
        return None;
    }
    let nodes = peering_nodes(&spec, out);
    let remote = remote(&spec, out);
    let next_hop = filled(&spec, "nextHopMode").and_then(|field| {
        field.parsed(out, "Auto, Self or Keep", |text| match text {
            "Auto" => Some(NextHop::Auto),
            "Self" => Some(NextHop::Own),
            "Keep" => Some(NextHop::Keep),
            _ => None,
        })
    });
    let keeps = spec.field("keepOriginalNextHop").and_then(|field| field.boolean(out));
    if let Some(field) = spec.field("keepOriginalNextHop")
        && keeps == Some(true)
        && next_hop.is_some()
    {
        field.conflict(out, "may not stand beside nextHopMode, which replaces it");
    }
    let allowed = "how often the node's own system may be in a path: a whole number";
    let own_system_allowed = spec.field("numAllowedLocalASNumbers").and_then(|field| {
        field.integer::<i32>(out, allowed, i128::from(i32::MIN)..=i128::from(i32::MAX))
    });
    let hops = spec
        .field("ttlSecurity")
        .and_then(|field| field.integer::<u8>(out, "a number of hops from 0 to 255", 0..=255));
    let filters = spec.field("filters").map(|field| {
        field.items(out, |item, out| {
            item.parsed(out, DNS_SUBDOMAIN, |text| is_dns_subdomain(text).then(|| text.to_owned()))
        })
    });
    // `settings::tell` has already warned that Manx does not implement this field; here its type is checked.
    duration(&spec, "keepaliveTime", out);
    Some(BgpPeer {
        nodes: nodes?,
        system: system(&spec, "asNumber", out),
        local_system: system(&spec, "localASNumber", out),
        next_hop,
        keeps_next_hop: keeps == Some(true),
        password: password(&spec, "password", out),
        any_source: is_second(&spec, "sourceAddress", ["UseNodeIP", "None"], out),
        restart_time: duration(&spec, "maxRestartTime", out),
        own_system_allowed: own_system_allowed.and_then(|it| u32::try_from(it).ok()).unwrap_or(0),
        hops: hops.filter(|hops| *hops > 0),
        reachable_by: reachable_by(&spec, remote.as_ref(), out),
        filters: filters.unwrap_or_default(),
        is_one_way: is_second(&spec, "reversePeering", ["Auto", "Manual"], out),
        remote: remote?,
    })
}

/// Returns the field, unless it is absent or empty.
fn filled<'b>(spec: &'b Cursor<'_>, key: &'b str) -> Option<Cursor<'b>> {
    spec.field(key).filter(|field| !field.is_empty())
}

fn peering_nodes(spec: &Cursor<'_>, out: &mut Findings) -> Option<PeeringNodes> {
    let selected = filled(spec, "nodeSelector");
    let Some(named) = filled(spec, "node") else {
        return match selected {
            Some(field) => selector(&field, Over::Labels, out).map(PeeringNodes::Selected),
            None => Some(PeeringNodes::All),
        };
    };
    if selected.is_some() {
        named.conflict(out, "may not stand beside nodeSelector");
    }
    named.parsed(out, DNS_SUBDOMAIN, |text| {
        is_dns_subdomain(text).then(|| PeeringNodes::Named(text.to_owned()))
    })
}

fn remote(spec: &Cursor<'_>, out: &mut Findings) -> Option<Remote> {
    let keys = ["peerIP", "peerSelector", "localWorkloadSelector"];
    let [address, nodes, workloads] = keys.map(|key| filled(spec, key));
    let written: Vec<_> = [&address, &nodes, &workloads].into_iter().flatten().collect();
    if let [first, _, ..] = written[..] {
        let message = "stands beside another one of peerIP, peerSelector and localWorkloadSelector";
        first.conflict(out, message);
        return None;
    }
    let has_system = || spec.field("asNumber").filter(|it| it.node.value != Value::Integer(0));
    if let Some(field) = address {
        let (address, port) = field.parsed(out, PEER, address_and_port)?;
        return Some(Remote::Address { address, port });
    }
    if let Some(field) = nodes {
        if let Some(system) = has_system() {
            system.conflict(out, "may not stand beside peerSelector: the nodes say their own");
        }
        return selector(&field, Over::Labels, out).map(Remote::Nodes);
    }
    if let Some(field) = workloads {
        if has_system().is_none() {
            spec.missing(out, "asNumber", SYSTEM);
        }
        return selector(&field, Over::Labels, out).map(Remote::Workloads);
    }
    spec.missing(out, "peerIP", &format!("{PEER}; or peerSelector or localWorkloadSelector"));
    None
}

/// Reads `reachableBy`: a gateway of the peer's address family. It is an error unless the peer is given by its address
/// (`peerIP`).
fn reachable_by(spec: &Cursor<'_>, remote: Option<&Remote>, out: &mut Findings) -> Option<IpAddr> {
    let field = filled(spec, "reachableBy")?;
    let gateway = field.parsed(out, ADDRESS, address)?;
    match remote {
        Some(Remote::Address { address, .. }) if address.is_ipv4() != gateway.is_ipv4() => {
            field.conflict(out, "is not of the family of peerIP");
        }
        Some(Remote::Nodes(_) | Remote::Workloads(_)) => {
            field.conflict(out, "may stand beside peerIP only");
        }
        _ => {}
    }
    Some(gateway)
}

/// Parses an address with an optional port: `192.0.2.1`, `192.0.2.1:179`, `fd00::1` or `[fd00::1]:179`.
fn address_and_port(text: &str) -> Option<(IpAddr, Option<u16>)> {
    if let Some(address) = address(text) {
        return Some((address, None));
    }
    let (host, port) = text.rsplit_once(':')?;
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let port: u16 = port.parse().ok().filter(|port| digits && *port != 0)?;
    let address = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(host) => IpAddr::V6(host.parse::<Ipv6Addr>().ok()?),
        None => IpAddr::V4(host.parse::<Ipv4Addr>().ok()?),
    };
    Some((address, Some(port)))
}

/// Reads the number of an autonomous system. 0 counts as absent, as in Calico.
fn system(spec: &Cursor<'_>, key: &str, out: &mut Findings) -> Option<u32> {
    let field = spec.field(key).filter(|field| field.node.value != Value::Integer(0))?;
    let number = system_of(&field);
    if number.is_none() {
        field.expected(out, SYSTEM);
    }
    number
}

/// Returns the number of an autonomous system, which the field holds as a number or as text.
pub(super) fn system_of(field: &Cursor<'_>) -> Option<u32> {
    match &field.node.value {
        Value::Integer(number) => u32::try_from(*number).ok().filter(|number| *number != 0),
        Value::String(text) => system_text(text),
        _ => None,
    }
}

/// Parses the number of an autonomous system: `64512`, or two parts of 16 bits such as `1.10` (RFC 5396).
pub(in super::super) fn system_text(text: &str) -> Option<u32> {
    let number = match text.split_once('.') {
        Some((high, low)) => {
            let [high, low] = [high, low].map(digits::<u16>);
            (u32::from(high?) << 16) + u32::from(low?)
        }
        None => digits(text)?,
    };
    (number != 0).then_some(number)
}

/// Parses a number that consists of decimal digits only. `parse` alone would also accept `+8`.
fn digits<T: std::str::FromStr>(text: &str) -> Option<T> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// Parses a community: `65000:100` (standard) or `65000:1:2` (large).
pub(super) fn community(text: &str) -> Option<Community> {
    let parts: Vec<&str> = text.split(':').collect();
    match parts[..] {
        [high, low] => {
            let [high, low] = [high, low].map(digits::<u16>);
            Some(Community::Standard((u32::from(high?) << 16) + u32::from(low?)))
        }
        [a, b, c] => Some(Community::Large([digits(a)?, digits(b)?, digits(c)?])),
        _ => None,
    }
}

/// Reads the Secret's name and the key in it. A password that cannot be read is an error: without a password, anybody
/// could open the session.
fn password(spec: &Cursor<'_>, key: &str, out: &mut Findings) -> Option<SecretKey> {
    let field = spec.field(key)?;
    if !field.exact(out, &["secretKeyRef"]) {
        return None;
    }
    let of_secret = field.required(out, "secretKeyRef", "the name and the key of a Secret")?;
    if !of_secret.mapping(out, &["name", "key"], &["optional"]) {
        return None;
    }
    let mut of = |key: &str, expected: &str| {
        let field = of_secret.required(out, key, expected)?;
        field.parsed(out, expected, |text| (!text.is_empty()).then(|| text.to_owned()))
    };
    let name = of("name", "the name of a Secret in the agents' namespace");
    let key = of("key", "a key of the Secret");
    Some(SecretKey { name: name?, key: key? })
}

/// Reads a duration as Go writes it.
fn duration(spec: &Cursor<'_>, key: &str, out: &mut Findings) -> Option<Duration> {
    filled(spec, key)?.parsed(out, DURATION, duration_text)
}

/// Parses a duration that consists of parts, each a decimal number and a unit: `1h`, `1m30s`, `1.5s`. A negative
/// duration is refused, and so is one longer than 2^32 seconds.
fn duration_text(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let is_of_number = |byte: u8| byte.is_ascii_digit() || byte == b'.';
        let number = rest.bytes().take_while(|byte| is_of_number(*byte)).count();
        let unit = rest.bytes().skip(number).take_while(|byte| !is_of_number(*byte)).count();
        let (part, after) = rest.split_at_checked(number + unit)?;
        let (number, unit) = part.split_at_checked(number)?;
        let unit = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        seconds += number.parse::<f64>().ok()? * unit;
        rest = after;
    }
    (!text.is_empty() && seconds < 4_294_967_296.0).then(|| Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
        for (text, seconds) in [
            ("120s", 120.0),
            ("1m30s", 90.0),
            ("1h", 3600.0),
            ("1.5s", 1.5),
            ("250ms", 0.25),
            ("0", 0.0),
            ("0s", 0.0),
        ] {
            assert_eq!(duration_text(text), Some(Duration::from_secs_f64(seconds)), "{text}");
        }
        for text in ["", "120", "s", "-1s", "1d", "1 s", "1s ", "..s", "99999999999h"] {
            assert_eq!(duration_text(text), None, "{text}");
        }
    }

    #[test]
    fn systems_and_communities_are_numbers_of_their_size() {
        for (text, number) in [("64512", 64512), ("4294967295", u32::MAX), ("1.10", 65546)] {
            assert_eq!(system_text(text), Some(number), "{text}");
        }
        for text in ["", "0", "4294967296", "1.65536", "0.0", "+1", "-1", "1.2.3", "x"] {
            assert_eq!(system_text(text), None, "{text}");
        }
        assert_eq!(community("65000:100"), Some(Community::Standard(0xfde8_0064)));
        assert_eq!(community("4294967295:1:0"), Some(Community::Large([u32::MAX, 1, 0])));
        for text in ["", "65536:1", "1:65536", "1", "1:2:3:4", "1:2:4294967296", "1:", "x:1"] {
            assert_eq!(community(text), None, "{text}");
        }
        for text in ["65000:100", "4294967295:1:0"] {
            assert_eq!(community(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_peers_address_may_have_a_port() {
        let at = |address: &str, port| Some((address.parse::<IpAddr>().unwrap(), port));
        for (text, expected) in [
            ("192.0.2.1", at("192.0.2.1", None)),
            ("192.0.2.1:179", at("192.0.2.1", Some(179))),
            ("fd00::1", at("fd00::1", None)),
            ("[fd00::1]:50", at("fd00::1", Some(50))),
            ("192.0.2.1:0", None),
            ("192.0.2.1:65536", None),
            ("192.0.2.1:", None),
            ("[fd00::1]", None),
            ("[192.0.2.1]:5", None),
            ("tor:179", None),
        ] {
            assert_eq!(address_and_port(text), expected, "{text}");
        }
    }
}
