//! One side of a rule.

use ipnet::IpNet;

use super::super::code::Code;
use super::super::cursor::{Cursor, Findings};
use super::super::intent;
use super::super::object::PolicyType;
use super::super::object::calico::{EntityRule, ServiceAccountMatch, ServiceMatch};
use super::super::syntax::{DNS_LABEL, DNS_SUBDOMAIN, is_dns_label, is_dns_subdomain};
use super::context::{Context, Family};
use super::value::{Over, net, port, selector};

const ENTITY: &[&str] = &[
    "nets",
    "notNets",
    "selector",
    "notSelector",
    "namespaceSelector",
    "ports",
    "notPorts",
    "serviceAccounts",
    "services",
];

/// A side of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Source,
    Destination,
}

/// Reads `source` or `destination`.
pub(super) fn entity(
    cursor: &Cursor<'_>,
    side: Side,
    context: Context,
    family: &mut Family,
    out: &mut Findings,
) -> EntityRule {
    let mut entity = EntityRule::default();
    if !cursor.exact(out, ENTITY) {
        return entity;
    }
    entity.nets = nets(cursor, "nets", family, out);
    entity.not_nets = nets(cursor, "notNets", family, out);
    entity.selector = rule_selector(cursor, "selector", out);
    entity.not_selector = rule_selector(cursor, "notSelector", out);
    entity.namespace_selector = cursor
        .field("namespaceSelector")
        .and_then(|field| selector(&field, Over::NamespaceOfPeer, out));
    if let Some(field) = cursor.field("ports") {
        entity.ports = field.items(out, port);
    }
    if let Some(field) = cursor.field("notPorts") {
        entity.not_ports = field.items(out, port);
    }
    entity.service_accounts =
        cursor.field("serviceAccounts").and_then(|field| service_accounts(&field, out));
    if let Some(field) = cursor.field("services") {
        entity.service = service(&field, side, context, out);
        service_alone(cursor, &field, side, out);
    }
    intent::empty_condition(cursor, "ports", "port", out);
    // Templates write an empty list when they have nothing to add. So an empty list is reported only if no other field
    // limits the address.
    if !has_address(&entity) {
        intent::empty_condition(cursor, "nets", "address", out);
        if let Some(accounts) = cursor.field("serviceAccounts") {
            intent::empty_condition(&accounts, "names", "address", out);
        }
    }
    entity
}

/// Returns whether the rule has a condition on the address.
fn has_address(entity: &EntityRule) -> bool {
    let accounts = entity.service_accounts.as_ref();
    !entity.nets.is_empty()
        || !entity.not_nets.is_empty()
        || accounts.is_some_and(|it| !it.names.is_empty() || it.selector.is_some())
        || entity.service.is_some()
        || [&entity.selector, &entity.not_selector, &entity.namespace_selector]
            .iter()
            .any(|selector| selector.is_some())
}

/// Reads `selector` or `notSelector`. An empty selector counts as absent. This may surprise an author, because an empty
/// selector elsewhere selects every endpoint.
fn rule_selector(cursor: &Cursor<'_>, key: &str, out: &mut Findings) -> Option<String> {
    let field = cursor.field(key)?;
    if field.is_empty() {
        let message = "is empty, which in a rule is no condition";
        field.told(out, Code::EmptySelector, message);
    }
    selector(&field, Over::Labels, out)
}

/// Reads `nets` or `notNets`. All nets of a rule must be of one family.
fn nets(cursor: &Cursor<'_>, key: &str, family: &mut Family, out: &mut Findings) -> Vec<IpNet> {
    let Some(field) = cursor.field(key) else { return Vec::new() };
    field.items(out, |item, out| {
        let net = net(item, out)?;
        let version = if net.addr().is_ipv4() { 4 } else { 6 };
        if key == "notNets" && net.prefix_len() == 0 {
            item.conflict(out, format!("{net} leaves no address: the rule would match nothing"));
        }
        if family.version.is_some_and(|other| other != version) {
            item.expected(out, format!("a net of IPv{}, the rule's ipVersion", 10 - version));
        } else if *family.nets.get_or_insert(version) != version {
            let other = 10 - version;
            item.expected(out, format!("a net of IPv{other}, as the rule's others"));
        }
        Some(net)
    })
}

fn service_accounts(cursor: &Cursor<'_>, out: &mut Findings) -> Option<ServiceAccountMatch> {
    if !cursor.exact(out, &["names", "selector"]) {
        return None;
    }
    let names = cursor.field("names").map(|field| {
        field.items(out, |item, out| {
            item.parsed(out, DNS_SUBDOMAIN, |text| is_dns_subdomain(text).then(|| text.to_owned()))
        })
    });
    Some(ServiceAccountMatch {
        names: names.unwrap_or_default(),
        selector: cursor.field("selector").and_then(|field| selector(&field, Over::Labels, out)),
    })
}

fn service(
    cursor: &Cursor<'_>,
    side: Side,
    context: Context,
    out: &mut Findings,
) -> Option<ServiceMatch> {
    if !cursor.exact(out, &["name", "namespace"]) {
        return None;
    }
    match (context.direction, side) {
        (PolicyType::Ingress, Side::Destination) => {
            cursor.conflict(out, "may not stand in the destination of an ingress rule");
        }
        (PolicyType::Egress, Side::Source) => {
            cursor.conflict(out, "may not stand in the source of an egress rule");
        }
        _ => {}
    }
    let namespace = cursor.field("namespace").filter(|field| !field.is_empty());
    if namespace.is_none() && !context.namespaced {
        cursor.missing(out, "namespace", "the service's namespace, because the rule has none");
    }
    let name = cursor.required(out, "name", "the service's name").and_then(|field| {
        field.parsed(out, DNS_SUBDOMAIN, |text| is_dns_subdomain(text).then(|| text.to_owned()))
    });
    let namespace = namespace.and_then(|field| {
        field.parsed(out, DNS_LABEL, |text| is_dns_label(text).then(|| text.to_owned()))
    });
    Some(ServiceMatch { name: name?, namespace })
}

/// Checks that no other field excludes the service. A service stands for the addresses of its endpoints and, in an
/// egress rule, also for their ports.
fn service_alone(entity: &Cursor<'_>, service: &Cursor<'_>, side: Side, out: &mut Findings) {
    let excluded: &[&str] = match side {
        Side::Source => {
            &["nets", "notNets", "selector", "notSelector", "namespaceSelector", "serviceAccounts"]
        }
        Side::Destination => &[
            "nets",
            "notNets",
            "selector",
            "notSelector",
            "namespaceSelector",
            "serviceAccounts",
            "ports",
            "notPorts",
        ],
    };
    for key in excluded {
        // Calico accepts `nets: []` next to a service, but not `serviceAccounts: {}`.
        if let Some(field) = entity.field(key)
            && (*key == "serviceAccounts" || !field.is_empty())
        {
            service.conflict(out, format!("may not be used together with {key}"));
        }
    }
}
