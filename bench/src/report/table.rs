//! The report as Markdown: a table for each heading.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::figures::{Breakdown, Figure, Report};

/// The report as Markdown.
pub fn markdown(report: &Report) -> String {
    let mut text = String::new();
    for line in report.machine.lines().iter().chain(&report.conditions) {
        let _ = writeln!(text, "- {line}");
    }
    for figures in report.figures.chunk_by(|one, next| one.head == next.head) {
        let beside = figures.iter().any(|figure| figure.ratio.is_some());
        let _ = writeln!(text, "\n## {}\n", figures[0].head);
        text += if beside {
            "| row | median (lowest-highest) | beside it | Manx | Manx / beside | goal | |\n\
             |---|---|---|---|---|---|---|\n"
        } else {
            "| row | median (lowest-highest) | Manx | goal | |\n|---|---|---|---|---|\n"
        };
        for figure in figures {
            line(&mut text, figure, beside);
        }
    }
    breakdowns(&mut text, &report.breakdowns);
    if !report.missing.is_empty() {
        text += "\n## NOT MEASURED\n\n";
    }
    for missing in &report.missing {
        let _ = writeln!(text, "- `{}`: {}", missing.row, missing.why.replace('\n', "\n  "));
    }
    if !report.remarks.is_empty() {
        text += "\n## Besides\n\n";
    }
    for remark in &report.remarks {
        let _ = writeln!(text, "- {remark}");
    }
    text
}

/// A table for each heading, with a column for each part.
fn breakdowns(text: &mut String, breakdowns: &[Breakdown]) {
    let heads: BTreeSet<&str> = breakdowns.iter().map(|it| &*it.head).collect();
    for head in heads {
        let with_head = || breakdowns.iter().filter(|it| it.head == head);
        let names = with_head().next().into_iter().flat_map(|it| &it.parts).map(|(name, _)| *name);
        let names: Vec<&str> = ["row"].into_iter().chain(names).collect();
        let _ = writeln!(text, "\n## {head}\n\n| {} |", names.join(" | "));
        let _ = writeln!(text, "{}|", "|---".repeat(names.len()));
        for Breakdown { row, parts, .. } in with_head() {
            let _ = write!(text, "| `{row}` |");
            for (_, part) in parts {
                let _ = write!(text, " {part:.1} |");
            }
            text.push('\n');
        }
    }
}

fn line(text: &mut String, figure: &Figure, beside: bool) {
    let Figure { row, what, unit, manx, .. } = figure;
    let _ = write!(text, "| `{row}` | {what}, {unit} ");
    if beside {
        let other = figure.beside.map_or_else(String::new, |summary| summary.show());
        let _ = write!(text, "| {other} ");
    }
    let _ = write!(text, "| {} ", manx.show());
    if beside {
        let ratio = figure.ratio.map_or_else(String::new, |summary| summary.show());
        let _ = write!(text, "| {ratio} ");
    }
    let goal = figure.goal.map_or_else(String::new, |goal| goal.to_string());
    let met = match figure.is_met() {
        Some(true) => "met",
        Some(false) => "missed",
        None => "",
    };
    let _ = writeln!(text, "| {goal} | {met} |");
}
