//! `manx service show`.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use clap::Args;
use comfy_table::Cell;
use manx_analysis::services::shown::{Group, Nodes, ShownHealthCheck, ShownPort, ShownService};
use manx_calculation::services::view::FrontendView;
use manx_calculation::services::{AddressKind, TrafficPolicy};
use manx_objects::few;
use manx_objects::object::{Kind, ObjectKey, ServiceType};
use manx_policy_compiler::model::ObjectName;
use serde_json::{Value, json};

use super::asked::{Asked, MOST_RANGES, affinity_text, policy_name, texts, type_name};
use crate::Error;
use crate::output::{self, Output};

/// The most nodes that a line names.
const MOST_NODES: usize = 5;

/// The settings of `manx service show`.
#[derive(Debug, Clone, Args)]
pub struct Show {
    /// The Service's namespace, if NAME does not contain it [default: default]
    #[arg(long, short, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// The Service: NAME or NAMESPACE/NAME
    #[arg(value_name = "NAME", value_parser = service_name)]
    pub name: ServiceName,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub asked: Asked,
}

/// A Service as users name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceName {
    /// Its namespace, if it is given.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

fn service_name(text: &str) -> Result<ServiceName, String> {
    let (namespace, name) = text.split_once('/').map_or((None, text), |(of, it)| (Some(of), it));
    if name.is_empty() || name.contains('/') || namespace.is_some_and(str::is_empty) {
        return Err("expected NAME or NAMESPACE/NAME".to_owned());
    }
    Ok(ServiceName { namespace: namespace.map(str::to_owned), name: name.to_owned() })
}

impl Show {
    /// The name of the requested Service.
    fn service(&self) -> Result<ObjectName, Error> {
        let ServiceName { namespace, name } = &self.name;
        match (namespace, &self.namespace) {
            (Some(of_name), Some(namespace)) if of_name != namespace => {
                Err(Error::Invalid(format!(
                    "{of_name}/{name} is of namespace {of_name}, and --namespace says {namespace}: leave one of them out"
                )))
            }
            (namespace, other) => {
                let namespace = namespace.as_ref().or(other.as_ref());
                Ok(ObjectName::new(namespace.map_or("default", String::as_str), name))
            }
        }
    }
}

/// Prints what nodes do with a Service.
pub fn run(show: &Show) -> Result<(), Error> {
    let name = show.service()?;
    let Some(completed) = show.asked.read()? else { return Ok(()) };
    let tables = show.asked.tables(&completed)?;
    let shown = tables.shown(&name).map_err(Error::Invalid)?;
    let key = ObjectKey::new(Kind::Service, &name.namespace, &name.name);
    let assumed = completed.assumed.cluster_ips.get(&key).map_or(&[][..], Vec::as_slice);
    match show.asked.output {
        Output::Text => output::print(&render(&shown, assumed)),
        Output::Json => output::print_json(&as_json(&shown, assumed)),
    }
}

