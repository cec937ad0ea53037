//! Tables as text.

use std::fmt::Write as _;

use comfy_table::{ContentArrangement, Table, presets};

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Whether to colour.
    pub colour: bool,
    /// The width in columns.
    pub width: u16,
    /// Whether the whole truth table is printed, where there was a run before, after what has changed.
    pub whole: bool,
}

/// An empty table of this style.
pub(super) fn table(style: Style) -> Table {
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
pub(super) fn push_table(out: &mut String, table: &Table) {
    for line in table.lines() {
        let _ = writeln!(out, " {}", line.trim_end());
    }
}
