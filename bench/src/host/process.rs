//! The processes of a measurement. They are halted while the program on the other side of the comparison is measured,
//! and they end with the bench.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getppid};

use crate::error::{Error, errno, io as io_error};

/// The environment variable that holds the process id of a process's parent.
const PARENT: &str = "MANX_BENCH_PARENT";
/// The output of a process that reports that it is ready.
const READY: &[u8] = b"ready\n";

/// A process that is ended when this value is dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts the process. The process should [end with its parent](end_with_parent).
    pub fn start(command: &mut Command) -> Result<Self, Error> {
        let what = format!("{} cannot be started", command.get_program().display());
        command.env(PARENT, std::process::id().to_string());
        command.spawn().map(Self).map_err(io_error(what))
    }

    /// Starts the process without input, and waits until it [reports that it is ready](say_ready). Its later output is
    /// not read.
    pub fn start_and_wait(command: &mut Command) -> Result<Self, Error> {
        let what = command.get_args().next().unwrap_or_default().display().to_string();
        let mut process = Self::start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
        let mut line = [0; READY.len()];
        let read = process.output().map(|mut output| output.read_exact(&mut line));
        if !matches!(read, Some(Ok(()))) || line != READY {
            return Err(Error::Nothing(format!("the process `{what}` ended before it was ready")));
        }
        Ok(process)
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// The output of the process, if it is piped. Only the first call returns it.
    pub fn output(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// The exit status, if the process has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.0.try_wait().map_err(io_error("a process cannot be waited for"))
    }

    /// Waits until the process ends, and returns its exit status. The process must end by itself.
    pub fn wait(&mut self) -> Result<ExitStatus, Error> {
        self.0.wait().map_err(io_error("a process cannot be waited for"))
    }

    /// Lets the process run, or halts it.
    pub fn set_running(&self, running: bool) -> Result<(), Error> {
        let signal = if running { Signal::SIGCONT } else { Signal::SIGSTOP };
        kill(Pid::from_raw(self.id().cast_signed()), signal)
            .map_err(errno(format!("process {} cannot be halted or resumed", self.id())))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // This fails if the process has ended by itself, which does not matter.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes the kernel kill the calling process when the thread that started it by [`Process::start`] ends. So an
/// interrupted run leaves nothing behind.
///
/// # Errors
/// Returns an error if the parent has already ended.
pub fn end_with_parent() -> Result<(), Error> {
    prctl::set_pdeathsig(Signal::SIGKILL)
        .map_err(errno("the parent's end would not be noticed"))?;
    let parent = std::env::var(PARENT).ok().and_then(|parent| parent.parse().ok());
    if parent == Some(getppid().as_raw()) {
        return Ok(());
    }
    Err(Error::Failed("the parent has ended before this process began".to_owned()))
}

/// Reports to [`Process::start_and_wait`] that the calling process is ready.
pub fn say_ready() -> io::Result<()> {
    let mut output = io::stdout();
    output.write_all(READY)?;
    output.flush()
}

/// Replaces the process by the program that the first word names, with the other words as arguments. Returns only with
/// an error.
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
