//! How far a run is: a bar on a terminal, lines elsewhere.

use std::fmt::Write;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};

/// How long it takes yet, once that is known.
fn left(state: &ProgressState, out: &mut dyn Write) {
    if state.pos() > 0 {
        // What is not drawn is not there to be read.
        let _ = write!(out, " (about {:#} left)", HumanDuration(state.eta()));
    }
}

/// How far a run is, on standard error.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Of a run that takes about so long.
    pub fn of(takes: Duration) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(takes.as_millis().max(1) as u64);
            let style = "{elapsed_precise} [{bar:30}] {percent:>3} %{left} {wide_msg}";
            bar.set_style(
                ProgressStyle::with_template(style)
                    .unwrap_or_else(|_| ProgressStyle::default_bar())
                    .with_key("left", left),
            );
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        Self { bar }
    }

    /// What begins.
    pub fn begin(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(what.to_owned()),
            None => eprintln!("{what}"),
        }
    }

    /// What was found on the way, and how much of the time is over with it.
    pub fn step(&self, found: String, took: Duration) {
        match &self.bar {
            Some(bar) => {
                bar.inc(took.as_millis() as u64);
                bar.set_message(found);
            }
            None => eprintln!("  {found}"),
        }
    }

    /// What should stay to be read.
    pub fn say(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{what}")),
            None => eprintln!("{what}"),
        }
    }

    /// Takes the bar away.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
