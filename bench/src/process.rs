//! Processes that carry packets for a while: halted while the other side is measured, and never left behind.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus};

use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getppid};

use crate::error::{Error, errno, io as io_error};

/// The variable by which a process is told who started it.
const PARENT: &str = "MANX_BENCH_PARENT";

/// A process that ends when this is dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts it. It should [end with its parent](end_with_parent).
    pub fn start(command: &mut Command) -> Result<Self, Error> {
        let what = format!("{} cannot be started", command.get_program().display());
        command.env(PARENT, std::process::id().to_string());
        command.spawn().map(Self).map_err(io_error(what))
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Its output, once, if it was asked for.
    pub fn output(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.0.try_wait().map_err(io_error("a process cannot be waited for"))
    }

    /// How it ends. Bounded in time by itself.
    pub fn wait(&mut self) -> Result<ExitStatus, Error> {
        self.0.wait().map_err(io_error("a process cannot be waited for"))
    }

    /// Lets it go on, or halts it where it is.
    pub fn let_run(&self, runs: bool) -> Result<(), Error> {
        let signal = if runs { Signal::SIGCONT } else { Signal::SIGSTOP };
        kill(Pid::from_raw(self.id().cast_signed()), signal)
            .map_err(errno(format!("process {} cannot be halted or resumed", self.id())))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Has the kernel kill the calling process, which [`Process::start`] has started, when the thread that did so ends: a run that
/// is interrupted leaves nothing behind.
///
/// # Errors
/// That thread's process has ended before.
pub fn end_with_parent() -> Result<(), Error> {
    prctl::set_pdeathsig(Signal::SIGKILL)
        .map_err(errno("the parent's end would not be noticed"))?;
    let parent = std::env::var(PARENT).ok().and_then(|parent| parent.parse().ok());
    if parent == Some(getppid().as_raw()) {
        return Ok(());
    }
    Err(Error::Failed("whoever started this has ended before it began".to_owned()))
}

/// Becomes another program, found by its name, with these arguments. Comes back only with an error.
pub fn become_program(words: &[String]) -> io::Error {
    match words.split_first() {
        Some((program, arguments)) => Command::new(program).args(arguments).exec(),
        None => io::Error::new(io::ErrorKind::InvalidInput, "no program is named"),
    }
}

/// The last lines of a log.
pub fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
