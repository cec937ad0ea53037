//! The output of a rig while it works, on stderr: a progress bar if that is a terminal, and notes always.

use indicatif::{ProgressBar, ProgressStyle};

use manx_rig::caller::Listener;

/// See the module.
pub(super) struct Screen {
    bar: ProgressBar,
    step: String,
}

impl Screen {
    pub(super) fn new() -> Self {
        // indicatif draws on stderr, and only on a terminal.
        let bar = ProgressBar::no_length();
        if let Ok(style) = ProgressStyle::with_template("{msg:>8} [{bar:40}] {pos}/{len} {elapsed}")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { bar, step: String::new() }
    }

    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

impl Listener for Screen {
    fn progress(&mut self, step: &str, done: usize, total: usize) {
        if self.step != step {
            step.clone_into(&mut self.step);
            self.bar.set_message(self.step.clone());
        }
        self.bar.set_length(total as u64);
        self.bar.set_position(done as u64);
    }

    fn note(&mut self, line: &str) {
        self.bar.suspend(|| eprintln!("manx: {line}"));
    }
}
