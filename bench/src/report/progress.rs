//! The progress of a run: a bar on a terminal, lines on any other output.

use std::fmt::Write;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};

/// Writes the remaining time, once it can be estimated.
fn write_time_left(state: &ProgressState, out: &mut dyn Write) {
    if state.pos() > 0 {
        // The text is only drawn, so an error has no effect.
        let _ = write!(out, " (about {:#} left)", HumanDuration(state.eta()));
    }
}

/// The progress of a run, on standard error.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Creates the progress of a run that takes about this long.
    pub fn new(estimate: Duration) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(estimate.as_millis().max(1) as u64);
            let style = "{elapsed_precise} [{bar:30}] {percent:>3} %{left} {wide_msg}";
            bar.set_style(
                ProgressStyle::with_template(style)
                    .unwrap_or_else(|_| ProgressStyle::default_bar())
                    .with_key("left", write_time_left),
            );
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        Self { bar }
    }

    /// Shows `what`, which names the row that begins.
    pub fn begin(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(what.to_owned()),
            None => eprintln!("{what}"),
        }
    }

    /// Shows the result `found`, and advances the bar by the time `took`.
    pub fn step(&self, found: String, took: Duration) {
        match &self.bar {
            Some(bar) => {
                bar.inc(took.as_millis() as u64);
                bar.set_message(found);
            }
            None => eprintln!("  {found}"),
        }
    }

    /// Prints a line that the bar does not overwrite.
    pub fn print_line(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{what}")),
            None => eprintln!("{what}"),
        }
    }

    /// Removes the bar.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
