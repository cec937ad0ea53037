//! The caller's side: starts a rig, sends it requests, and relays its events.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, Stdio};
use std::time::Duration;

use crate::report::Report;
use crate::report::event::{Event, Request};
use crate::world::agent::AgentState;
use crate::world::fault::Fault;
use crate::world::supervisor::{Bounds, KEEP, this_program};
use crate::world::workdir::{Workdir, WorkdirLock};

/// The time in which a rig must end.
const GONE: Duration = Duration::from_secs(5);
/// The time in which a rig must list its agents.
const PATIENCE: Duration = Duration::from_secs(10);

/// The reason why a rig does not do what was requested.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The rig reports a failure.
    #[error("{message}")]
    Failed { fault: Fault, message: String },
    /// The rig has ended.
    #[error(
        "the rig has ended before its work was done (was it ended, or its time up? --timeout){0}"
    )]
    Ended(String),
    /// The rig cannot be reached.
    #[error("the rig cannot be reached: {0}")]
    Unreachable(#[from] io::Error),
    /// The rig does not end.
    #[error("the rig {0} does not end")]
    Lives(String),
}

/// Receives the events of a rig while it works.
pub trait Listener {
    /// The progress of a step.
    fn progress(&mut self, step: &str, done: usize, total: usize);
    /// A line for the user.
    fn note(&mut self, line: &str);
}

/// A rig that ends when this is dropped, unless [`Running::keep`] was called.
#[derive(Debug)]
pub struct Running {
    workdir: Workdir,
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Running {
    /// Starts a rig whose folder is filled, and waits until it is built.
    pub fn start(
        workdir: &Workdir,
        held: WorkdirLock,
        bounds: Bounds,
        listener: &mut dyn Listener,
    ) -> Result<Self, CallError> {
        let mut child = this_program()
            .args(["internal", "rig-supervisor", "--work"])
            .arg(workdir.path())
            .args(["--timeout", &bounds.timeout.as_secs().to_string()])
            .args(["--ttl", &bounds.ttl.as_secs().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(held)
            .spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let running = Self { workdir: workdir.clone(), child, stdin };
        let log = workdir.log();
        let Some(stdout) = stdout else { return Err(CallError::Ended(String::new())) };
        for line in BufReader::new(stdout).lines() {
            match serde_json::from_str(&line?).map_err(io::Error::from)? {
                Event::Ready => return Ok(running),
                Event::Failed { fault, message } => {
                    return Err(CallError::Failed { fault, message });
                }
                event => relay(event, listener),
            }
        }
        let said = std::fs::read_to_string(log).unwrap_or_default();
        let said = if said.is_empty() { said } else { format!("; it said:\n{}", said.trim_end()) };
        Err(CallError::Ended(said))
    }

    /// Leaves the rig running after the caller has ended.
    pub fn keep(mut self) -> io::Result<()> {
        match self.stdin.take() {
            Some(mut stdin) => stdin.write_all(KEEP),
            None => Ok(()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Closing its stdin ends the rig, unless [`Running::keep`] was called. A kept rig is not
        // waited for.
        if self.stdin.take().is_some() {
            let _ = self.child.wait();
            // The supervisor removes the folder itself. This call is for a supervisor that was
            // killed.
            let _ = self.workdir.is_running();
        }
    }
}

fn relay(event: Event, listener: &mut dyn Listener) {
    match event {
        Event::Progress { step, done, total } => listener.progress(&step, done, total),
        Event::Note(line) => listener.note(&line),
        Event::Ready | Event::Report(_) | Event::Agents(_) | Event::Failed { .. } => {}
    }
}

/// Sends a request to a running rig, relays the events that answer it, and waits for the report.
pub fn send_request(
    workdir: &Workdir,
    request: &Request,
    listener: &mut dyn Listener,
) -> Result<Report, CallError> {
    for event in events(workdir, request, None)? {
        match event? {
            Event::Report(report) => return Ok(*report),
            Event::Failed { fault, message } => return Err(CallError::Failed { fault, message }),
            event => relay(event, listener),
        }
    }
    Err(CallError::Ended(String::new()))
}

/// The state of each agent of a running rig.
pub fn agents(workdir: &Workdir) -> Result<Vec<AgentState>, CallError> {
    match events(workdir, &Request::Agents, Some(PATIENCE))?.next() {
        Some(Ok(Event::Agents(agents))) => Ok(agents),
        Some(Err(error)) => Err(error.into()),
        Some(Ok(_)) | None => Err(CallError::Ended(String::new())),
    }
}

/// Sends a request and returns the events that answer it. Waiting for an event fails after
/// `patience`.
fn events(
    workdir: &Workdir,
    request: &Request,
    patience: Option<Duration>,
) -> io::Result<impl Iterator<Item = io::Result<Event>>> {
    let mut stream = UnixStream::connect(workdir.socket())?;
    stream.set_read_timeout(patience)?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let lines = BufReader::new(stream).lines();
    Ok(lines.map(|line| serde_json::from_str(&line?).map_err(io::Error::from)))
}

/// Ends a running rig and waits until it has ended.
pub fn down(workdir: &Workdir) -> Result<(), CallError> {
    let pid = std::fs::read_to_string(workdir.pid())?;
    let pid = pid.trim().parse().map_err(io::Error::other)?;
    match nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM)
    {
        Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
        Err(errno) => return Err(CallError::Unreachable(errno.into())),
    }
    let start = std::time::Instant::now();
    while start.elapsed() < GONE {
        match workdir.is_running() {
            Ok(true) => std::thread::sleep(Duration::from_millis(10)),
            Ok(false) => return Ok(()),
            Err(error) => return Err(CallError::Unreachable(io::Error::other(error))),
        }
    }
    Err(CallError::Lives(workdir.name().to_owned()))
}
