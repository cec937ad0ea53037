//! The processes that hold a rig. If any of them except a `pasta` dies, nothing of the rig remains.
//!
//! ```text
//! manx rig run            reads the objects, prints; holds the supervisor's stdin
//! └─ supervisor           user + pid namespace; ends the rig when stdin closes, at the time limit or on a signal; removes the folder
//!    ├─ pasta             one for each node, with --world pasta: connects it to the caller's network
//!    └─ init (pid 1)      mount, network, host name, IPC namespaces; reaps; dies with the supervisor (PR_SET_PDEATHSIG)
//!       └─ cluster        builds, probes, answers on the rig's socket; when it ends, init ends
//!          └─ agents, pods
//! ```
//!
//! When init dies, the kernel kills everything in the pid namespace. With the last process, the namespaces, devices and
//! mounts disappear (`pid_namespaces(7)`). Each process enters its namespaces while it has one thread, and then starts
//! the next as a program of its own: nothing here forks without exec.

use std::fs;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, setsid};

use super::pasta::Pastas;
use super::setup::Setup;
use super::workdir::{Workdir, WorkdirError};
use manx_linux::doctor::Lack;
use manx_linux::doctor::sandbox;

/// The path of this program, which works even if its file has been replaced.
pub const SELF: &str = "/proc/self/exe";

/// A command that runs this program under its own name.
pub fn this_program() -> Command {
    let mut command = Command::new(SELF);
    command.arg0("manx");
    command
}

/// The text that the caller writes to the supervisor's stdin to keep the rig running.
pub const KEEP: &[u8] = b"keep\n";

/// The reason why a rig cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    /// Namespaces are refused.
    #[error("{0}")]
    Refused(Lack),
    /// The rig's folder cannot be used.
    #[error(transparent)]
    Workdir(#[from] WorkdirError),
    /// The system refuses something else.
    #[error("{what}: {source}")]
    System {
        /// The operation that was tried.
        what: &'static str,
        source: io::Error,
    },
}

fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> SuperviseError {
    move |source| SuperviseError::System { what, source: source.into() }
}

/// The time limits of a rig.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The limit while its caller waits.
    pub timeout: Duration,
    /// The limit after its caller has left it running.
    pub ttl: Duration,
}

/// Runs the supervisor. The caller has made the folder. The supervisor's standard error is the rig's log, and holds the
/// folder's lock.
///
/// # Errors
/// The rig could not be started. After the start the result is whether its cluster ended well.
pub fn supervise(workdir: &Workdir, bounds: Bounds) -> Result<bool, SuperviseError> {
    if workdir.hold()?.is_some() {
        return Err(WorkdirError::NotRunning(workdir.name().to_owned()).into());
    }
    // The supervisor has its own session, so that Ctrl-C in the terminal goes only to the caller,
    // which ends everything in the right order.
    setsid().map_err(system("a session of its own"))?;
    fs::write(workdir.pid(), std::process::id().to_string()).map_err(system("the pid file"))?;
    let signals = block_signals()?;
    let has_pasta = Setup::read(workdir)?.pasta;
    let entered = sandbox::enter_user_namespace().map_err(SuperviseError::Refused);
    let result = entered.and_then(|()| start_next("rig-init", workdir)).and_then(|mut init| {
        fs::write(workdir.init_pid(), init.id().to_string()).map_err(system("the pid file"))?;
        let mut pastas = Pastas::new(workdir, init.id(), has_pasta);
        watch(&mut init, &mut pastas, &signals, bounds)
    });
    // When init has ended, everything inside is dead, and only the folder has to be removed.
    workdir.remove()?;
    result
}

fn block_signals() -> Result<SignalFd, SuperviseError> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        set.add(signal);
    }
    set.thread_block().map_err(system("signals"))?;
    SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(system("signals"))
}

/// Starts the next process of the chain. The process inherits stdout, on which the cluster reports.
fn start_next(stage: &str, workdir: &Workdir) -> Result<Child, SuperviseError> {
    let log = fs::File::options().create(true).append(true).open(workdir.log());
    this_program()
        .args(["internal", stage, "--work"])
        .arg(workdir.path())
        .stdin(Stdio::null())
        .stderr(log.map_err(system("the rig's log"))?)
        .spawn()
        .map_err(system("the rig's next process"))
}

/// Waits until init ends, or ends it if the caller closes stdin without KEEP, at a time limit, or on a signal.
fn watch(
    init: &mut Child,
    pastas: &mut Pastas,
    signals: &SignalFd,
    bounds: Bounds,
) -> Result<bool, SuperviseError> {
    let mut stdin = io::stdin();
    let mut deadline = Instant::now() + bounds.timeout;
    let mut attended = true;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return end(init, pastas);
        }
        pastas.start_if_wanted();
        let left = left.min(Duration::from_hours(1)).min(pastas.poll_interval());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut fds = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        if attended {
            fds.push(PollFd::new(stdin.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(system("poll")(errno)),
        }
        let spoken = fds.get(1).is_some_and(|fd| fd.any() == Some(true));
        drop(fds);
        while let Some(signal) = signals.read_signal().map_err(system("signals"))? {
            if signal.ssi_signo != Signal::SIGCHLD as u32 {
                return end(init, pastas);
            }
        }
        pastas.reap();
        if let Some(status) = init.try_wait().map_err(system("wait"))? {
            return Ok(status.success());
        }
        if spoken {
            let mut word = [0; KEEP.len()];
            if stdin.read_exact(&mut word).is_err() || word != KEEP {
                return end(init, pastas);
            }
            attended = false;
            deadline = Instant::now() + bounds.ttl;
        }
    }
}

fn end(init: &mut Child, pastas: &mut Pastas) -> Result<bool, SuperviseError> {
    pastas.end();
    init.kill().and_then(|()| init.wait()).map_err(system("the end of the rig"))?;
    Ok(false)
}

/// Runs init: enters the other namespaces, starts the cluster, and reaps processes until the cluster ends.
pub fn init(workdir: &Workdir) -> Result<bool, SuperviseError> {
    set_pdeathsig(Signal::SIGKILL).map_err(system("PR_SET_PDEATHSIG"))?;
    // The supervisor may already have died. A process whose parent is outside its pid namespace sees the parent as 0,
    // whether the parent lives or not. So init tries the folder's lock, which is free only if the supervisor has died.
    // If the supervisor dies later, the death signal ends init.
    if workdir.hold()?.is_some() {
        return Ok(false);
    }
    sandbox::enter_other_namespaces(&workdir.names()).map_err(SuperviseError::Refused)?;
    let cluster = start_next("rig-cluster", workdir)?;
    let cluster = Pid::from_raw(cluster.id().cast_signed());
    loop {
        match waitpid(None, Some(WaitPidFlag::__WALL)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == cluster => return Ok(code == 0),
            Ok(WaitStatus::Signaled(pid, ..)) if pid == cluster => return Ok(false),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(system("wait")(errno)),
        }
    }
}
