//! The machine on which the bench measures.

use std::fs;

use serde::Serialize;

/// The load at which the machine starts to count as noisy, in runnable threads per core at the
/// start.
const NOISY: f64 = 0.25;

/// The machine and its state at the start.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Machine {
    pub processor: String,
    /// The number of processors, including hardware threads.
    pub processors: usize,
    /// The release of the Linux kernel.
    pub kernel: String,
    /// The average number of runnable threads in the minute before the start (`proc(5)`, loadavg).
    pub load: f64,
    /// Whether the load is so high that it distorts figures.
    pub noisy: bool,
    /// Whether this program was built without optimisation. Then its figures have no meaning.
    pub debug_build: bool,
}

impl Machine {
    /// The current state of this machine.
    pub fn detect() -> Self {
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
            // An unknown load does not count as quiet.
            noisy: load.is_nan() || load >= NOISY * processors as f64,
            debug_build: cfg!(debug_assertions),
        }
    }

    /// A description in words, for the head of a report.
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