/// A Service as text. `assumed`: the cluster IPs that the manifests do not have.
pub(super) fn render(shown: &ShownService<'_>, assumed: &[IpAddr]) -> String {
    let ShownService { name, service, nodes, left_alone, traffic, health_check, .. } = shown;
    let ShownService { untranslated, is_known, ports, without_tables, .. } = shown;
    // Writing to a String cannot fail.
    let mut text = String::new();
    let policy = |name: &str, is_local: Option<bool>| {
        is_local.map(|is_local| format!(", {name} {}", policy_name(is_local))).unwrap_or_default()
    };
    let service_type = service.service_type.unwrap_or(ServiceType::ClusterIp);
    let _ = writeln!(
        text,
        "Service {name}: type {}{}{}{}",
        type_name(service_type),
        policy("internalTrafficPolicy", traffic.internal_local),
        policy("externalTrafficPolicy", traffic.external_local),
        traffic.affinity.map(|it| format!(", {}", affinity_text(it))).unwrap_or_default()
    );
    if let Some(why) = left_alone {
        let _ = writeln!(text, "not translated: {why}");
        return text;
    }
    if !assumed.is_empty() {
        let _ = writeln!(text, "the manifests have no clusterIP, assumed: {}", few(assumed, 2));
    }
    if !traffic.source_ranges.is_empty() {
        let _ = writeln!(
            text,
            "loadBalancerSourceRanges {}: at the load balancer's addresses other clients get no answer",
            few(&traffic.source_ranges, MOST_RANGES)
        );
    }
    if let Some(check) = health_check {
        render_health_check(&mut text, check, nodes);
    }
    for why in without_tables {
        let _ = writeln!(text, "a node without tables: {why}");
    }
    for (address, why) in untranslated {
        let _ = writeln!(text, "{address} is not translated: {why}");
    }
    if !is_known {
        let _ = writeln!(
            text,
            "connections are refused: an EndpointSlice of namespace {} is not valid and may be its",
            name.namespace
        );
    }
    for port in ports {
        render_port(&mut text, port, nodes);
        if port.port.node_port.is_none()
            && !assumed.is_empty()
            && matches!(service_type, ServiceType::NodePort | ServiceType::LoadBalancer)
        {
            let _ = writeln!(text, "  no nodePort in the manifests: the API server may choose one");
        }
    }
    text
}

/// Writes the nodes on which load balancers find ready endpoints, for each family that the Service
/// has.
fn render_health_check(text: &mut String, check: &ShownHealthCheck, all: &[&str]) {
    let (port, ready) = match check {
        ShownHealthCheck::Served { port, ready } => (port, ready),
        ShownHealthCheck::Unserved(why) => {
            let _ = writeln!(text, "{why}");
            return;
        }
    };
    let counts = |family: usize| {
        let of_family = ready.iter().filter_map(move |(node, it)| Some((*node, it[family]?)));
        of_family.collect::<Vec<(usize, usize)>>()
    };
    let families = [("IPv4", counts(0)), ("IPv6", counts(1))];
    let several = families.iter().all(|(_, counts)| !counts.is_empty());
    for (family, counts) in families.iter().filter(|(_, counts)| !counts.is_empty()) {
        let family = if several { format!(" by {family}") } else { String::new() };
        let (with, without): (Vec<_>, Vec<_>) = counts.iter().partition(|(_, ready)| *ready > 0);
        let answers = [("200", "with ready endpoints", with), ("503", "without", without)];
        let answers = answers.into_iter().filter(|(_, _, nodes)| !nodes.is_empty());
        let answers = answers.map(|(code, why, nodes)| {
            let nodes: Nodes = nodes.into_iter().map(|(node, _)| node).collect();
            format!("{code} on {} ({why})", which(&nodes, all))
        });
        let answers = answers.collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "healthCheckNodePort {port}{family}: {answers}");
    }
}

fn render_port(text: &mut String, shown: &ShownPort, all: &[&str]) {
    let ShownPort { port, omissions, groups } = shown;
    let name = port.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
    let _ = writeln!(text, "\n{} {}{name}", port.protocol, port.number);
    for (why, nodes) in omissions {
        let _ = writeln!(text, "  left out{}: {why}", on(nodes, all));
    }
    if groups.is_empty() && omissions.is_empty() {
        let _ = writeln!(text, "  no address, and no endpoint");
    }
    for group in groups {
        let _ = writeln!(text, "  {}: {}", at(group, all), endpoints_of(group.policy));
        render_taken(text, group);
        if frontends(group).next().is_some() && frontends(group).all(|it| it.taken_by.is_some()) {
            continue;
        }
        if group.endpoints.is_empty() {
            let _ = writeln!(text, "    no endpoint: refused");
            continue;
        }
        let rows = group.endpoints.iter().map(|((address, port, node), fate)| {
            let left_out = fate.left_out.iter().map(|(why, nodes)| {
                // If no node has a backend, the reason alone is enough.
                let nodes = if fate.backend_for.is_empty() && nodes.len() == all.len() {
                    String::new()
                } else {
                    format!("{}: ", which(nodes, all))
                };
                format!("{nodes}{why}")
            });
            [
                endpoint(*address, *port),
                node.as_deref().unwrap_or("-").to_owned(),
                if fate.backend_for.is_empty() {
                    "-".to_owned()
                } else {
                    which(&fate.backend_for, all)
                },
                left_out.collect::<Vec<_>>().join("; "),
            ]
            .map(Cell::new)
        });
        let header = ["endpoint", "its node", "backend for", "left out"];
        for line in output::table(header, &[], rows.collect()).lines() {
            let _ = writeln!(text, "    {line}");
        }
        for (nodes, what) in [
            (&group.refused, "no backend: refused"),
            (&group.dropped, "no backend, and other nodes have one: dropped"),
        ] {
            if !nodes.is_empty() {
                let _ = writeln!(text, "    {what}{}", on(nodes, all));
            }
        }
    }
}

