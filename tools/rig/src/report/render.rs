//! Renders a report as text for users, with colours if standard output is a terminal.

use std::fmt::Write as _;

use comfy_table::{Attribute, Cell as TableCell, Color};

use super::changes::{self, Change};
use super::table::{Style, push_table, table};
use super::truth::{self, Seen};
use super::{Report, truth_text};
use crate::traffic::check::{Finding, Observed};
use crate::traffic::matrix::Outcome;
use crate::traffic::measure::Measured;

/// The number of deviations that are printed. The export has all of them.
const DEVIATIONS: usize = 40;

pub fn text(report: &Report, style: Style) -> String {
    let mut out = String::new();
    if let Some(changes) = &report.changes {
        changed(&mut out, changes, report, style);
    }
    if style.whole || report.changes.is_none() {
        truth(&mut out, report, style);
    }
    counters(&mut out, report, style);
    samples(&mut out, &report.samples, style);
    for note in &report.notes {
        let _ = writeln!(out, "{note}\n");
    }
    deviations(&mut out, report, style);
    summary(&mut out, report);
    out
}

/// Writes the probers and the truth table.
fn truth(out: &mut String, report: &Report, style: Style) {
    let cells = report.probes.iter().map(|it| (truth::place(&it.cell), Seen::of(it))).collect();
    let blocks = truth::group(cells, &report.probers);
    truth_text::push_probers(out, &report.probers, style);
    truth_text::push_blocks(out, &blocks, &report.probers, style, |seen| outcome(seen, style));
}

/// Writes the cells whose content has changed since the run before.
fn changed(out: &mut String, changes: &[Change], report: &Report, style: Style) {
    let cells = report.probes.len();
    if changes.is_empty() {
        let _ = writeln!(out, "nothing changed in the truth table of {cells} cells\n");
        return;
    }
    let _ = writeln!(
        out,
        "{} cells of {cells} changed in the truth table (- is no change)",
        changes.len()
    );
    let blocks = truth::group(changes::cells(changes), &report.probers);
    truth_text::push_workloads(out, &report.probers, style, Some(&blocks));
    truth_text::push_blocks(out, &blocks, &report.probers, style, |(before, after)| {
        let said = |seen: &Option<Seen>| seen.as_ref().map_or("nothing".to_owned(), word);
        let cell = TableCell::new(format!("{} -> {}", said(before), said(after)));
        after.as_ref().map_or_else(|| cell.clone(), |after| coloured(cell.clone(), after, style))
    });
}

fn outcome(seen: &Seen, style: Style) -> TableCell {
    coloured(TableCell::new(word(seen)), seen, style)
}

/// The word for a cell. A deviation is emphasised.
fn word(seen: &Seen) -> String {
    let word = match &seen.observed {
        Observed::Clear(outcome) => outcome.name(),
        Observed::Lost => "lost",
        Observed::Wrong(_) => "wrong",
        Observed::SeenAs(_) => "seen as another",
        Observed::Error(_) => "failed",
    };
    if seen.as_expected() { word.to_owned() } else { format!("{}!", word.to_uppercase()) }
}

