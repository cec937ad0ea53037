//! The report as Markdown: a table for each head.

use std::fmt::Write as _;

use super::{Figure, Report};

pub(super) fn markdown(report: &Report) -> String {
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
