//! `manx node --supervise`: process 1 of the agent's container.
//!
//! kubelet waits longer each time before it starts an ended container again: ten seconds, twenty, up to five minutes. A
//! node whose agent is killed twice would be cut off for that time. So the agent is a separate process, and the
//! supervisor starts the next one as soon as it has ended.
//!
//! - An agent that was ready, and then ends, is started again at once.
//! - An agent that ends before it is ready is started again at once, three times in a row, and then after a pause that
//!   grows to five seconds.
//! - An agent that ends because of its settings or the machine (exit codes 2 and 3), before any agent was ready, ends
//!   the supervisor with its exit code, so that `kubectl get pods` shows it.
//!
//! The supervisor forwards SIGTERM and SIGINT, waits, and ends with the agent's exit code. It reaps all other processes
//! that end, as process 1 must. It does not check whether the agent is alive: kubelet's probes ask the agent itself.

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

/// The number of starts in a row that may fail without a pause.
const FREE: u32 = 3;
/// The first pause, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The text that an agent writes to its standard output when it is ready.
const READY: &[u8] = b"ready\n";

fn failed<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Error {
    move |error| Error::Failed(format!("the supervisor cannot go on: {what}: {}", error.into()))
}

/// The end of an agent's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Code(u8),
    Signal(Signal),
}

impl End {
    /// The exit code, in a shell's form: 128 plus the number of a signal.
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

/// The history of starts.
#[derive(Debug, Default)]
struct Starts {
    /// The number of agents in a row that ended before they were ready.
    failed: u32,
    /// Whether any agent was ready.
    any: bool,
}

impl Starts {
    /// Records the end of an agent, and returns the pause before the next start. `None`: no next
    /// agent is started.
    fn next_pause(&mut self, end: End, was_ready: bool) -> Option<Duration> {
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

/// The signals of the supervisor.
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

    /// Waits for signals, for the time `most` or for ever. Returns the signal that asks this
    /// process to end, if it has come.
    fn wait(&self, most: Option<Duration>) -> Result<Option<Signal>, Error> {
        let timeout = match most {
            None => PollTimeout::NONE,
            // The time is rounded up, because less than a millisecond would be no wait.
            Some(most) => PollTimeout::try_from(most + Duration::from_millis(1))
                .map_err(|_| Error::Failed("a pause is too long".to_owned()))?,
        };
        match poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(failed("poll")(errno)),
        }
        let mut end = None;
        while let Some(signal) = self.0.read_signal().map_err(failed("signals"))? {
            let signal = Signal::try_from(signal.ssi_signo.cast_signed()).ok();
            end = end.or(signal.filter(|it| *it != Signal::SIGCHLD));
        }
        Ok(end)
    }
}

/// Starts agents until this process gets a signal to end, and the last agent has ended.
pub fn run() -> Result<(), Error> {
    let signals = Signals::block()?;
    // The supervisor needs no effective capabilities, but later agents must still get them.
    capabilities::lay_down().map_err(failed("capabilities"))?;
    let mut starts = Starts::default();
    loop {
        let (end, was_ready) = match start() {
            Ok(agent) => {
                let (end, has_signal) = wait_for_end(&signals, &agent)?;
                if has_signal {
                    return if end.code() == 0 { Ok(()) } else { Err(Error::Ended(end.code())) };
                }
                (end, was_ready(agent))
            }
            Err(error) => {
                tracing::error!(%error, "the agent cannot be started");
                (End::Code(1), false)
            }
        };
        let Some(pause) = starts.next_pause(end, was_ready) else {
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

/// Starts this program with the same arguments as an agent.
fn start() -> io::Result<Child> {
    let mut agent = this_program();
    agent.args(env::args_os().skip(1)).arg("--supervised-by").arg(std::process::id().to_string());
    agent.stdout(Stdio::piped()).spawn()
}

/// Waits until the agent has ended, and forwards signals to it. Returns its end, and whether it got a signal.
fn wait_for_end(signals: &Signals, agent: &Child) -> Result<(End, bool), Error> {
    let agent = Pid::from_raw(agent.id().cast_signed());
    let mut has_signal = false;
    loop {
        // Several processes that have ended may share one SIGCHLD.
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) if pid == agent => {
                    return Ok((End::Code(u8::try_from(code).unwrap_or(u8::MAX)), has_signal));
                }
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == agent => {
                    return Ok((End::Signal(signal), has_signal));
                }
                Ok(WaitStatus::StillAlive) => break,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(failed("wait")(errno)),
            }
        }
        if let Some(signal) = signals.wait(None)? {
            has_signal = true;
            // This fails if the agent has ended meanwhile.
            let _ = kill(agent, signal);
        }
    }
}

/// Whether an agent that has ended was ready before.
fn was_ready(agent: Child) -> bool {
    let Some(output) = agent.stdout.map(OwnedFd::from) else { return false };
    // A read must not block: another process may still have this pipe.
    if fcntl(&output, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).is_err() {
        return false;
    }
    let mut said = [0; READY.len()];
    std::fs::File::from(output).read_exact(&mut said).is_ok() && said == READY
}

/// Prepares an agent that the supervisor has started: unblocks its signals, and makes it end with the supervisor.
pub fn follow_supervisor(supervisor: i32) -> Result<(), Error> {
    SigSet::empty().thread_set_mask().map_err(failed("signals"))?;
    set_pdeathsig(Signal::SIGTERM).map_err(failed("PR_SET_PDEATHSIG"))?;
    // It was started as /proc/self/exe, so `top` would show the name exe.
    set_name(c"manx").map_err(failed("PR_SET_NAME"))?;
    if getppid() == Pid::from_raw(supervisor) {
        return Ok(());
    }
    Err(Error::Failed("the supervisor that has started this agent is gone".to_owned()))
}

/// Reports to the supervisor that the agent is ready.
pub fn report_ready() {
    // This fails if the supervisor has ended. In that case this process gets a signal to end.
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
            assert_eq!(starts.next_pause(end, true), Some(Duration::ZERO));
        }
    }

    #[test]
    fn the_pause_grows_with_failed_starts_to_five_seconds_until_one_goes_well() {
        let mut starts = Starts::default();
        for _ in 0..2 {
            let pauses: Vec<u128> =
                (0..12).map(|_| starts.next_pause(KILLED, false).unwrap().as_millis()).collect();
            assert_eq!(pauses, [0, 0, 0, 100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
            assert_eq!(starts.next_pause(KILLED, true), Some(Duration::ZERO));
        }
        starts.failed = u32::MAX;
        assert_eq!(starts.next_pause(KILLED, false), Some(PAUSES.1));
    }

    #[test]
    fn what_settings_or_machine_forbid_is_no_failed_start_unless_one_went_well() {
        for code in [INVALID, ENVIRONMENT] {
            assert_eq!(Starts::default().next_pause(End::Code(code), false), None);
            let mut starts = Starts::default();
            starts.next_pause(KILLED, true);
            assert_eq!(starts.next_pause(End::Code(code), false), Some(Duration::ZERO));
        }
        assert_eq!(Starts::default().next_pause(End::Code(1), false), Some(Duration::ZERO));
    }
}