fn coloured(cell: TableCell, seen: &Seen, style: Style) -> TableCell {
    let colour = match &seen.observed {
        Observed::Clear(Outcome::Allowed) => Color::Green,
        Observed::Clear(Outcome::Denied) => Color::Red,
        Observed::Clear(Outcome::Refused) => Color::Yellow,
        Observed::Lost | Observed::Wrong(_) | Observed::SeenAs(_) | Observed::Error(_) => {
            Color::Magenta
        }
    };
    match (style.colour, seen.as_expected()) {
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
    use crate::plan::port::Port;
    use crate::plan::prober::Prober;
    use crate::report::Counted;
    use crate::report::probers::ProberReport;
    use crate::traffic::matrix::Cell;
    use crate::world::service::Service;
    use manx_api::{Device, PodName};
    use manx_policy_compiler::model::Protocol;

    fn pod(name: &str) -> Prober {
        Prober::Pod(PodName { namespace: "shop".to_owned(), name: name.to_owned() })
    }

    fn finding(source: &str, number: u16, expected: Outcome, observed: Observed) -> Finding {
        let cell = Cell {
            source: Prober::from(source.to_owned()),
            destination: pod("db"),
            address: "10.1.1.3".parse().unwrap(),
            seen_as: None,
            service: Service::Port(Port { protocol: Protocol::Tcp, number }),
            listening: number != 9,
            expected,
            because: "egress: no policy selects the pod; ingress: isolated by shop/db".to_owned(),
        };
        let from = Some("10.1.1.2:40000".parse().unwrap());
        Finding { cell, observed, from, denied_by: None, tries: 1 }
    }

    fn prober(number: u8, node: Option<&str>, workload: Option<&str>) -> ProberReport {
        ProberReport {
            addresses: vec![[10, 1, 1, number].into()],
            node: node.map(str::to_owned),
            workload: workload.map(str::to_owned),
            device: node.map(|_| Device::Tun),
        }
    }

    fn report() -> Report {
        let clear =
            |source, port, outcome| finding(source, port, outcome, Observed::Clear(outcome));
        let web = Some("shop/Deployment web");
        let mut probes = vec![
            clear("shop/api", 5432, Outcome::Allowed),
            clear("shop/api", 9187, Outcome::Allowed),
            clear("shop/api", 9, Outcome::Refused),
            finding("shop/x", 5432, Outcome::Denied, Observed::Clear(Outcome::Allowed)),
            finding("shop/x", 9187, Outcome::Denied, Observed::Clear(Outcome::Allowed)),
            finding("shop/x", 9, Outcome::Denied, Observed::Lost),
        ];
        for source in ["shop/web-1", "shop/web-2", "node/n1", "outside"] {
            probes.extend([5432, 9187, 9].map(|port| clear(source, port, Outcome::Denied)));
        }
        Report {
            rig: "shop".to_owned(),
            as_expected: false,
            probers: [
                (Prober::Node("n1".to_owned()), prober(1, None, None)),
                (Prober::Outside, prober(9, None, None)),
                (pod("api"), prober(2, Some("n1"), None)),
                (pod("db"), prober(3, Some("n1"), None)),
                (pod("web-1"), prober(4, Some("n1"), web)),
                (pod("web-2"), prober(5, Some("n1"), web)),
                (pod("x"), prober(6, Some("n1"), None)),
            ]
            .into(),
            probes,
            changes: None,
            rules: vec![
                Counted { rule: "shop/db ingress[0]".into(), verdict: "allow".into(), packets: 12 },
                Counted { rule: "isolated".into(), verdict: "deny".into(), packets: 4 },
            ],
            drops: [("policy-ingress".to_owned(), 4)].into(),
            notes: vec!["7 ports are not probed".to_owned()],
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
        insta::assert_snapshot!(text(&report(), Style { colour: false, width: 100, whole: false }));
    }

    #[test]
    fn what_changed_since_the_run_before_reads_like_this() {
        let mut report = report();
        let mut before = report.probes.clone();
        for finding in before.iter_mut().filter(|it| it.cell.source != Prober::Outside) {
            finding.cell.expected = Outcome::Refused;
            finding.observed = Observed::Clear(Outcome::Refused);
        }
        report.changes = Some(changes::changes(&before, &report.probes));
        (report.rules, report.samples) = (Vec::new(), Vec::new());
        let style = Style { colour: false, width: 100, whole: false };
        let changed = text(&report, style);
        report.changes = Some(Vec::new());
        let same = text(&report, style);
        let whole = text(&report, Style { whole: true, ..style });
        assert!(whole.contains("to shop/db") && !same.contains("to shop/db"));
        insta::assert_snapshot!(format!("{changed}{same}"));
    }

    #[test]
    fn colours_are_only_where_they_are_wanted() {
        let plain = text(&report(), Style { colour: false, width: 100, whole: false });
        let coloured = text(&report(), Style { colour: true, width: 100, whole: false });
        assert!(!plain.contains('\u{1b}'));
        assert!(coloured.contains('\u{1b}'));
    }
}