/// Writes the frontends that belong to another Service.
fn render_taken(text: &mut String, group: &Group) {
    for frontend in frontends(group) {
        if let Some(by) = &frontend.taken_by {
            let socket = SocketAddr::new(frontend.address, frontend.port);
            let _ = writeln!(
                text,
                "    {socket}: Service {by}, which comes first, gets the connections"
            );
        }
    }
}

fn frontends(group: &Group) -> impl Iterator<Item = &FrontendView> {
    group.frontends.iter().chain(group.of_nodes.values().flatten())
}

/// The frontends of a group.
fn at(group: &Group, all: &[&str]) -> String {
    let of_cluster = group.frontends.iter().map(|it| {
        let socket = SocketAddr::new(it.address, it.port);
        format!("{socket} ({})", kind_name(it.kind))
    });
    let of_nodes = group.of_nodes.iter().flat_map(|(node, frontends)| {
        let name = all.get(*node).copied().unwrap_or_default();
        frontends.iter().map(move |it| format!("{} on {name}", it.address))
    });
    let number = group.of_nodes.values().flatten().next().map(|it| it.port);
    let of_nodes = number.map(|port| format!("node port {port} ({})", few(of_nodes, MOST_NODES)));
    let found = of_cluster.chain(of_nodes).collect::<Vec<_>>().join(", ");
    if found.is_empty() { "no address yet".to_owned() } else { found }
}

fn endpoint(address: IpAddr, port: Option<u16>) -> String {
    port.map_or_else(|| address.to_string(), |port| SocketAddr::new(address, port).to_string())
}

const fn endpoints_of(policy: TrafficPolicy) -> &'static str {
    match policy {
        TrafficPolicy::Cluster => "endpoints of the cluster",
        TrafficPolicy::Consistent => "endpoints of the cluster, whatever hints say (maglev)",
        TrafficPolicy::Local => "endpoints of the client's node (Local)",
    }
}

const fn kind_name(kind: AddressKind) -> &'static str {
    match kind {
        AddressKind::ClusterIp => "cluster IP",
        AddressKind::LoadBalancer => "load balancer",
        AddressKind::LoadBalancerOutside => "load balancer, for clients from outside",
        AddressKind::ExternalIp => "external IP",
        AddressKind::ExternalIpOutside => "external IP, for clients from outside",
        AddressKind::NodePort => "node port",
    }
}

/// ` on NODES`, unless these are all nodes.
fn on(nodes: &Nodes, all: &[&str]) -> String {
    if nodes.len() == all.len() { String::new() } else { format!(" on {}", which(nodes, all)) }
}

fn which(nodes: &Nodes, all: &[&str]) -> String {
    if nodes.len() == all.len() {
        "every node".to_owned()
    } else {
        few(named(nodes, all), MOST_NODES)
    }
}

fn named<'a>(nodes: &'a Nodes, all: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    nodes.iter().filter_map(|it| all.get(*it).copied())
}

