//! `BGPFilter`.
//!
//! An unknown field of a rule makes the filter invalid: the field may restrict what the rule accepts.
//!
//! Source: Calico's API reference and custom resource definitions, 3.30 to 3.33.

use super::super::cursor::{Cursor, Findings};
use super::super::object::Kind;
use super::super::object::bgp::{BgpFilter, FilterRule, NetMatch, NetOperator, Operation};
use super::super::settings::tell;
use super::super::syntax::cidr;
use super::bgp::{COMMUNITY, PRIORITY, community, system_of};
use super::fixed::OBJECT;

/// The maximum number of items of `operations` and of `prependASPath`.
const MOST: usize = 10;
const RULE: &[&str] = &[
    "action",
    "asPathPrefix",
    "cidr",
    "communities",
    "interface",
    "matchOperator",
    "operations",
    "peerType",
    "prefixLength",
    "priority",
    "source",
];
const OPERATIONS: &[&str] = &["addCommunity", "prependASPath", "setPriority"];
const INTERFACE: &str =
    "an interface's name, perhaps with *: at most 15 letters, digits, '_', '.', '-' and '*'";

/// Reads a filter. Returns `None`, with an error in `out`, if the object is not a mapping.
pub(in super::super) fn bgp_filter(root: &Cursor<'_>, out: &mut Findings) -> Option<BgpFilter> {
    root.mapping(out, OBJECT, &["status"]);
    let Some(spec) = root.field("spec") else { return Some(BgpFilter::default()) };
    if !tell(&spec, Kind::BgpFilter, out) {
        return None;
    }
    let mut rules = |key: &str, is_v4: bool| {
        let field = spec.field(key);
        let rules = field.map(|field| field.items(out, |item, out| rule(item, is_v4, out)));
        rules.unwrap_or_default()
    };
    Some(BgpFilter {
        export_v4: rules("exportV4", true),
        export_v6: rules("exportV6", false),
        import_v4: rules("importV4", true),
        import_v6: rules("importV6", false),
    })
}

fn rule(item: &Cursor<'_>, is_v4: bool, out: &mut Findings) -> Option<FilterRule> {
    if !item.exact(out, RULE) {
        return None;
    }
    let filled = |key| item.field(key).filter(|field| !field.is_empty());
    let action = "Accept or Reject";
    let accepts = item.required(out, "action", action)?.parsed(out, action, |text| match text {
        "Accept" => Some(true),
        "Reject" => Some(false),
        _ => None,
    });
    let net = net(item, is_v4, out);
    let source = filled("source").and_then(|field| {
        field.parsed(out, "RemotePeers", |text| (text == "RemotePeers").then_some(()))
    });
    let interface = filled("interface").and_then(|field| {
        field.parsed(out, INTERFACE, |text| is_interface(text).then(|| text.to_owned()))
    });
    let internal_peer = filled("peerType").and_then(|field| {
        field.parsed(out, "eBGP or iBGP", |text| match text {
            "iBGP" => Some(true),
            "eBGP" => Some(false),
            _ => None,
        })
    });
    let communities = item.field("communities").and_then(|field| {
        field.exact(out, &["values"]);
        let values = field.required(out, "values", "a list of one community")?;
        let all = values.items(out, |item, out| item.parsed(out, COMMUNITY, community));
        if all.len() != 1 {
            values.expected(out, "one community");
        }
        all.first().copied()
    });
    let path_begins = item.field("asPathPrefix").map(|field| systems(&field, out));
    let priority = item.field("priority").and_then(|field| priority(&field, out));
    let operations = operations(item, accepts, out);
    Some(FilterRule {
        net,
        from_peers: source.is_some(),
        interface,
        internal_peer,
        community: communities,
        path_begins: path_begins.unwrap_or_default(),
        priority,
        accepts: accepts?,
        operations,
    })
}

