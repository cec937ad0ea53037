//! The three files of a report.

use std::io::Write as _;
use std::path::Path;

use manx_linux::private;

use super::chart;
use super::figures::Report;
use super::table;
use crate::error::{Error, io};

/// Writes `results.json`, `results.md` and `results.svg` into an existing folder. Older files with these names are
/// replaced.
pub fn write(report: &Report, folder: &Path) -> Result<(), Error> {
    let json = serde_json::to_string_pretty(report)
        .map_err(|error| io("the results are no JSON")(std::io::Error::other(error)))?;
    let texts =
        [("json", json + "\n"), ("md", table::markdown(report)), ("svg", chart::svg(report))];
    for (extension, text) in texts {
        let path = folder.join(format!("results.{extension}"));
        let written = private::replace(&path).and_then(|mut it| it.write_all(text.as_bytes()));
        written.map_err(io(format!("{} cannot be written", path.display())))?;
    }
    Ok(())
}
