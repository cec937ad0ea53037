//! Renders a report for users: plain words, and colours if standard output is a terminal.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use comfy_table::{Attribute, Cell as TableCell, Color, ContentArrangement, Table, presets};

use super::check::{Finding, Observed};
use super::matrix::Outcome;
use super::measure::Measured;
use super::prober::Prober;
use super::report::Report;
use super::service::Service;
use manx_api::Device;

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Whether to colour.
    pub colour: bool,
    /// The width in columns.
    pub width: u16,
}

/// How many lines of deviations are printed; the export has all.
const DEVIATIONS: usize = 40;

/// A column of the truth table: the family (if it matters), the service, and whether the port is closed.
type Column = (bool, Service, bool);

/// The whole report.
pub fn text(report: &Report, style: Style) -> String {
    let mut out = String::new();
    truth(&mut out, report, style);
    counters(&mut out, report, style);
    samples(&mut out, &report.samples, style);
    deviations(&mut out, report, style);
    summary(&mut out, report);
    out
}

fn table(style: Style) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(style.width);
    if style.colour {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    table
}

/// comfy-table pads every column; the spaces at the end are removed.
fn push_table(out: &mut String, table: &Table) {
    for line in table.lines() {
        let _ = writeln!(out, " {}", line.trim_end());
    }
}

/// Writes one table for each destination; sources with equal results share a row.
fn truth(out: &mut String, report: &Report, style: Style) {
    let mut destinations: BTreeMap<&Prober, Vec<&Finding>> = BTreeMap::new();
    for finding in &report.probes {
        destinations.entry(&finding.cell.destination).or_default().push(finding);
    }
    for (destination, findings) in destinations {
        let _ = writeln!(out, "to {}", introduced(report, destination));
        let columns = columns(&findings);
        let both =
            findings.iter().map(|finding| family(finding)).collect::<BTreeSet<_>>().len() > 1;
        let mut table = table(style);
        let heads = columns.iter().map(|column| TableCell::new(head(*column, both)));
        table.set_header([TableCell::new("from")].into_iter().chain(heads));
        for (sources, row) in rows(&findings, &columns) {
            let cells = row.into_iter().map(|finding| outcome(finding, style));
            table.add_row([TableCell::new(sources.join(", "))].into_iter().chain(cells));
        }
        push_table(out, &table);
        out.push('\n');
    }
}

fn introduced(report: &Report, prober: &Prober) -> String {
    let Some(details) = report.probers.get(prober) else { return prober.to_string() };
    let ips: Vec<String> = details.addresses.iter().map(IpAddr::to_string).collect();
    let on = details.node.as_ref().map(|node| format!(", on {node}")).unwrap_or_default();
    let device = match details.device {
        Some(Device::Tun) => ", TUN",
        Some(Device::Veth) => ", veth",
        None => "",
    };
    format!("{prober} ({}{on}{device})", ips.join(", "))
}

fn family(finding: &Finding) -> bool {
    finding.cell.address.is_ipv6()
}

fn columns(findings: &[&Finding]) -> Vec<Column> {
    let all: BTreeSet<Column> = findings
        .iter()
        .map(|finding| (family(finding), finding.cell.service, !finding.cell.listening))
        .collect();
    let mut columns: Vec<Column> = all.into_iter().collect();
    columns.sort_by_key(|(v6, service, closed)| (*closed, *service, *v6));
    columns
}

fn head((v6, service, closed): Column, both: bool) -> String {
    let family = match (both, v6) {
        (false, _) => "",
        (true, false) => " v4",
        (true, true) => " v6",
    };
    let closed = if closed { " closed" } else { "" };
    let service = match service {
        Service::Echo => "echo".to_owned(),
        Service::Port(port) => port.to_string(),
    };
    format!("{service}{family}{closed}")
}

/// The sources, and the result in each column.
type Row<'a> = (Vec<String>, Vec<Option<&'a Finding>>);

