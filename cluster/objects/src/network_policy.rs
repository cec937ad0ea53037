//! `networking.k8s.io/v1` NetworkPolicy, checked as the API server checks it.
//!
//! Source: Kubernetes API reference, `NetworkPolicySpec`, and the documentation "Network Policies".

use ipnet::IpNet;

use super::calico::staged_action;
use super::cursor::{Cursor, Findings};
use super::intent;
use super::label_selector::label_selector;
use super::object::calico::StagedAction;
use super::object::{
    IpBlock, LabelSelector, NetworkPolicy, Peer, PolicyType, Port, PortNumber, Protocol, Rule,
};
use super::problem::Cause;
use super::syntax::{CIDR, PORT_NAME, PORT_NUMBER, is_port_name, port_number};
use super::tree::Value;

const SPEC: &[&str] = &["podSelector", "policyTypes", "ingress", "egress"];
const STAGED_SPEC: &[&str] = &["stagedAction", "podSelector", "policyTypes", "ingress", "egress"];

/// Reads `spec`. If `staged`, it is the `spec` of Calico's StagedKubernetesNetworkPolicy. Errors are in `out`; if there
/// are any, only the result's selector may be used. The selector is `None` if it could not be read completely.
pub(super) fn decode(
    root: &Cursor<'_>,
    staged: bool,
    out: &mut Findings,
) -> (NetworkPolicy, Option<LabelSelector>) {
    root.mapping(out, &["apiVersion", "kind", "metadata", "spec"], &["status"]);
    let mut policy = NetworkPolicy {
        pod_selector: LabelSelector::default(),
        policy_types: None,
        ingress: None,
        egress: None,
        staged_action: None,
    };
    // The API server accepts a policy without a spec: it selects every pod and allows no ingress.
    let Some(spec) = root.field("spec") else {
        intent::no_spec(root, "every pod of its namespace", out);
        return (policy, Some(LabelSelector::default()));
    };
    if !spec.exact(out, if staged { STAGED_SPEC } else { SPEC }) {
        return (policy, None);
    }
    if staged {
        policy.staged_action =
            spec.field("stagedAction").and_then(|field| staged_action(&field, out));
        if policy.staged_action == Some(StagedAction::Delete) {
            super::calico::nothing_but(&spec, &["stagedAction"], out);
        }
    }
    let mut readable = true;
    if let Some(selector) = spec.field("podSelector") {
        let before = out.count();
        policy.pod_selector = label_selector(&selector, out);
        readable = out.count() == before;
    }
    policy.policy_types = spec.field("policyTypes").map(|types| policy_types(&types, out));
    policy.ingress = spec.field("ingress").map(|list| rules(&list, "from", out));
    policy.egress = spec.field("egress").map(|list| rules(&list, "to", out));
    intent::rules_without_type(&spec, "policyTypes", policy.policy_types.as_deref(), out);
    intent::empty_without_type(
        &spec,
        ("policyTypes", policy.policy_types.as_deref()),
        "egress",
        out,
    );
    let selector = readable.then(|| policy.pod_selector.clone());
    (policy, selector)
}

fn policy_types(cursor: &Cursor<'_>, out: &mut Findings) -> Vec<PolicyType> {
    let types = cursor.items(out, |item, out| {
        item.parsed(out, "Ingress or Egress", |text| match text {
            "Ingress" => Some(PolicyType::Ingress),
            "Egress" => Some(PolicyType::Egress),
            _ => None,
        })
    });
    if types.len() > 2 {
        cursor.error(out, Cause::Conflict("may not name more than two policy types".to_owned()));
    }
    types
}

fn rules(list: &Cursor<'_>, peers_field: &'static str, out: &mut Findings) -> Vec<Rule> {
    let rules = list.items(out, |cursor, out| rule(cursor, peers_field, out));
    intent::separate_rules(list, &rules, peers_field == "to", out);
    rules
}

fn rule(cursor: &Cursor<'_>, peers_field: &'static str, out: &mut Findings) -> Option<Rule> {
    if !cursor.exact(out, &[peers_field, "ports"]) {
        return None;
    }
    for (key, every) in [(peers_field, "peer"), ("ports", "port of every protocol")] {
        intent::empty_condition(cursor, key, every, out);
    }
    let rule = Rule {
        peers: cursor.field(peers_field).map(|field| {
            let peers = field.items(out, peer);
            intent::separate_peers(&field, &peers, out);
            peers
        }),
        ports: cursor.field("ports").map(|ports| ports.items(out, port)),
    };
    if peers_field == "to" {
        few_pairs(cursor, &rule, out);
    }
    Some(rule)
}

/// The maximum number of pairs of a peer with selectors and a port, in an egress rule with named ports. The maximum is
/// larger by four for each such peer and for each port. It exists because a name stands for different ports at
/// different peers, so each peer needs its own list of ports.
const PAIRS: usize = 256;

