//! The terms of rules as text, in the words of their APIs.

use super::direction::Direction;
use super::rules::{Mismatch, PacketEnd, Rule, Terms};
use manx_objects::object::calico::{self, EntityRule};
use manx_objects::object::cluster::{ClusterPeer, ClusterProtocol};
use manx_objects::object::{self, LabelSelector, Operator, Peer, PortNumber};

/// Returns the term that failed, in the form that the rule uses.
pub(super) fn term(rule: &Rule, mismatch: Mismatch, direction: Direction) -> String {
    match &rule.terms {
        Terms::Everything => "nothing".to_owned(),
        Terms::Nothing => {
            "it asks for what cannot be decided here, and an Accept counts as not there".to_owned()
        }
        Terms::Kubernetes { ports, .. } if mismatch == Mismatch::PeerPorts => {
            format!("ports: {}", join(ports, kubernetes_port))
        }
        Terms::Kubernetes { wire, .. } => {
            let peers = wire.peers.as_deref().unwrap_or_default();
            format!("{}: {}", peers_field(direction), join(peers, kubernetes_peer))
        }
        Terms::Cluster { protocols, .. } if mismatch == Mismatch::PeerPorts => {
            format!("protocols: {}", join(protocols, cluster_port))
        }
        Terms::Cluster { wire, .. } => {
            format!("{}: {}", peers_field(direction), join(wire, cluster_peer))
        }
        Terms::Calico(terms) => calico_term(&terms.wire, mismatch),
    }
}

const fn peers_field(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    }
}

fn calico_term(wire: &calico::Rule, mismatch: Mismatch) -> String {
    let number = |number: Option<u8>| number.map(|n| n.to_string()).unwrap_or_default();
    let icmp = |icmp: Option<calico::IcmpMatch>| match icmp {
        Some(calico::IcmpMatch { kind: Some(kind), code: Some(code) }) => {
            format!("type {kind} code {code}")
        }
        Some(calico::IcmpMatch { kind: Some(kind), code: None }) => format!("type {kind}"),
        _ => "any".to_owned(),
    };
    let at = |end| match end {
        PacketEnd::Source => ("source", &wire.source),
        PacketEnd::Destination => ("destination", &wire.destination),
    };
    match mismatch {
        Mismatch::IpVersion => format!("ipVersion: {}", number(wire.ip_version)),
        Mismatch::Family => "nets, notNets: none of the packet's IP version".to_owned(),
        Mismatch::Http => "http: cannot be decided here".to_owned(),
        Mismatch::Protocol => format!("protocol: {}", number(wire.protocol)),
        Mismatch::NotProtocol => format!("notProtocol: {}", number(wire.not_protocol)),
        Mismatch::Icmp => format!("icmp: {}", icmp(wire.icmp)),
        Mismatch::NotIcmp => format!("notICMP: {}", icmp(wire.not_icmp)),
        Mismatch::Ports(end) => {
            let (end, entity) = at(end);
            format!("{end}.ports: {}", join(&entity.ports, calico_port))
        }
        Mismatch::NotPorts(end) => {
            let (end, entity) = at(end);
            format!("{end}.notPorts: {}", join(&entity.not_ports, calico_port))
        }
        Mismatch::Nets(end) => {
            let (end, entity) = at(end);
            format!("{end}.nets: {}", join(&entity.nets, ToString::to_string))
        }
        Mismatch::NotNets(end) => {
            let (end, entity) = at(end);
            format!("{end}.notNets: {}", join(&entity.not_nets, ToString::to_string))
        }
        Mismatch::Selector(end) => {
            let (end, entity) = at(end);
            format!("{end}: {}", selectors(entity))
        }
        Mismatch::NotSelector(end) => {
            let (end, entity) = at(end);
            format!("{end}.notSelector: {}", entity.not_selector.as_deref().unwrap_or_default())
        }
        Mismatch::Service(end) => {
            let (end, entity) = at(end);
            let name = entity.service.as_ref().map(|service| service.name.as_str());
            format!("{end}.services: {}", name.unwrap_or_default())
        }
        Mismatch::Peers | Mismatch::PeerPorts | Mismatch::Dropped => "nothing".to_owned(),
    }
}

