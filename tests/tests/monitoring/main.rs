//! Checks what `deploy/monitoring` says about metrics: every name is in `docs/metrics.md`, which is
//! correct for an agent (`node/observe`); the dashboard is generated from that page; promtool
//! accepts the rules, and every alert fires as it should.

mod dashboard;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use manx_fixtures::skip::{Need, skip};
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn monitoring(name: &str) -> String {
    let path = root().join("deploy/monitoring").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A row of the page of metrics.
#[derive(Debug)]
struct Metric {
    name: String,
    kind: String,
    labels: Vec<String>,
    meaning: String,
}

/// The metrics of `docs/metrics.md`, in its order.
fn metrics() -> Vec<Metric> {
    let page = fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| `manx_"));
    let metric = |row: &str| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, meaning] = cells[..] else { panic!("four cells: {row}") };
        let labels = labels.replace('`', "");
        Metric {
            name: name.replace('`', ""),
            kind: kind.to_owned(),
            labels: labels.split(", ").filter(|it| !it.is_empty()).map(str::to_owned).collect(),
            meaning: meaning.to_owned(),
        }
    };
    let metrics: Vec<Metric> = rows.map(metric).collect();
    assert!(metrics.len() > 30, "{}", metrics.len());
    metrics
}

/// The words of a text that begin with `manx_`, without those that are a prefix of several metrics
/// (`manx_flow*`).
fn names(text: &str) -> BTreeSet<&str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c: char| !is_word(c));
    words.filter(|word| word.starts_with("manx_")).collect()
}

/// Whether a name is a metric of the page, or one of the series of a histogram.
fn is_known(name: &str, metrics: &[Metric]) -> bool {
    metrics.iter().any(|metric| {
        let series = name.strip_prefix(metric.name.as_str());
        let of_histogram = metric.kind == "histogram";
        match series {
            Some("") => !of_histogram,
            Some("_bucket" | "_sum" | "_count") => of_histogram,
            _ => false,
        }
    })
}

#[test]
fn every_metric_that_monitoring_names_is_one_of_the_page() {
    let metrics = metrics();
    let mut seen = 0;
    for file in fs::read_dir(root().join("deploy/monitoring")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        let text = monitoring(&name);
        for word in names(&text) {
            assert!(is_known(word, &metrics), "{name} names {word}, which docs/metrics.md has not");
            seen += 1;
        }
    }
    assert!(seen > 50, "{seen}");
    assert!(!is_known("manx_flow", &metrics) && !is_known("manx_flows_bucket", &metrics));
    assert!(!is_known("manx_publish_duration_seconds", &metrics), "a histogram has no such series");
}

/// Checks the labels by which each alert and each test selects or sums. The metric must have them.
#[test]
fn every_label_that_the_rules_select_by_is_one_of_the_metric() {
    let labels: BTreeMap<String, Vec<String>> =
        metrics().into_iter().map(|metric| (metric.name, metric.labels)).collect();
    let mut seen = 0;
    let tests = fs::read_to_string(root().join("tests/tests/monitoring/rules.test.yaml")).unwrap();
    for text in [monitoring("rules.yaml"), tests] {
        for (at, _) in text.match_indices('{') {
            let before: String = text[..at]
                .chars()
                .rev()
                .take_while(|c| c.is_ascii_lowercase() || *c == '_')
                .collect();
            let name: String = before.chars().rev().collect();
            let Some(known) = labels.get(name.trim_end_matches("_bucket")) else { continue };
            let selector = text[at + 1..].split('}').next().unwrap();
            for part in selector.split("\",").filter(|part| !part.is_empty()) {
                let label = part.split(['=', '!']).next().unwrap();
                let of_all = ["instance", "le"].contains(&label);
                assert!(of_all || known.iter().any(|it| it == label), "{name} has no {label}");
                seen += 1;
            }
        }
    }
    assert!(seen > 40, "{seen}");
}

