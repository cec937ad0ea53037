//! The dashboard for Grafana: a panel for each metric of the page, with the page's words.

use serde_json::{Value, json};

use super::Metric;

/// The rows of the dashboard, each with prefixes of metric names. A metric is in the first row with
/// a matching prefix.
const ROWS: [(&str, &[&str]); 7] = [
    ("Agents", &["manx_build_info", "manx_start_time", "manx_datastore", "manx_tables_refuted"]),
    ("Pods of the node", &["manx_attached", "manx_unjudged", "manx_leases", "manx_pod_addresses"]),
    ("Packets", &["manx_received", "manx_sent", "manx_dropped"]),
    ("Policy", &["manx_rule", "manx_denied", "manx_unreported", "manx_policy", "manx_cluster"]),
    ("Workers and flows", &["manx_worker", "manx_flow"]),
    ("BGP", &["manx_bgp"]),
    ("Changes, and all else", &["manx_"]),
];
/// Grafana's grid is 24 wide.
const WIDTH: usize = 8;
const HEIGHT: usize = 7;

pub fn dashboard(metrics: &[Metric]) -> Value {
    let mut panels = Vec::new();
    let mut y = 0;
    for (at, (title, _)) in ROWS.iter().enumerate() {
        panels.push(json!({
            "id": panels.len() + 1, "type": "row", "title": title, "collapsed": false, "panels": [],
            "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
        }));
        y += 1;
        let of_row: Vec<&Metric> =
            metrics.iter().filter(|metric| row_of(&metric.name) == at).collect();
        for (place, metric) in of_row.iter().enumerate() {
            let (column, line) = (place % 3, place / 3);
            let mut panel = panel(metric);
            panel["id"] = (panels.len() + 1).into();
            panel["gridPos"] =
                json!({"x": column * WIDTH, "y": y + line * HEIGHT, "w": WIDTH, "h": HEIGHT});
            panels.push(panel);
        }
        y += of_row.len().div_ceil(3) * HEIGHT;
    }
    json!({
        "title": "Manx",
        "uid": "manx",
        "tags": ["manx", "kubernetes"],
        "schemaVersion": 39,
        "editable": true,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [
            {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
            {
                "name": "instance", "label": "Node", "type": "query", "multi": true, "includeAll": true,
                "allValue": ".*", "refresh": 2, "sort": 1, "datasource": source(),
                "query": "label_values(manx_build_info, instance)",
            },
        ]},
        "panels": panels,
    })
}

fn row_of(name: &str) -> usize {
    let fits = |row: &(&str, &[&str])| row.1.iter().any(|begin| name.starts_with(begin));
    ROWS.iter().position(fits).expect("the last row has all")
}

fn source() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

fn panel(metric: &Metric) -> Value {
    let Metric { name, kind, labels, meaning } = metric;
    let by: Vec<&str> = ["instance"].into_iter().chain(labels.iter().map(String::as_str)).collect();
    let here = "{instance=~\"$instance\"}";
    let (expr, unit) = match kind.as_str() {
        "counter" => (
            format!("sum by ({}) (rate({name}{here}[$__rate_interval]))", by.join(", ")),
            if name.contains("bytes") { "Bps" } else { "cps" },
        ),
        "histogram" => (
            format!(
                "histogram_quantile(0.99, sum by (instance, le) (rate({name}_bucket{here}[$__rate_interval])))"
            ),
            "s",
        ),
        "gauge" if name.contains("timestamp") || name.contains("start_time") => {
            (format!("time() - {name}{here}"), "s")
        }
        "gauge" => {
            (format!("{name}{here}"), if name.contains("bytes") { "bytes" } else { "short" })
        }
        kind => panic!("{name} is a {kind}"),
    };
    let legend: Vec<String> = by.iter().map(|label| format!("{{{{{label}}}}}")).collect();
    let title = name.trim_start_matches("manx_").trim_end_matches("_total").replace('_', " ");
    let title = match kind.as_str() {
        "counter" => format!("{title}, per second"),
        "histogram" => format!("{title}, 99 of 100"),
        _ if expr.starts_with("time()") => format!("{title}, ago"),
        _ => title,
    };
    json!({
        "type": "timeseries",
        "title": title,
        "description": meaning,
        "datasource": source(),
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": [{"refId": "A", "expr": expr, "legendFormat": legend.join(" "), "datasource": source()}],
    })
}
