//! `manx node --supervise`: process 1 of the agent's container.
//!
//! kubelet waits longer and longer before it starts a container that has ended again: ten seconds, twenty, up to five
//! minutes. A node whose agent is killed twice would be cut off for that time. So the agent is a process of its own, and
//! this one starts the next as soon as it has ended.
//!
//! - An agent that was ready, and then ends, is started again at once.
//! - One that ends before it is ready is started again at once three times in a row, and then after a pause, which grows
//!   to five seconds.
//! - One that says that its settings, or the machine, do not allow it (exit codes 2 and 3), before any was ready, ends
//!   the supervisor with its exit code: so `kubectl get pods` tells.
//!
//! It forwards SIGTERM and SIGINT, waits, and ends as the agent does. It reaps whatever else ends, as process 1 has to.
//! Whether the agent is alive it does not judge: kubelet's probes ask the agent itself.

use std::env;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use manx_dataplane::sys::capabilities;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::{set_name, set_pdeathsig};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getppid};

use super::Error;
use super::error::{ENVIRONMENT, INVALID};
use manx_rig::world::supervisor::this_program;

/// How many starts in a row may fail without a pause.
const FREE: u32 = 3;
/// The first pause, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// What an agent writes to its standard output when it is ready.
const READY: &[u8] = b"ready\n";

fn failed<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Error {
    move |error| Error::Failed(format!("the supervisor cannot go on: {what}: {}", error.into()))
}

/// How an agent ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Code(u8),
    Signal(Signal),
}

impl End {
    /// As a shell has it.
    const fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal as u8,
        }
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "{signal}"),
        }
    }
}

/// The starts until now.
#[derive(Debug, Default)]
struct Starts {
    /// How many have failed since one went well.
    failed: u32,
    /// Whether one went well.
    any: bool,
}

impl Starts {
    /// What follows when an agent has ended that was ready or not: the pause before the next one. `None`: there is none.
    fn next(&mut self, end: End, was_ready: bool) -> Option<Duration> {
        self.any |= was_ready;
        if !self.any && matches!(end, End::Code(INVALID | ENVIRONMENT)) {
            return None;
        }
        self.failed = if was_ready { 0 } else { self.failed.saturating_add(1) };
        let (first, longest) = PAUSES;
        Some(match self.failed.checked_sub(FREE + 1) {
            None => Duration::ZERO,
            Some(doublings) => first.saturating_mul(1 << doublings.min(16)).min(longest),
        })
    }
}

/// What the supervisor has been told.
struct Signals(SignalFd);

impl Signals {
    fn block() -> Result<Self, Error> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT] {
            set.add(signal);
        }
        set.thread_block().map_err(failed("signals"))?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self(SignalFd::with_flags(&set, flags).map_err(failed("signals"))?))
    }

    /// Waits for signals; `None`: as long as it takes. Returns one that tells to end, if it has come.
    fn wait(&self, most: Option<Duration>) -> Result<Option<Signal>, Error> {
        let timeout = match most {
            None => PollTimeout::NONE,
            // Never too early: less than a millisecond would be none.
            Some(most) => PollTimeout::try_from(most + Duration::from_millis(1))
                .map_err(|_| Error::Failed("a pause is too long".to_owned()))?,
        };
        match poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(failed("poll")(errno)),
        }
        let mut told = None;
        while let Some(signal) = self.0.read_signal().map_err(failed("signals"))? {
            let signal = Signal::try_from(signal.ssi_signo.cast_signed()).ok();
            told = told.or(signal.filter(|it| *it != Signal::SIGCHLD));
        }
        Ok(told)
    }
}

/// Starts agents until this process is told to end, and has ended the last one.
pub fn run() -> Result<(), Error> {
    let signals = Signals::block()?;
    // It needs none itself. What it has, the agents to come have.
    capabilities::lay_down().map_err(failed("capabilities"))?;
    let mut starts = Starts::default();
    loop {
        let (end, was_ready) = match start() {
            Ok(agent) => {
                let (end, is_told) = attend(&signals, &agent)?;
                if is_told {
                    return if end.code() == 0 { Ok(()) } else { Err(Error::Ended(end.code())) };
                }
                (end, was_ready(agent))
            }
            Err(error) => {
                tracing::error!(%error, "the agent cannot be started");
                (End::Code(1), false)
            }
        };
        let Some(pause) = starts.next(end, was_ready) else {
            return Err(Error::Ended(end.code()));
        };
        tracing::error!(
            "the agent has ended by {end}, {}: it is started again {}",
            if was_ready { "and was ready" } else { "before it was ready" },
            if pause.is_zero() { "at once".to_owned() } else { format!("in {pause:?}") }
        );
        let until = Instant::now() + pause;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            if signals.wait(Some(left))?.is_some() {
                return Ok(());
            }
        }
    }
}

