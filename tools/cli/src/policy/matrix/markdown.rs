//! The matrix as a table for documents: with a column for each destination if there are few, otherwise with a row for each
//! cell.

use std::fmt::Write as _;

use super::shown::{Shown, of_block};
use manx_analysis::matrix::fold;

/// The most destinations with a column of their own.
const COLUMNS: usize = 8;

pub(super) fn render(shown: &Shown<'_>) -> String {
    let is_narrow = shown.view.destinations.len() <= COLUMNS && !shown.why;
    let mut text = if is_narrow { table(shown) } else { list(shown) };
    text.push('\n');
    for note in &shown.notes {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "- {}", escaped(note));
    }
    text
}

fn table(shown: &Shown<'_>) -> String {
    let view = &shown.view;
    let mut header = vec!["from \\ to".to_owned()];
    header.extend(shown.names(&view.destinations));
    let mut text = row(&header) + &rule(header.len());
    for from in &view.sources {
        let mut cells = vec![shown.matrix.parties[*from].to_string()];
        cells.extend(view.destinations.iter().map(|to| match view.cell(*from, *to) {
            Some(cell) => shown.matrix.text(cell),
            None => String::new(),
        }));
        text.push_str(&row(&cells));
    }
    text
}

fn list(shown: &Shown<'_>) -> String {
    let mut header = vec!["from".to_owned(), "to".to_owned(), "ports".to_owned()];
    header.extend(shown.why.then(|| "why".to_owned()));
    let mut text = row(&header) + &rule(header.len());
    let (blocks, whys) = shown.view.blocks(shown.why);
    for block in blocks {
        let named = of_block(&block);
        let sources = fold(shown.matrix, &block.sources, &shown.view.sources).join(", ");
        for line in block.lines.iter().chain(&block.none) {
            let destinations = fold(shown.matrix, &line.destinations, &named).join(", ");
            let mut cells = vec![sources.clone(), destinations, shown.matrix.text(line.cell)];
            cells.extend(shown.why.then(|| Shown::whys(line, &whys).join("; ")));
            text.push_str(&row(&cells));
        }
    }
    text
}

fn row(cells: &[String]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| escaped(cell)).collect();
    format!("| {} |\n", cells.join(" | "))
}

fn rule(columns: usize) -> String {
    format!("|{}\n", "---|".repeat(columns))
}

/// Escapes text for Markdown.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        match letter {
            '<' => escaped.push_str("&lt;"),
            '&' => escaped.push_str("&amp;"),
            '\n' | '\r' => escaped.push(' '),
            '|' | '\\' | '*' | '_' | '`' | '[' | ']' => {
                escaped.push('\\');
                escaped.push(letter);
            }
            _ => escaped.push(letter),
        }
    }
    escaped
}