/// Reads `cidr`, `matchOperator` and `prefixLength`. `cidr` and `matchOperator` require each other, and `prefixLength`
/// requires both.
fn net(item: &Cursor<'_>, is_v4: bool, out: &mut Findings) -> Option<NetMatch> {
    let filled = |key| item.field(key).filter(|field| !field.is_empty());
    let (expected, most) = if is_v4 {
        ("an IPv4 CIDR such as 10.0.0.0/8", 32)
    } else {
        ("an IPv6 CIDR such as fd00::/64", 128)
    };
    let operator = "Equal, NotEqual, In or NotIn";
    let Some(net) = filled("cidr") else {
        for key in ["matchOperator", "prefixLength"] {
            if let Some(field) = filled(key) {
                field.conflict(out, "may stand beside cidr only");
            }
        }
        return None;
    };
    let net = net.parsed(out, expected, |text| {
        cidr(text).filter(|net| net.addr().is_ipv4() == is_v4).map(|net| net.trunc())
    });
    let operator = item.required(out, "matchOperator", operator).and_then(|field| {
        field.parsed(out, operator, |text| match text {
            "Equal" => Some(NetOperator::Equal),
            "NotEqual" => Some(NetOperator::NotEqual),
            "In" => Some(NetOperator::In),
            "NotIn" => Some(NetOperator::NotIn),
            _ => None,
        })
    });
    let lengths = item.field("prefixLength");
    let lengths = lengths.filter(|field| field.exact(out, &["min", "max"]));
    let mut length = |key: &str| {
        let expected = format!("a prefix length from 0 to {most}");
        lengths.as_ref()?.field(key)?.integer::<u8>(out, &expected, 0..=most)
    };
    let (shortest, longest) = (length("min"), length("max"));
    Some(NetMatch { cidr: net?, operator: operator?, shortest, longest })
}

fn systems(field: &Cursor<'_>, out: &mut Findings) -> Vec<u32> {
    field.items(out, |item, out| {
        let number = system_of(item);
        if number.is_none() {
            item.expected(out, "the number of an autonomous system");
        }
        number
    })
}

fn priority(field: &Cursor<'_>, out: &mut Findings) -> Option<u32> {
    field.integer(out, PRIORITY, 1..=2_147_483_646)
}

fn operations(item: &Cursor<'_>, accepts: Option<bool>, out: &mut Findings) -> Vec<Operation> {
    let Some(field) = item.field("operations").filter(|field| !field.is_empty()) else {
        return Vec::new();
    };
    if accepts == Some(false) {
        field.conflict(out, "may stand beside the action Accept only");
    }
    let operations = field.items(out, operation);
    if operations.len() > MOST {
        field.expected(out, format!("at most {MOST} operations"));
    }
    operations
}

fn operation(item: &Cursor<'_>, out: &mut Findings) -> Option<Operation> {
    if !item.exact(out, OPERATIONS) {
        return None;
    }
    let [community_field, path, priority_field] = [0, 1, 2].map(|at| item.field(OPERATIONS[at]));
    match (community_field, path, priority_field) {
        (Some(field), None, None) => {
            field.exact(out, &["value"]);
            let value = field.required(out, "value", COMMUNITY)?;
            value.parsed(out, COMMUNITY, community).map(Operation::AddCommunity)
        }
        (None, Some(field), None) => {
            field.exact(out, &["prefix"]);
            let prefix = field.required(out, "prefix", "a list of autonomous systems")?;
            let path = systems(&prefix, out);
            if path.is_empty() || path.len() > MOST {
                prefix.expected(out, format!("1 to {MOST} autonomous systems"));
            }
            Some(Operation::PrependPath(path))
        }
        (None, None, Some(field)) => {
            field.exact(out, &["value"]);
            let value = field.required(out, "value", PRIORITY)?;
            priority(&value, out).map(Operation::SetPriority)
        }
        _ => {
            item.expected(out, "one of addCommunity, prependASPath and setPriority");
            None
        }
    }
}

fn is_interface(text: &str) -> bool {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-*".contains(&byte);
    text.len() <= 15 && text.bytes().all(is_legal)
}