pub(super) fn as_json(shown: &ShownService<'_>, assumed: &[IpAddr]) -> Value {
    let all = &shown.nodes;
    let nodes = |of: &Nodes| named(of, all).map(str::to_owned).collect::<Vec<String>>();
    let port = |ShownPort { port, omissions, groups }: &ShownPort| {
        let omissions = omissions.iter();
        let omissions = omissions.map(|(why, of)| json!({"why": why, "nodes": nodes(of)}));
        json!({
            "port_name": port.name,
            "protocol": port.protocol.to_string(),
            "port": port.number,
            "node_port": port.node_port,
            "left_out": omissions.collect::<Vec<_>>(),
            "groups": groups.iter().map(|it| group_as_json(it, all)).collect::<Vec<_>>(),
        })
    };
    let health_check = |check: &ShownHealthCheck, all: &[&str]| match check {
        ShownHealthCheck::Unserved(why) => json!({ "left_out": why, "nodes": [] }),
        ShownHealthCheck::Served { port, ready } => {
            let nodes = ready.iter().map(|(node, [v4, v6])| {
                json!({ "node": all.get(*node), "ready_ipv4": v4, "ready_ipv6": v6 })
            });
            json!({ "port": port, "nodes": nodes.collect::<Vec<_>>() })
        }
    };
    let untranslated = shown.untranslated.iter();
    let untranslated =
        untranslated.map(|(address, why)| json!({"address": address, "why": why.to_string()}));
    json!({
        "namespace": shown.name.namespace,
        "name": shown.name.name,
        "type": type_name(shown.service.service_type.unwrap_or(ServiceType::ClusterIp)),
        "nodes": all,
        "without_tables": shown.without_tables,
        "internal_traffic_policy": policy_name(shown.service.internal_local),
        "external_traffic_policy": policy_name(shown.service.keeps_clients),
        "affinity_s": shown.traffic.affinity,
        "source_ranges": texts(&shown.traffic.source_ranges),
        "health_check": shown.health_check.as_ref().map(|it| health_check(it, all)),
        "assumed_addresses": assumed,
        "not_translated": shown.left_alone,
        "untranslated": untranslated.collect::<Vec<_>>(),
        "endpoints_known": shown.is_known,
        "ports": shown.ports.iter().map(port).collect::<Vec<_>>(),
    })
}

/// The frontends of a port with one traffic policy, and their endpoints. `all` are the names of all nodes.
fn group_as_json(group: &Group, all: &[&str]) -> Value {
    let nodes = |of: &Nodes| named(of, all).map(str::to_owned).collect::<Vec<String>>();
    let frontend = |node: Option<usize>, it: &FrontendView| {
        json!({
            "address": it.address,
            "port": it.port,
            "kind": kind_name(it.kind),
            "node": node.and_then(|it| all.get(it)),
            "taken_by": it.taken_by.as_ref().map(ToString::to_string),
        })
    };
    let of_nodes = group.of_nodes.iter();
    let of_nodes = of_nodes.flat_map(|(node, of)| of.iter().map(|it| frontend(Some(*node), it)));
    let frontends = group.frontends.iter().map(|it| frontend(None, it)).chain(of_nodes);
    let endpoints = group.endpoints.iter().map(|((address, port, node), fate)| {
        let left_out = fate.left_out.iter();
        let left_out =
            left_out.map(|(why, of)| json!({"why": why.to_string(), "nodes": nodes(of)}));
        json!({
            "address": address,
            "port": port,
            "node": node.as_deref(),
            "backend_for": nodes(&fate.backend_for),
            "left_out": left_out.collect::<Vec<_>>(),
        })
    });
    json!({
        "traffic_policy": policy_name(group.policy == TrafficPolicy::Local),
        "frontends": frontends.collect::<Vec<_>>(),
        "endpoints": endpoints.collect::<Vec<_>>(),
        "refused": nodes(&group.refused),
        "dropped": nodes(&group.dropped),
    })
}