fn few_pairs(cursor: &Cursor<'_>, rule: &Rule, out: &mut Findings) {
    let peers = rule.peers.iter().flatten();
    let peers = peers.filter(|peer| matches!(peer, Peer::Selectors { .. })).count();
    let ports: Vec<_> = rule.ports.iter().flatten().collect();
    let (pairs, most) = (peers * ports.len(), PAIRS + 4 * (peers + ports.len()));
    let names_ports = ports.iter().any(|it| matches!(it.port, Some(PortNumber::Name(_))));
    if names_ports && pairs > most {
        let message = format!(
            "names ports, and has {} ports for {peers} peers with selectors: found {pairs} pairs, expected {most} at most; make \
             several rules of it, or give the ports by number",
            ports.len()
        );
        cursor.error(out, Cause::Conflict(message));
    }
}

fn peer(cursor: &Cursor<'_>, out: &mut Findings) -> Option<Peer> {
    if !cursor.exact(out, &["podSelector", "namespaceSelector", "ipBlock"]) {
        return None;
    }
    let pods = cursor.field("podSelector").map(|selector| label_selector(&selector, out));
    let namespaces =
        cursor.field("namespaceSelector").map(|selector| label_selector(&selector, out));
    match (cursor.field("ipBlock"), pods, namespaces) {
        (None, None, None) => {
            let expected = "podSelector, namespaceSelector or ipBlock";
            cursor.error(out, Cause::Missing { expected: expected.to_owned() });
            None
        }
        (None, pods, namespaces) => Some(Peer::Selectors { pods, namespaces }),
        (Some(block), None, None) => ip_block(&block, out).map(Peer::IpBlock),
        (Some(block), _, _) => {
            let message =
                "may not be used together with podSelector or namespaceSelector in one peer";
            block.error(out, Cause::Conflict(message.to_owned()));
            None
        }
    }
}

fn ip_block(cursor: &Cursor<'_>, out: &mut Findings) -> Option<IpBlock> {
    if !cursor.exact(out, &["cidr", "except"]) {
        return None;
    }
    let block = cursor.required(out, "cidr", CIDR).and_then(|field| intent::net(&field, out));
    let except = match cursor.field("except") {
        Some(field) => field.items(out, |item, out| {
            let net = intent::net(item, out)?;
            if let Some(block) = block
                && !strictly_inside(net, block)
            {
                item.expected(out, format!("a CIDR inside {block} and smaller"));
                return None;
            }
            Some(net)
        }),
        None => Vec::new(),
    };
    Some(IpBlock { cidr: block?, except })
}

fn strictly_inside(net: IpNet, block: IpNet) -> bool {
    block.contains(&net.addr()) && net.prefix_len() > block.prefix_len()
}

fn port(cursor: &Cursor<'_>, out: &mut Findings) -> Option<Port> {
    if !cursor.exact(out, &["protocol", "port", "endPort"]) {
        return None;
    }
    let protocol = cursor.field("protocol").and_then(|field| policy_protocol(&field, out));
    let end_field = cursor.field("endPort");
    let end = end_field.and_then(|field| number(&field, out, PORT_NUMBER));
    let Some(field) = cursor.field("port") else {
        if end_field.is_some() {
            cursor.missing(out, "port", "a port number, because there is an endPort");
        }
        return Some(Port { protocol, port: None });
    };
    let port = if let Value::String(name) = &field.node.value {
        if !is_port_name(name) {
            field.expected(out, format!("{PORT_NUMBER} (without quotes), or {PORT_NAME}"));
        }
        if let Some(end_field) = end_field {
            let message = "may not be given where port is a name";
            end_field.error(out, Cause::Conflict(message.to_owned()));
        }
        PortNumber::Name(name.to_string())
    } else {
        let port = number(&field, out, &format!("{PORT_NUMBER}, or a port name"))?;
        if let (Some(end_field), Some(end)) = (end_field, end)
            && end < port
        {
            end_field.expected(out, format!("a port number not below port ({port})"));
        }
        PortNumber::Number { port, end }
    };
    Some(Port { protocol, port: Some(port) })
}

/// Returns the port number, and reports an error if this is something else.
pub(super) fn number(cursor: &Cursor<'_>, out: &mut Findings, expected: &str) -> Option<u16> {
    let number = match &cursor.node.value {
        Value::Integer(number) => port_number(*number),
        _ => None,
    };
    if number.is_none() {
        cursor.expected(out, expected);
    }
    number
}

/// Reads the protocol of a policy's port. Many authors write ICMP, which Kubernetes' policies cannot name.
pub(super) fn policy_protocol(cursor: &Cursor<'_>, out: &mut Findings) -> Option<Protocol> {
    if let Value::String(text) = &cursor.node.value
        && ["ICMP", "ICMPv6"].iter().any(|icmp| icmp.eq_ignore_ascii_case(text))
    {
        let expected = "TCP, UDP or SCTP: Kubernetes' policies have no ICMP. A rule without ports allows it, with all else of its \
                        peers; for ICMP alone write Calico's NetworkPolicy (projectcalico.org/v3), where a rule may have protocol: ICMP";
        cursor.expected(out, expected);
        return None;
    }
    protocol(cursor, out)
}

/// Returns the protocol, and reports an error if this is something else.
pub(super) fn protocol(cursor: &Cursor<'_>, out: &mut Findings) -> Option<Protocol> {
    cursor.parsed(out, "TCP, UDP or SCTP", |text| {
        Protocol::ALL.into_iter().find(|protocol| protocol.name() == text)
    })
}
