//! The device under test: all speakers of one program. Each speaker is a separate process, except that Manx's speakers
//! share one process.

mod bird;
mod gobgp;
pub mod manx;
mod usage;

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::peer::connect_from;
use super::scenario::{STRANGER, Scenario};
use crate::error::{Error, io};
use crate::host::process::{Process, tail};
use crate::host::programs::why_missing;
use crate::host::within::WITHIN;

pub(super) use usage::Usage;

/// The longest time until speakers listen.
const PATIENCE: Duration = Duration::from_mins(1);
/// When the processes have used almost no processor time for this long, their work counts as finished.
const STILL: Duration = Duration::from_millis(250);
/// The processor time that counts as almost none.
const NEXT_TO_NONE: Duration = Duration::from_millis(3);
/// The time between two checks.
const LOOK: Duration = Duration::from_millis(5);

/// A kind of BGP speaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Manx,
    Bird,
    GoBgp,
}

impl Kind {
    /// Why it cannot be measured here. `None` if it can.
    pub(super) fn why_missing(self) -> Option<String> {
        match self {
            Self::Manx => None,
            Self::Bird => why_missing(&["bird"], "bird2"),
            Self::GoBgp => why_missing(&["gobgpd"], "gobgpd"),
        }
    }

    /// The number of processes for this many speakers.
    const fn processes(self, speakers: usize) -> usize {
        match self {
            Self::Manx => 1,
            Self::Bird | Self::GoBgp => speakers,
        }
    }
}

/// The running speakers. They end when this value is dropped.
#[derive(Debug)]
pub(super) struct Device {
    processes: Vec<Process>,
    folder: PathBuf,
}

impl Device {
    /// Starts the speakers of a scenario, and waits until all speakers listen and have stopped using the CPU.
    pub(super) fn start(kind: Kind, scenario: &Scenario, folder: &Path) -> Result<Self, Error> {
        let speakers = scenario.speakers();
        let count = kind.processes(speakers.len());
        let mut device = Self { processes: Vec::with_capacity(count), folder: folder.to_owned() };
        for (at, speaker) in speakers.iter().enumerate().take(count) {
            let of = folder.join(format!("speaker-{at}"));
            let words = match kind {
                Kind::Manx => manx::arguments(scenario),
                Kind::Bird => within(bird::program(scenario, *speaker, &of)?),
                Kind::GoBgp => within(gobgp::program(scenario, *speaker, &of)?),
            };
            let log = File::create(of.with_extension("log")).map_err(io("no log"))?;
            let error = log.try_clone().map_err(io("no log"))?;
            let mut command = Command::new("/proc/self/exe");
            command.args(words).stdin(Stdio::null()).stdout(log).stderr(error);
            device.processes.push(Process::start(&mut command)?);
        }
        for speaker in speakers {
            device.wait_for(speaker)?;
        }
        device.until_still(PATIENCE, || Ok(()))?;
        Ok(device)
    }

    /// Waits until a speaker listens at an address.
    fn wait_for(&mut self, speaker: Ipv4Addr) -> Result<(), Error> {
        let end = Instant::now() + PATIENCE;
        loop {
            if connect_from(STRANGER, speaker).is_ok() {
                return Ok(());
            }
            self.check()?;
            if Instant::now() > end {
                return Err(self.failed(0, format!("nobody listens at {speaker}")));
            }
            thread::sleep(LOOK);
        }
    }

    /// Returns an error if a process has ended.
    pub(super) fn check(&mut self) -> Result<(), Error> {
        for at in 0..self.processes.len() {
            if let Some(status) = self.processes[at].ended()? {
                return Err(self.failed(at, format!("a speaker has ended: {status}")));
            }
        }
        Ok(())
    }

    fn failed(&self, at: usize, what: String) -> Error {
        let log = tail(&self.folder.join(format!("speaker-{at}.log")));
        Error::Process { what, log }
    }

    /// The processor time that all processes have used so far, and their current memory.
    pub(super) fn usage(&self) -> Result<Usage, Error> {
        let mut all = self.processes.iter().map(|it| usage::of(it.id()));
        all.try_fold(Usage::default(), |sum, it| Ok(sum.with(it?)))
    }

    /// Waits until the processes have finished their work, and returns the time when they finished. Calls `meanwhile`
    /// repeatedly.
    pub(super) fn until_still(
        &self,
        patience: Duration,
        mut meanwhile: impl FnMut() -> Result<(), Error>,
    ) -> Result<Instant, Error> {
        let end = Instant::now() + patience;
        let (mut last, mut since) = (Duration::ZERO, Instant::now());
        loop {
            meanwhile()?;
            let used = self.processes.iter().map(|it| usage::processor_time(it.id()));
            let used: Duration = used.sum::<Result<_, Error>>()?;
            let now = Instant::now();
            if used >= last + NEXT_TO_NONE {
                (last, since) = (used, now);
            }
            if now - since >= STILL {
                return Ok(since);
            }
            if now > end {
                let seconds = patience.as_secs();
                return Err(self.failed(0, format!("after {seconds} s it still works")));
            }
            thread::sleep(LOOK);
        }
    }
}

/// The arguments with which this program starts itself and then becomes `program`, which ends with its parent.
fn within(program: Vec<String>) -> Vec<String> {
    let words = [WITHIN, "--"].map(str::to_owned);
    words.into_iter().chain(program).collect()
}
