//! `manx service list`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use clap::Args;
use comfy_table::Cell;
use manx_analysis::services::list::Row;
use manx_analysis::services::traffic::Traffic;
use manx_objects::few;
use manx_objects::object::{Kind, ObjectKey};
use serde_json::{Value, json};

use super::asked::{Asked, MOST_RANGES, affinity_text, policy_name, texts, type_name};
use crate::Error;
use crate::output::{self, Output};

/// The settings of `manx service list`.
#[derive(Debug, Clone, Args)]
pub struct List {
    /// Only the Services of this namespace. May be repeated
    #[arg(long, short, value_name = "NAMESPACE")]
    pub namespace: Vec<String>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub asked: Asked,
}

/// Prints a row for each port of each Service.
pub fn run(list: &List) -> Result<(), Error> {
    let Some(completed) = list.asked.read()? else { return Ok(()) };
    let rows = list.asked.tables(&completed)?.rows(&list.namespace).map_err(Error::Invalid)?;
    let assumed = &completed.assumed.cluster_ips;
    match list.asked.output {
        Output::Text => output::print(&render(&rows, assumed)),
        Output::Json => output::print_json(&as_json(&rows, assumed)),
    }
}

/// The assumed cluster IPs of Services that have none in the manifests.
type AssumedIps = BTreeMap<ObjectKey, Vec<IpAddr>>;

fn assumed_ips<'a>(assumed: &'a AssumedIps, row: &Row) -> &'a [IpAddr] {
    let key = ObjectKey::new(Kind::Service, &row.name.namespace, &row.name.name);
    assumed.get(&key).map_or(&[], Vec::as_slice)
}

pub(super) fn render(rows: &[Row], assumed: &AssumedIps) -> String {
    let rows = rows.iter().map(|row| {
        let or_none = |text: String| if text.is_empty() { "-".to_owned() } else { text };
        let addresses: Vec<String> = row.addresses.iter().map(ToString::to_string).collect();
        let port = row.port.as_ref();
        let named = |text: Option<String>| Cell::new(text.unwrap_or_else(|| "-".to_owned()));
        [
            Cell::new(&row.name),
            Cell::new(row.service_type.map_or("-", type_name)),
            Cell::new(or_none(addresses.join(","))),
            named(port.map(|it| format!("{}/{}", it.protocol, it.number))),
            named(port.and_then(|it| it.node_port).map(|it| it.to_string())),
            Cell::new(format!("{}/{}", row.backends, row.endpoints)),
            Cell::new(notes(row, !assumed_ips(assumed, row).is_empty())),
        ]
    });
    let header = ["service", "type", "addresses", "port", "node port", "backends", "note"];
    output::table(header, &[4, 5], rows.collect())
}

/// The text of the column "note": the reason why there is no backend, the parts that are left out,
/// and those settings of the Service for its clients that differ from the default.
fn notes(row: &Row, is_assumed: bool) -> String {
    let mut notes = row.notes.clone();
    notes.extend(row.traffic.as_ref().into_iter().flat_map(settings));
    notes.extend(row.health_check.map(|port| format!("healthCheckNodePort {port}")));
    notes.extend(is_assumed.then(|| "its cluster IP is assumed".to_owned()));
    notes.join("; ")
}

fn settings(traffic: &Traffic) -> Vec<String> {
    let Traffic { internal_local, external_local, affinity, source_ranges } = traffic;
    let local = |name: &str, is_local: Option<bool>| {
        (is_local == Some(true)).then(|| format!("{name} {}", policy_name(true)))
    };
    let ranges = (!source_ranges.is_empty())
        .then(|| format!("loadBalancerSourceRanges {}", few(source_ranges, MOST_RANGES)));
    let all = [
        local("internalTrafficPolicy", *internal_local),
        local("externalTrafficPolicy", *external_local),
        affinity.map(affinity_text),
        ranges,
    ];
    all.into_iter().flatten().collect()
}

pub(super) fn as_json(rows: &[Row], assumed: &AssumedIps) -> Value {
    let row = |row: &Row| {
        let traffic = row.traffic.as_ref();
        let port = row.port.as_ref();
        json!({
            "namespace": row.name.namespace,
            "name": row.name.name,
            "type": row.service_type.map(type_name),
            "addresses": row.addresses,
            "port_name": port.and_then(|it| it.name.as_deref()),
            "protocol": port.map(|it| it.protocol.to_string()),
            "port": port.map(|it| it.number),
            "node_port": port.and_then(|it| it.node_port),
            "backends": row.backends,
            "endpoints": row.endpoints,
            "assumed_addresses": assumed_ips(assumed, row),
            "internal_traffic_policy": traffic.and_then(|it| it.internal_local).map(policy_name),
            "external_traffic_policy": traffic.and_then(|it| it.external_local).map(policy_name),
            "affinity_s": traffic.and_then(|it| it.affinity),
            "source_ranges": traffic.map(|it| texts(&it.source_ranges)).unwrap_or_default(),
            "health_check_port": row.health_check,
            "note": (!row.notes.is_empty()).then(|| row.notes.join("; ")),
        })
    };
    json!({ "services": rows.iter().map(row).collect::<Vec<_>>() })
}
