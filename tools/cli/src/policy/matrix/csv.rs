//! The matrix as lines of comma-separated values (RFC 4180, with line feeds): one for each pair.

use super::shown::Shown;

pub(super) fn render(shown: &Shown<'_>) -> String {
    let mut text = String::from("source,destination,ports");
    text.push_str(if shown.why { ",why\n" } else { "\n" });
    let (blocks, whys) = shown.view.blocks(shown.why);
    for block in blocks {
        for from in &block.sources {
            let source = quoted(&shown.matrix.parties[*from].to_string());
            for line in block.lines.iter().chain(&block.none) {
                let ports = quoted(&shown.matrix.text(line.cell));
                let why = shown.why.then(|| quoted(&Shown::whys(line, &whys).join("; ")));
                for to in &line.destinations {
                    if shown.view.cell(*from, *to).is_none() {
                        continue;
                    }
                    let destination = quoted(&shown.matrix.parties[*to].to_string());
                    for (index, field) in
                        [Some(&source), Some(&destination), Some(&ports), why.as_ref()]
                            .into_iter()
                            .flatten()
                            .enumerate()
                    {
                        text.push_str(if index > 0 { "," } else { "" });
                        text.push_str(field);
                    }
                    text.push('\n');
                }
            }
        }
    }
    text
}

/// Quotes a field. A spreadsheet would evaluate a text that begins with one of `=+-@`, but no name
/// and no list of ports begins so.
pub(super) fn quoted(field: &str) -> String {
    if field.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}
