//! The machine that is measured on.

use std::fs;

use serde::Serialize;

/// Load at the start, in runnable threads per core, from which on the machine is called noisy.
const NOISY: f64 = 0.25;

/// What is said of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Machine {
    /// The processor's model.
    pub processor: String,
    /// How many of them (hardware threads count) there are.
    pub processors: usize,
    /// The release of Linux.
    pub kernel: String,
    /// Runnable threads in the minute before the start, on average (`proc(5)`, loadavg).
    pub load: f64,
    /// Whether that is so much that figures suffer.
    pub noisy: bool,
    /// Whether this program was built without optimisation, so that its figures mean nothing.
    pub debug_build: bool,
}

impl Machine {
    /// This one, now.
    pub fn this() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model =
            cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let processors = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
        let loadavg = read("/proc/loadavg");
        let load = loadavg.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(f64::NAN);
        Self {
            processor: model.map_or("a processor of unknown model", |it| it.1.trim()).to_owned(),
            processors,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load,
            // What cannot be read is not called quiet.
            noisy: load.is_nan() || load >= NOISY * processors as f64,
            debug_build: cfg!(debug_assertions),
        }
    }

    /// In words, for the head of a report.
    pub fn lines(&self) -> Vec<String> {
        let Self { processor, processors, kernel, load, .. } = self;
        let mut lines = vec![format!(
            "{processors} x {processor}, Linux {kernel}, load {load:.2} at the start"
        )];
        if self.noisy {
            lines.push(
                "NOISY: something else runs on this machine; ratios suffer less than figures"
                    .to_owned(),
            );
        }
        if self.debug_build {
            lines.push("A DEBUG BUILD: the figures of Manx mean nothing; use --release".to_owned());
        }
        lines
    }
}
