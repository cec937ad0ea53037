//! Rules of policies and profiles.

use super::super::cursor::{Cursor, Findings};
use super::super::metadata::pairs;
use super::super::object::PolicyType;
use super::super::object::calico::{Action, EntityRule, IcmpMatch, Port, Rule};
use super::super::problem::Cause;
use super::super::tree::Value;
use super::context::{Context, Family};
use super::entity::{Side, entity};
use super::value::{ICMP, ICMPV6, action, has_ports, protocol};

const RULE: &[&str] = &[
    "action",
    "ipVersion",
    "protocol",
    "notProtocol",
    "icmp",
    "notICMP",
    "source",
    "destination",
    "http",
    "metadata",
];

/// Reads a list of rules.
pub(super) fn rules(
    spec: &Cursor<'_>,
    key: &str,
    context: Context,
    out: &mut Findings,
) -> Vec<Rule> {
    let Some(field) = spec.field(key) else { return Vec::new() };
    field.items(out, |item, out| rule(item, context, out))
}

fn rule(cursor: &Cursor<'_>, context: Context, out: &mut Findings) -> Option<Rule> {
    if !cursor.exact(out, RULE) {
        return None;
    }
    let actions = "Allow, Deny, Pass or Log";
    let action = cursor
        .required(out, "action", actions)
        .and_then(|field| field.parsed(out, actions, action));
    let ip_version = cursor.field("ipVersion").and_then(|field| {
        let version = match field.node.value {
            Value::Integer(4) => Some(4),
            Value::Integer(6) => Some(6),
            _ => None,
        };
        if version.is_none() {
            field.expected(out, "4 or 6");
        }
        version
    });
    let mut family = Family { version: ip_version, nets: None };
    let (mut source, mut destination) = (EntityRule::default(), EntityRule::default());
    let sides = [
        ("source", &mut source, Side::Source),
        ("destination", &mut destination, Side::Destination),
    ];
    for (key, read, side) in sides {
        if let Some(field) = cursor.field(key) {
            *read = entity(&field, side, context, &mut family, out);
        }
    }
    // The metadata does not affect the rule. Errors in it are reported nevertheless, because people read the metadata.
    if let Some(metadata) = cursor.field("metadata")
        && metadata.mapping(out, &["annotations"], &[])
        && let Some(annotations) = metadata.field("annotations")
    {
        pairs(&annotations, out, false);
    }
    let rule = Rule {
        action: action?,
        ip_version,
        protocol: cursor.field("protocol").and_then(|field| protocol(&field, out)),
        not_protocol: cursor.field("notProtocol").and_then(|field| protocol(&field, out)),
        icmp: cursor.field("icmp").and_then(|field| icmp(&field, out)),
        not_icmp: cursor.field("notICMP").and_then(|field| icmp(&field, out)),
        source,
        destination,
        http: http(cursor, action?, context, out),
    };
    check_protocol(cursor, &rule, out);
    Some(rule)
}

/// Reads `icmp` or `notICMP`. A code needs a type, both in Calico's validation and in the packet format.
fn icmp(cursor: &Cursor<'_>, out: &mut Findings) -> Option<IcmpMatch> {
    if !cursor.exact(out, &["type", "code"]) {
        return None;
    }
    let kind = cursor.field("type");
    let code = cursor.field("code");
    if let (None, Some(code)) = (kind, code) {
        code.conflict(out, "a code needs a type beside it");
    }
    Some(IcmpMatch {
        kind: kind.and_then(|field| field.integer(out, "an ICMP type from 0 to 254", 0..=254)),
        code: code.and_then(|field| field.integer(out, "an ICMP code from 0 to 255", 0..=255)),
    })
}

/// Checks that the rule's protocol fits its other fields.
fn check_protocol(cursor: &Cursor<'_>, rule: &Rule, out: &mut Findings) {
    for (side, entity) in [("source", &rule.source), ("destination", &rule.destination)] {
        let Some(side) = cursor.field(side) else { continue };
        for (key, ports) in [("ports", &entity.ports), ("notPorts", &entity.not_ports)] {
            let numeric = ports.iter().any(|port| matches!(port, Port::Range(..)));
            let wrong = match rule.protocol {
                Some(protocol) => !ports.is_empty() && !has_ports(protocol),
                // A named port needs no protocol in the rule, because the definition of the port contains one.
                None => numeric && cursor.field("protocol").is_none(),
            };
            if wrong && let Some(field) = side.field(key) {
                field.conflict(out, "ports need the protocol TCP, UDP or SCTP in the same rule");
            }
        }
    }
    if let Some(field) = cursor.field("icmp")
        && rule.icmp.is_some()
        && !matches!(rule.protocol, Some(ICMP | ICMPV6))
    {
        field.conflict(out, "needs the protocol ICMP or ICMPv6 in the same rule");
    }
    for protocol in [rule.protocol, rule.not_protocol].into_iter().flatten() {
        let (name, version) = match protocol {
            ICMP => ("ICMP", 4),
            ICMPV6 => ("ICMPv6", 6),
            _ => continue,
        };
        if let Some(field) = cursor.field("ipVersion")
            && rule.ip_version.is_some_and(|other| other != version)
        {
            field.expected(out, format!("{version}, because the protocol is {name}"));
        }
    }
}

/// Returns whether there is an `http` match. Only ingress rules with the action Allow may have one.
fn http(cursor: &Cursor<'_>, action: Action, context: Context, out: &mut Findings) -> bool {
    let Some(http) = cursor.field("http") else { return false };
    if !http.exact(out, &["methods", "paths"]) {
        return true;
    }
    if action != Action::Allow {
        http.conflict(out, "may stand in rules that allow only");
    } else if context.direction == PolicyType::Egress {
        http.conflict(out, "may stand in ingress rules only");
    } else if let Some(field) = cursor.field("protocol")
        && !matches!(&field.node.value, Value::String(name) if name == "TCP")
        && field.node.value != Value::Integer(6)
    {
        field.expected(out, "TCP, because the rule has an http match");
    } else {
        http.warning(out, Cause::Unsupported { effect: "allows nothing" });
    }
    if let Some(methods) = http.field("methods") {
        methods.distinct(out, |item, out| item.string(out, "an HTTP method").map(str::to_owned));
    }
    if let Some(paths) = http.field("paths") {
        paths.items(out, http_path);
    }
    true
}

fn http_path(cursor: &Cursor<'_>, out: &mut Findings) -> Option<()> {
    if !cursor.exact(out, &["exact", "prefix"]) {
        return None;
    }
    let path = match (cursor.field("exact"), cursor.field("prefix")) {
        (Some(path), None) | (None, Some(path)) => path,
        (Some(_), Some(prefix)) => {
            prefix.conflict(out, "may not be used together with exact");
            return None;
        }
        (None, None) => {
            cursor.error(out, Cause::Missing { expected: "exact or prefix".to_owned() });
            return None;
        }
    };
    path.parsed(out, "a path that begins with / and has no ?, # or space", |text| {
        (text.starts_with('/') && !text.contains(['?', '#', ' '])).then_some(())
    })
}