/// Returns the combined requirement of an end's selectors.
fn selectors(entity: &EntityRule) -> String {
    let mut asked = Vec::new();
    let mut ask = |name: &str, text: Option<&String>| {
        if let Some(text) = text {
            asked.push(format!("{name} {text}"));
        }
    };
    ask("selector", entity.selector.as_ref());
    ask("namespaceSelector", entity.namespace_selector.as_ref());
    if let Some(accounts) = &entity.service_accounts {
        ask("serviceAccounts.selector", accounts.selector.as_ref());
        if !accounts.names.is_empty() {
            ask("serviceAccounts.names", Some(&accounts.names.join(", ")));
        }
    }
    if asked.is_empty() {
        return "notSelector, of the policy's namespace".to_owned();
    }
    asked.join(" and ")
}

fn join<T>(items: &[T], text: impl Fn(&T) -> String) -> String {
    items.iter().map(text).collect::<Vec<_>>().join(", ")
}

fn range(first: u16, last: u16) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

fn calico_port(port: &calico::Port) -> String {
    match port {
        calico::Port::Range(first, last) => range(*first, *last),
        calico::Port::Name(name) => name.clone(),
    }
}

fn kubernetes_port(port: &object::Port) -> String {
    let protocol = port.protocol.unwrap_or(object::Protocol::Tcp);
    match &port.port {
        None => protocol.to_string(),
        Some(PortNumber::Number { port, end }) => {
            format!("{protocol} {}", range(*port, end.unwrap_or(*port)))
        }
        Some(PortNumber::Name(name)) => format!("{protocol} {name}"),
    }
}

fn cluster_port(protocol: &ClusterProtocol) -> String {
    match protocol {
        ClusterProtocol::Ports { protocol, ports: None } => protocol.to_string(),
        ClusterProtocol::Ports { protocol, ports: Some((first, last)) } => {
            format!("{protocol} {}", range(*first, *last))
        }
        ClusterProtocol::Named(name) => name.clone(),
    }
}

fn kubernetes_peer(peer: &Peer) -> String {
    match peer {
        Peer::IpBlock(block) if block.except.is_empty() => format!("ipBlock {}", block.cidr),
        Peer::IpBlock(block) => {
            format!("ipBlock {} except {}", block.cidr, join(&block.except, ToString::to_string))
        }
        Peer::Selectors { pods, namespaces } => {
            let pods = pods.as_ref().map(|pods| format!("podSelector {}", labels(pods)));
            let namespaces =
                namespaces.as_ref().map(|spaces| format!("namespaceSelector {}", labels(spaces)));
            namespaces.into_iter().chain(pods).collect::<Vec<_>>().join(" and ")
        }
    }
}

fn cluster_peer(peer: &ClusterPeer) -> String {
    match peer {
        ClusterPeer::Networks(nets) => format!("networks {}", join(nets, ToString::to_string)),
        ClusterPeer::Nodes(selector) => format!("nodes {}", labels(selector)),
        ClusterPeer::Pods(pods) => {
            format!("namespaces {} and pods {}", labels(&pods.namespaces), labels(&pods.pods))
        }
    }
}

/// Returns a label selector in the form that kubectl uses.
fn labels(selector: &LabelSelector) -> String {
    let equal = selector.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
    let expressions = selector.match_expressions.iter().map(|expression| {
        let (key, values) = (&expression.key, expression.values.join(","));
        match expression.operator {
            Operator::In => format!("{key} in ({values})"),
            Operator::NotIn => format!("{key} notin ({values})"),
            Operator::Exists => key.clone(),
            Operator::DoesNotExist => format!("!{key}"),
        }
    });
    let all: Vec<String> = equal.chain(expressions).collect();
    if all.is_empty() { "(any)".to_owned() } else { all.join(",") }
}
