//! `manx service list`.

use clap::Args;
use comfy_table::Cell;
use manx_analysis::services::list::Row;
use serde_json::{Value, json};

use super::asked::{Asked, type_name};
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
    match list.asked.output {
        Output::Text => output::print(&render(&rows)),
        Output::Json => output::print_json(&as_json(&rows)),
    }
}

pub(super) fn render(rows: &[Row]) -> String {
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
            Cell::new(row.note.as_deref().unwrap_or_default()),
        ]
    });
    let header = ["service", "type", "addresses", "port", "node port", "backends", "note"];
    output::table(header, &[4, 5], rows.collect())
}

fn as_json(rows: &[Row]) -> Value {
    let row = |row: &Row| {
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
            "note": row.note,
        })
    };
    json!({ "services": rows.iter().map(row).collect::<Vec<_>>() })
}
