//! The objects that policies refer to: tiers, network sets, host endpoints, profiles.

use super::super::cursor::{Cursor, Findings};
use super::super::metadata::{Metadata, pairs};
use super::super::object::calico::{Action, HostEndpoint, NetworkSet, Order, Profile, Tier};
use super::super::object::{Kind, Pairs, PolicyType};
use super::super::settings::tell;
use super::super::syntax::{
    ADDRESS, DNS_SUBDOMAIN, PORT_NAME, PORT_NUMBER, address, is_dns_subdomain, is_port_name,
};
use super::context::Context;
use super::fixed::{DEFAULT, KUBE_ADMIN, KUBE_BASELINE, OBJECT};
use super::rule::rules;
use super::value::{action, has_ports, net_or_address, order, protocol};

/// The label with which Calico's backend marks a set's namespace.
const NAMESPACE_LABEL: &str = "projectcalico.org/namespace";
const INTERFACE: &str = "* or an interface's name: at most 15 letters, digits, '_', '.' and '-'";

/// Reads a tier. A manifest cannot change the built-in tiers.
pub(in super::super) fn tier(root: &Cursor<'_>, name: &str, out: &mut Findings) -> Tier {
    root.mapping(out, OBJECT, &["status"]);
    let mut tier = Tier { order: None, default_action: None };
    let built_in = [
        (DEFAULT, Action::Deny, "Deny"),
        (KUBE_ADMIN, Action::Pass, "Pass"),
        (KUBE_BASELINE, Action::Pass, "Pass"),
    ]
    .into_iter()
    .find(|((built_in, _), ..)| *built_in == name);
    let spec = root.field("spec");
    if let Some(spec) = &spec
        && tell(spec, Kind::Tier, out)
    {
        tier.order = spec.field("order").and_then(|field| order(&field, out));
        tier.default_action =
            spec.field("defaultAction").filter(|field| !field.is_empty()).and_then(|field| {
                field.parsed(out, "Deny or Pass", |text| {
                    action(text).filter(|action| matches!(action, Action::Deny | Action::Pass))
                })
            });
    }
    if let Some(((_, fixed), default_action, action_name)) = built_in {
        let order = spec.as_ref().and_then(|spec| spec.field("order"));
        if tier.order != Order::new(fixed) {
            let expected = format!("{fixed}, the fixed order of tier {name}");
            match (order, &spec) {
                (Some(field), _) => field.expected(out, expected),
                (None, Some(spec)) => spec.missing(out, "order", &expected),
                (None, None) => root.missing(out, "spec", &format!("order: {expected}")),
            }
        }
        if tier.default_action.is_some_and(|action| action != default_action)
            && let Some(spec) = &spec
            && let Some(field) = spec.field("defaultAction")
        {
            field.expected(out, format!("{action_name}, the fixed default action of tier {name}"));
        }
    }
    tier
}

/// Reads a network set.
pub(in super::super) fn network_set(
    root: &Cursor<'_>,
    metadata: Metadata,
    out: &mut Findings,
) -> NetworkSet {
    root.mapping(out, OBJECT, &["status"]);
    if metadata.labels.contains_key(NAMESPACE_LABEL)
        && let Some(metadata) = root.field("metadata")
        && let Some(labels) = metadata.field("labels")
    {
        labels.conflict(out, format!("the label {NAMESPACE_LABEL} is the backend's own"));
    }
    let mut nets = Vec::new();
    if let Some(spec) = root.field("spec")
        && tell(&spec, Kind::NetworkSet, out)
        && let Some(field) = spec.field("nets")
    {
        nets = field.items(out, |item, out| {
            item.parsed(out, "an address or a CIDR of IPv4 or IPv6", net_or_address)
        });
    }
    NetworkSet { labels: metadata.labels, nets }
}

/// Reads a host endpoint; `None` if it does not name its node.
pub(in super::super) fn host_endpoint(
    root: &Cursor<'_>,
    metadata: Metadata,
    out: &mut Findings,
) -> Option<HostEndpoint> {
    root.mapping(out, OBJECT, &["status"]);
    let spec = root.required(out, "spec", "a mapping with node and interfaceName")?;
    if !tell(&spec, Kind::HostEndpoint, out) {
        return None;
    }
    let name = |field: &Cursor<'_>, out: &mut Findings| {
        field.parsed(out, DNS_SUBDOMAIN, |text| is_dns_subdomain(text).then(|| text.to_owned()))
    };
    let node = spec.required(out, "node", "the node's name").and_then(|field| name(&field, out));
    let interface = spec.field("interfaceName").filter(|field| !field.is_empty());
    let expected_ips = spec
        .field("expectedIPs")
        .map(|field| field.items(out, |item, out| item.parsed(out, ADDRESS, address)))
        .unwrap_or_default();
    if interface.is_none() && spec.field("expectedIPs").is_none_or(|field| field.is_empty()) {
        spec.missing(out, "interfaceName", "an interface's name, * or else expectedIPs");
    }
    let interface = interface.and_then(|field| {
        field.parsed(out, INTERFACE, |text| is_interface(text).then(|| text.to_owned()))
    });
    let profiles = spec.field("profiles").map(|field| field.items(out, name)).unwrap_or_default();
    let ports = spec.field("ports").map(|field| field.items(out, host_port)).unwrap_or_default();
    Some(HostEndpoint {
        labels: metadata.labels,
        node: node?,
        interface,
        expected_ips,
        profiles,
        ports,
    })
}

fn is_interface(text: &str) -> bool {
    let character = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    text == "*" || (1..=15).contains(&text.len()) && text.bytes().all(character)
}

fn host_port(cursor: &Cursor<'_>, out: &mut Findings) -> Option<(String, u8, u16)> {
    if !cursor.mapping(out, &["name", "protocol", "port"], &[]) {
        return None;
    }
    let name = cursor.required(out, "name", PORT_NAME).and_then(|field| {
        field.parsed(out, PORT_NAME, |text| is_port_name(text).then(|| text.to_owned()))
    });
    let field = cursor.required(out, "protocol", "TCP, UDP or SCTP");
    let protocol = field.and_then(|field| protocol(&field, out));
    if let (Some(field), Some(protocol)) = (field, protocol)
        && !has_ports(protocol)
    {
        field.expected(out, "TCP, UDP or SCTP");
    }
    let port = cursor
        .required(out, "port", PORT_NUMBER)
        .and_then(|field| field.integer(out, PORT_NUMBER, 1..=65535));
    Some((name?, protocol?, port?))
}

/// Reads a profile.
pub(in super::super) fn profile(root: &Cursor<'_>, out: &mut Findings) -> Profile {
    root.mapping(out, OBJECT, &["status"]);
    let mut profile = Profile { labels: Pairs::new(), ingress: Vec::new(), egress: Vec::new() };
    if let Some(spec) = root.field("spec")
        && tell(&spec, Kind::Profile, out)
    {
        let context = |direction| Context { direction, namespaced: false };
        if let Some(labels) = spec.field("labelsToApply") {
            profile.labels = pairs(&labels, out, true);
        }
        profile.ingress = rules(&spec, "ingress", context(PolicyType::Ingress), out);
        profile.egress = rules(&spec, "egress", context(PolicyType::Egress), out);
    }
    profile
}
