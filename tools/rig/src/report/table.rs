//! Tables as text.

use std::fmt::Write as _;

use comfy_table::{ContentArrangement, Table, presets};

/// The style of tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    pub colour: bool,
    pub width: u16,
    /// Whether the whole truth table is also printed when there was a run before. Otherwise only
    /// the changes are printed.
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