/// The `spec` of the PrometheusRule, which is a file of rules.
fn rules() -> String {
    let text = monitoring("rules.yaml");
    let (_, spec) = text.split_once("\nspec:\n").unwrap();
    spec.lines().map(|line| line.strip_prefix("  ").unwrap_or(line).to_owned() + "\n").collect()
}

/// promtool's standard output, and whether promtool succeeded; `None`: promtool is not installed.
fn promtool(test: &str, folder: &Path, arguments: &[&str]) -> Option<(bool, String)> {
    match Command::new("promtool").args(arguments).current_dir(folder).output() {
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            Some((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
        }
        Err(error) => {
            skip(Need::Promtool, test, &format!("promtool (apt-get install prometheus): {error}"));
            None
        }
    }
}

#[test]
fn promtool_takes_the_rules_and_every_alert_fires_and_stays_quiet_as_it_should() {
    let test = "promtool_takes_the_rules_and_every_alert_fires_and_stays_quiet_as_it_should";
    let folder = tempfile::tempdir().unwrap();
    let rules = rules();
    let cases = include_str!("rules.test.yaml");
    // Each alert has a case in which it fires, and one in which it does not.
    let alerts: Vec<&str> =
        rules.lines().filter_map(|line| line.split("- alert: ").nth(1)).collect();
    assert!(alerts.len() >= 14, "{alerts:?}");
    for alert in &alerts {
        assert!(cases.contains(&format!("alertname: {alert}}}")), "{alert} is never quiet");
        let fires = format!("alertname: {alert}\n    exp_alerts:");
        assert!(cases.contains(&fires), "{alert} never fires");
    }
    fs::write(folder.path().join("rules.yaml"), &rules).unwrap();
    fs::write(folder.path().join("rules.test.yaml"), cases).unwrap();
    let run = |arguments: &[&str]| promtool(test, folder.path(), arguments);
    let Some((content, text)) = run(&["check", "rules", "rules.yaml"]) else { return };
    assert!(content && text.contains(&format!("{} rules found", alerts.len())), "{text}");
    let Some((content, text)) = run(&["test", "rules", "rules.test.yaml"]) else { return };
    assert!(content, "{text}");
    // A changed rule is found.
    fs::write(folder.path().join("rules.yaml"), rules.replace("> 3600", "> 36000")).unwrap();
    let Some((content, text)) = run(&["test", "rules", "rules.test.yaml"]) else { return };
    assert!(!content && text.contains("ManxStaleForAnHour"), "{text}");
}

#[test]
fn the_dashboard_is_made_of_the_page_of_metrics() {
    let made = serde_json::to_string_pretty(&dashboard::dashboard(&metrics())).unwrap() + "\n";
    let path = root().join("deploy/monitoring/dashboard.json");
    if std::env::var_os("MANX_WRITE").is_some() {
        fs::write(&path, &made).unwrap();
    }
    assert!(
        fs::read_to_string(&path).unwrap_or_default() == made,
        "deploy/monitoring/dashboard.json is not what docs/metrics.md says: MANX_WRITE=1 cargo test -p manx-tests --test monitoring writes it"
    );
    let known = names(&made).len();
    assert!(known >= metrics().len(), "{known}");
}

#[test]
fn promtool_takes_every_expression_of_the_dashboard() {
    let test = "promtool_takes_every_expression_of_the_dashboard";
    let dashboard: Value = serde_json::from_str(&monitoring("dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let rule = |(at, target): (usize, &Value)| {
        let expr = target["expr"].as_str().unwrap().replace("$__rate_interval", "5m");
        format!("  - record: panel:{at}\n    expr: {}\n", Value::from(expr))
    };
    let rules: Vec<String> = targets.enumerate().map(rule).collect();
    let folder = tempfile::tempdir().unwrap();
    let text = format!("groups:\n- name: panels\n  rules:\n{}", rules.concat());
    fs::write(folder.path().join("panels.yaml"), text).unwrap();
    let arguments = ["check", "rules", "panels.yaml"];
    let Some((content, text)) = promtool(test, folder.path(), &arguments) else { return };
    assert!(content && text.contains(&format!("{} rules found", rules.len())), "{text}");
}
