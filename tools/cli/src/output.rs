//! The output of commands.

use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use comfy_table::presets::NOTHING;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table};
use serde::Serialize;

use super::Error;

/// The form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Output {
    /// Tables for people
    #[default]
    Text,
    /// JSON for programs
    Json,
}

/// Prints `text` on standard output. It is no error if the reader has closed the pipe (`| head`).
pub fn print(text: &str) -> Result<(), Error> {
    print_while_read(text).map(drop)
}

/// Prints `text` on standard output. Returns false if the reader has closed the pipe.
pub fn print_while_read(text: &str) -> Result<bool, Error> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Error::Failed(format!("standard output cannot be written: {error}"))),
    }
}

/// The version of all JSON outputs (docs/json.md). It grows when a field changes its meaning or is
/// removed.
const SCHEMA_VERSION: u32 = 1;

#[derive(Serialize)]
struct Versioned<'a, T> {
    #[serde(rename = "schemaVersion")]
    schema_version: u32,
    #[serde(flatten)]
    value: &'a T,
}

/// `value`, which is a struct or a map, as indented JSON with its `schemaVersion`.
pub fn versioned_json(value: &impl Serialize) -> Result<String, Error> {
    json(&Versioned { schema_version: SCHEMA_VERSION, value })
}

/// Prints `value`, which is a struct or a map, as indented JSON with its `schemaVersion` on standard output.
pub fn print_json(value: &impl Serialize) -> Result<(), Error> {
    print(&versioned_json(value)?)
}

/// `value`, which is a struct or a map, as a line of JSON with its `schemaVersion`.
pub fn json_line(value: &impl Serialize) -> Result<String, Error> {
    let text = serde_json::to_string(&Versioned { schema_version: SCHEMA_VERSION, value });
    text.map(|text| text + "\n").map_err(|error| Error::Failed(error.to_string()))
}

/// `value` as indented JSON.
pub fn json(value: &impl Serialize) -> Result<String, Error> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| text + "\n").map_err(|error| Error::Failed(error.to_string()))
}

/// Whether standard output is a terminal, and colours are wanted (<https://no-color.org>).
pub fn is_coloured() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A table without ruled lines: a header in capitals, columns two spaces apart, those in `numbers` aligned right. Rows
/// are never wrapped, so that `grep`, `awk` and `diff` see one line per row.
pub fn table<const N: usize>(header: [&str; N], numbers: &[usize], rows: Vec<[Cell; N]>) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.map(str::to_uppercase));
    table.add_rows(rows.into_iter().map(Vec::from));
    if is_coloured() {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if numbers.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
