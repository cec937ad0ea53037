//! The matrix for people: a table if it fits, otherwise a list in which sources with equal rows share a block.

use std::fmt::Write as _;

use super::shown::{Shown, of_block};
use manx_analysis::matrix::{Line, Whys, fold};

/// The most columns of text.
const WIDTH: usize = 100;

/// A space at which lines are not broken.
const NO_BREAK: &str = "\u{a0}";

pub(super) fn render(shown: &Shown<'_>) -> String {
    let table = if shown.why { None } else { table(shown) };
    let mut text = table.unwrap_or_else(|| list(shown));
    text.push('\n');
    for note in &shown.notes {
        text.push_str(&wrap(note, "", "  "));
    }
    text
}

/// A table with a row for each source and a column for each destination. `None`: it is too wide.
fn table(shown: &Shown<'_>) -> Option<String> {
    let name = |party: &usize| shown.matrix.parties[*party].to_string();
    let view = &shown.view;
    // If the header is too wide, the rest need not be measured.
    let header: usize = view.destinations.iter().map(|party| name(party).chars().count() + 2).sum();
    if header > WIDTH || view.sources.len() > WIDTH {
        return None;
    }
    let header = std::iter::once("FROM \\ TO".to_owned()).chain(view.destinations.iter().map(name));
    let mut rows: Vec<Vec<String>> = vec![header.collect()];
    for from in &view.sources {
        let cells = view.destinations.iter().map(|to| match view.cell(*from, *to) {
            Some(cell) if shown.matrix.is_none(cell) => "-".to_owned(),
            Some(cell) => shown.matrix.text(cell),
            None => String::new(),
        });
        rows.push(std::iter::once(name(from)).chain(cells).collect());
    }
    let columns = 0..rows[0].len();
    let widths: Vec<usize> = columns
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default())
        .collect();
    if widths.iter().map(|width| width + 2).sum::<usize>() > WIDTH + 2 {
        return None;
    }
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text.push_str("\n- is nothing; an empty cell is a pair that does not exist.\n");
    Some(text)
}

/// A list with a block for each row.
fn list(shown: &Shown<'_>) -> String {
    let mut text = String::new();
    let (blocks, whys) = shown.view.blocks(shown.why);
    for block in blocks {
        let all = of_block(&block);
        if all.is_empty() {
            continue;
        }
        if !text.is_empty() {
            text.push('\n');
        }
        let sources = fold(shown.matrix, &block.sources, &shown.view.sources);
        text.push_str(&wrap(&whole(&sources), "", "  "));
        let lines: Vec<&Line> = block.lines.iter().chain(&block.none).collect();
        // If more than half of the destinations have the same cell, it is written at the end, for "everything else". If
        // the user chose destinations, each of them is named instead.
        let most = |line: &&&Line| line.destinations.len() * 2 > all.len();
        let rest = lines.iter().find(most).copied();
        let rest = rest.filter(|_| all.len() > 2 && shown.view.is_whole());
        let else_word = if lines.len() == 1 { "" } else { " else" };
        let is_told = |line: &Line| rest.is_some_and(|rest| std::ptr::eq(rest, line));
        let quiet = |line: &Line| rest.is_none() && !shown.why && shown.matrix.is_none(line.cell);
        for line in lines.iter().filter(|line| !is_told(line) && !quiet(line)) {
            let destinations = fold(shown.matrix, &line.destinations, &all);
            write_line(&mut text, shown, &whys, line, &whole(&destinations));
        }
        match rest {
            Some(rest) if !shown.matrix.is_none(rest.cell) || shown.why => {
                write_line(&mut text, shown, &whys, rest, &format!("everything{else_word}"));
            }
            None if !lines.iter().any(|line| quiet(line)) => {}
            _ => {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "  -> nothing{else_word}");
            }
        }
    }
    text
}

/// Joins names by commas. Lines are broken only between names.
fn whole(names: &[String]) -> String {
    names.join(", ").replace(' ', NO_BREAK).replace(&format!(",{NO_BREAK}"), ", ")
}

fn write_line(text: &mut String, shown: &Shown<'_>, whys: &Whys, line: &Line, destinations: &str) {
    let services = shown.matrix.text(line.cell);
    text.push_str(&wrap(&format!("{destinations}: {services}"), "  -> ", "     "));
    for why in Shown::whys(line, whys) {
        text.push_str(&wrap(&why, "       ", "         "));
    }
}

/// Breaks a text into lines of at most [`WIDTH`] columns, if its words allow.
pub(super) fn wrap(text: &str, first: &str, next: &str) -> String {
    let mut lines = String::new();
    let (mut line, mut width, mut empty) = (first.to_owned(), first.chars().count(), true);
    for word in text.split(' ') {
        let needed = word.chars().count() + usize::from(!empty);
        if !empty && width + needed > WIDTH {
            // Writing to a String cannot fail.
            let _ = writeln!(lines, "{line}");
            (line, width, empty) = (next.to_owned(), next.chars().count(), true);
        }
        if !empty {
            line.push(' ');
            width += 1;
        }
        line.push_str(word);
        width += word.chars().count();
        empty = false;
    }
    let _ = writeln!(lines, "{line}");
    lines.replace(NO_BREAK, " ")
}