/// The rows: the sources, and the result in each column. Sources with equal results share a row, in the order of the
/// first one.
fn rows<'a>(findings: &[&'a Finding], columns: &[Column]) -> Vec<Row<'a>> {
    let mut by_source: BTreeMap<&Prober, BTreeMap<Column, &'a Finding>> = BTreeMap::new();
    for finding in findings {
        let column = (family(finding), finding.cell.service, !finding.cell.listening);
        by_source.entry(&finding.cell.source).or_default().insert(column, finding);
    }
    let mut rows: Vec<Row<'a>> = Vec::new();
    for (source, found) in by_source {
        let row: Vec<Option<&Finding>> =
            columns.iter().map(|column| found.get(column).copied()).collect();
        let alike = |other: &Vec<Option<&Finding>>| {
            other.iter().zip(&row).all(|(a, b)| match (a, b) {
                (Some(a), Some(b)) => {
                    a.observed == b.observed && a.cell.expected == b.cell.expected
                }
                (None, None) => true,
                _ => false,
            })
        };
        match rows.iter_mut().find(|(_, other)| alike(other)) {
            Some((sources, _)) => sources.push(source.to_string()),
            None => rows.push((vec![source.to_string()], row)),
        }
    }
    rows
}

fn outcome(finding: Option<&Finding>, style: Style) -> TableCell {
    let Some(finding) = finding else { return TableCell::new("-") };
    let (word, colour) = match &finding.observed {
        Observed::Clear(Outcome::Allowed) => ("allowed", Color::Green),
        Observed::Clear(Outcome::Denied) => ("denied", Color::Red),
        Observed::Clear(Outcome::Refused) => ("refused", Color::Yellow),
        Observed::Lost => ("lost", Color::Magenta),
        Observed::Wrong(_) => ("wrong", Color::Magenta),
        Observed::Error(_) => ("failed", Color::Magenta),
    };
    let cell = if finding.as_expected() {
        TableCell::new(word)
    } else {
        TableCell::new(format!("{}!", word.to_uppercase()))
    };
    match (style.colour, finding.as_expected()) {
        (false, _) => cell,
        (true, true) => cell.fg(colour),
        (true, false) => cell.fg(colour).add_attributes(vec![Attribute::Bold, Attribute::Reverse]),
    }
}

fn counters(out: &mut String, report: &Report, style: Style) {
    if report.rules.is_empty() {
        return;
    }
    let sum = |verdict| {
        report.rules.iter().filter(|rule| rule.verdict == verdict).map(|rule| rule.packets).sum()
    };
    let (allowed, denied): (u64, u64) = (sum("allow"), sum("deny"));
    let _ = writeln!(out, "packets judged: {allowed} allowed, {denied} denied, by rule");
    let mut table = table(style);
    table.set_header(["packets", "verdict", "rule"]);
    for rule in &report.rules {
        table.add_row([rule.packets.to_string(), rule.verdict.clone(), rule.rule.clone()]);
    }
    push_table(out, &table);
    let reasons: Vec<String> =
        report.drops.iter().map(|(reason, packets)| format!("{reason} {packets}")).collect();
    if !reasons.is_empty() {
        let _ = writeln!(out, "packets dropped: {}", reasons.join(", "));
    }
    out.push('\n');
}

fn samples(out: &mut String, samples: &[Measured], style: Style) {
    if samples.is_empty() {
        return;
    }
    let mut table = table(style);
    table.set_header(["path", "between", "one TCP stream", "64-byte round trip, median"]);
    for sample in samples {
        let throughput = match &sample.throughput_bps {
            Ok(bps) => format!("{:.2} Gbit/s", bps / 1e9),
            Err(why) => why.clone(),
        };
        let latency = match &sample.latency_us {
            Ok(us) => format!("{us:.1} us"),
            Err(why) => why.clone(),
        };
        let between = format!("{} -> {}", sample.source, sample.destination);
        table.add_row([sample.path.clone(), between, throughput, latency]);
    }
    push_table(out, &table);
    out.push('\n');
}

fn deviations(out: &mut String, report: &Report, style: Style) {
    let deviations: Vec<&Finding> = report.deviations().collect();
    if deviations.is_empty() {
        return;
    }
    let title = format!("{} deviations from what the oracle expects", deviations.len());
    let title = if style.colour { format!("\u{1b}[1;31m{title}\u{1b}[0m") } else { title };
    let _ = writeln!(out, "{title}");
    for finding in deviations.iter().take(DEVIATIONS) {
        let cell = &finding.cell;
        let from = finding.from.map(|from| format!(" ({from})")).unwrap_or_default();
        let closed = if cell.listening { "" } else { " closed" };
        let denied = finding.denied_by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
        let _ = writeln!(
            out,
            " {}{from} -> {} ({}) {}{closed}: {}{denied}, expected {}: {}",
            cell.source,
            cell.destination,
            cell.address,
            cell.service,
            finding.observed,
            cell.expected.name(),
            cell.because,
        );
    }
    if deviations.len() > DEVIATIONS {
        let _ = writeln!(out, " and {} more", deviations.len() - DEVIATIONS);
    }
    if let Some(export) = &report.export {
        let _ = writeln!(out, "logs, status, tables and captures: {}", export.display());
    }
    out.push('\n');
}