/// This program with the same arguments, as an agent.
fn start() -> io::Result<Child> {
    let mut agent = this_program();
    agent.args(env::args_os().skip(1)).arg("--supervised-by").arg(std::process::id().to_string());
    agent.stdout(Stdio::piped()).spawn()
}

/// Waits until the agent has ended, and tells it what this process is told. Returns how it ended, and whether it was
/// told to.
fn attend(signals: &Signals, agent: &Child) -> Result<(End, bool), Error> {
    let agent = Pid::from_raw(agent.id().cast_signed());
    let mut is_told = false;
    loop {
        // All that have ended: several may share a signal.
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) if pid == agent => {
                    return Ok((End::Code(u8::try_from(code).unwrap_or(u8::MAX)), is_told));
                }
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == agent => {
                    return Ok((End::Signal(signal), is_told));
                }
                Ok(WaitStatus::StillAlive) => break,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(failed("wait")(errno)),
            }
        }
        if let Some(signal) = signals.wait(None)? {
            is_told = true;
            // It may have ended meanwhile.
            let _ = kill(agent, signal);
        }
    }
}

/// Whether an agent that has ended had said that it was ready.
fn was_ready(agent: Child) -> bool {
    let Some(output) = agent.stdout.map(OwnedFd::from) else { return false };
    // Another process that has this pipe holds up nothing.
    if fcntl(&output, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).is_err() {
        return false;
    }
    let mut said = [0; READY.len()];
    std::fs::File::from(output).read_exact(&mut said).is_ok() && said == READY
}

/// What an agent does first that a supervisor has started: it takes signals again, and ends with the supervisor.
pub fn obey(supervisor: i32) -> Result<(), Error> {
    SigSet::empty().thread_set_mask().map_err(failed("signals"))?;
    set_pdeathsig(Signal::SIGTERM).map_err(failed("PR_SET_PDEATHSIG"))?;
    // It was started as /proc/self/exe, and `top` would call it exe.
    set_name(c"manx").map_err(failed("PR_SET_NAME"))?;
    if getppid() == Pid::from_raw(supervisor) {
        return Ok(());
    }
    Err(Error::Failed("the supervisor that has started this agent is gone".to_owned()))
}

/// Tells the supervisor that the start went well.
pub fn tell_ready() {
    // One that is gone has ended this process, too.
    let _ = io::stdout().write_all(READY).and_then(|()| io::stdout().flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED: End = End::Signal(Signal::SIGKILL);

    #[test]
    fn an_agent_that_was_ready_is_started_again_at_once_however_often_it_ends() {
        let mut starts = Starts::default();
        for end in [KILLED, End::Code(0), End::Code(1), End::Code(INVALID)].repeat(50) {
            assert_eq!(starts.next(end, true), Some(Duration::ZERO));
        }
    }

    #[test]
    fn the_pause_grows_with_failed_starts_to_five_seconds_until_one_goes_well() {
        let mut starts = Starts::default();
        for _ in 0..2 {
            let pauses: Vec<u128> =
                (0..12).map(|_| starts.next(KILLED, false).unwrap().as_millis()).collect();
            assert_eq!(pauses, [0, 0, 0, 100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
            assert_eq!(starts.next(KILLED, true), Some(Duration::ZERO));
        }
        starts.failed = u32::MAX;
        assert_eq!(starts.next(KILLED, false), Some(PAUSES.1));
    }

    #[test]
    fn what_settings_or_machine_forbid_is_no_failed_start_unless_one_went_well() {
        for code in [INVALID, ENVIRONMENT] {
            assert_eq!(Starts::default().next(End::Code(code), false), None);
            let mut starts = Starts::default();
            starts.next(KILLED, true);
            assert_eq!(starts.next(End::Code(code), false), Some(Duration::ZERO));
        }
        assert_eq!(Starts::default().next(End::Code(1), false), Some(Duration::ZERO));
    }
}
