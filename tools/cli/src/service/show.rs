//! `manx service show`.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use clap::Args;
use comfy_table::Cell;
use manx_analysis::services::shown::{Group, Nodes, ShownPort, ShownService};
use manx_calculation::services::view::FrontendView;
use manx_calculation::services::{AddressKind, TrafficPolicy};
use manx_objects::few;
use manx_objects::object::ServiceType;
use manx_policy_compiler::model::ObjectName;
use serde_json::{Value, json};

use super::asked::{Asked, type_name};
use crate::Error;
use crate::output::{self, Output};

/// The most nodes that a line names.
const MOST_NODES: usize = 5;

/// The settings of `manx service show`.
#[derive(Debug, Clone, Args)]
pub struct Show {
    /// The Service's namespace, if NAME has none [default: default]
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
    /// Its namespace, if it is said.
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
    /// The Service that is asked about.
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
    match show.asked.output {
        Output::Text => output::print(&render(&shown)),
        Output::Json => output::print_json(&as_json(&shown)),
    }
}

pub(super) fn render(shown: &ShownService<'_>) -> String {
    let ShownService { name, service, nodes, left_alone, .. } = shown;
    let ShownService { affinity, untranslated, is_known, ports, without_tables, .. } = shown;
    // Writing to a String cannot fail.
    let mut text = String::new();
    let affinity = affinity.map(|seconds| format!(", sessionAffinity ClientIP for {seconds} s"));
    let _ = writeln!(
        text,
        "Service {name}: type {}, internalTrafficPolicy {}, externalTrafficPolicy {}{}",
        type_name(service.service_type.unwrap_or(ServiceType::ClusterIp)),
        policy_name(service.internal_local),
        policy_name(service.keeps_clients),
        affinity.unwrap_or_default()
    );
    if let Some(why) = left_alone {
        let _ = writeln!(text, "not translated: {why}");
        return text;
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
    }
    text
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
                // Where there is no backend anywhere, the reason alone says it.
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

/// Says which frontends are another Service's.
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
        TrafficPolicy::Alike => "endpoints of the cluster, whatever hints say (maglev)",
        TrafficPolicy::Local => "endpoints of the client's node (Local)",
    }
}

const fn policy_name(is_local: bool) -> &'static str {
    if is_local { "Local" } else { "Cluster" }
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

/// ` on NODES`, unless it is all of them.
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

pub(super) fn as_json(shown: &ShownService<'_>) -> Value {
    let all = &shown.nodes;
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
    let group = |group: &Group| {
        let of_nodes = group.of_nodes.iter();
        let of_nodes =
            of_nodes.flat_map(|(node, of)| of.iter().map(|it| frontend(Some(*node), it)));
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
    };
    let port = |ShownPort { port, omissions, groups }: &ShownPort| {
        let omissions = omissions.iter();
        let omissions = omissions.map(|(why, of)| json!({"why": why, "nodes": nodes(of)}));
        json!({
            "port_name": port.name,
            "protocol": port.protocol.to_string(),
            "port": port.number,
            "node_port": port.node_port,
            "left_out": omissions.collect::<Vec<_>>(),
            "groups": groups.iter().map(group).collect::<Vec<_>>(),
        })
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
        "affinity_s": shown.affinity,
        "not_translated": shown.left_alone,
        "untranslated": untranslated.collect::<Vec<_>>(),
        "endpoints_known": shown.is_known,
        "ports": shown.ports.iter().map(port).collect::<Vec<_>>(),
    })
}