fn summary(out: &mut String, report: &Report) {
    let count = |outcome| {
        let clear = Observed::Clear(outcome);
        report.probes.iter().filter(|finding| finding.observed == clear).count()
    };
    let verdict = match report.deviations().count() {
        0 => "all as expected".to_owned(),
        some => format!("{some} NOT as expected"),
    };
    let _ = writeln!(
        out,
        "rig {}: {} probes in {:.1} s: {} allowed, {} denied, {} refused; {verdict}",
        report.rig,
        report.probes.len(),
        report.elapsed_ms as f64 / 1e3,
        count(Outcome::Allowed),
        count(Outcome::Denied),
        count(Outcome::Refused),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::Cell;
    use crate::plan::Port;
    use crate::report::{Counted, ProberReport};
    use manx_api::PodName;
    use manx_policy_compiler::model::Protocol;

    fn pod(name: &str) -> Prober {
        Prober::Pod(PodName { namespace: "shop".to_owned(), name: name.to_owned() })
    }

    fn finding(source: Prober, number: u16, expected: Outcome, observed: Observed) -> Finding {
        let cell = Cell {
            source,
            destination: pod("db"),
            address: "10.1.1.3".parse().unwrap(),
            service: Service::Port(Port { protocol: Protocol::Tcp, number }),
            listening: number != 9,
            expected,
            because: "egress: no policy selects the pod; ingress: isolated by shop/db".to_owned(),
        };
        let from = Some("10.1.1.2:40000".parse().unwrap());
        Finding { cell, observed, from, denied_by: None, tries: 1 }
    }

    fn report() -> Report {
        let clear =
            |source, port, outcome| finding(source, port, outcome, Observed::Clear(outcome));
        let db = ProberReport {
            addresses: vec!["10.1.1.3".parse().unwrap()],
            node: Some("n1".to_owned()),
            device: Some(Device::Tun),
        };
        Report {
            rig: "shop".to_owned(),
            as_expected: false,
            probers: [(pod("db"), db)].into(),
            probes: vec![
                clear(pod("api"), 5432, Outcome::Allowed),
                clear(pod("api"), 9, Outcome::Refused),
                clear(pod("web"), 5432, Outcome::Denied),
                clear(pod("web"), 9, Outcome::Denied),
                clear(Prober::Outside, 5432, Outcome::Denied),
                clear(Prober::Outside, 9, Outcome::Denied),
                finding(pod("x"), 5432, Outcome::Denied, Observed::Clear(Outcome::Allowed)),
                finding(pod("x"), 9, Outcome::Denied, Observed::Lost),
            ],
            rules: vec![
                Counted { rule: "shop/db ingress[0]".into(), verdict: "allow".into(), packets: 12 },
                Counted { rule: "isolated".into(), verdict: "deny".into(), packets: 4 },
            ],
            drops: [("policy-ingress".to_owned(), 4)].into(),
            samples: vec![Measured {
                path: "same node".to_owned(),
                source: pod("api"),
                destination: pod("db"),
                throughput_bps: Ok(12.3e9),
                latency_us: Err("it did not end in time".to_owned()),
            }],
            elapsed_ms: 2345,
            export: Some("/tmp/manx-rig-shop-1".into()),
        }
    }

    #[test]
    fn a_report_reads_like_this() {
        insta::assert_snapshot!(text(&report(), Style { colour: false, width: 100 }));
    }

    #[test]
    fn colours_are_only_where_they_are_wanted() {
        let plain = text(&report(), Style { colour: false, width: 100 });
        let coloured = text(&report(), Style { colour: true, width: 100 });
        assert!(!plain.contains('\u{1b}'));
        assert!(coloured.contains('\u{1b}'));
    }
}
