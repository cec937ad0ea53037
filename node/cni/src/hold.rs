//! The holder ([`manx_devices::holder`]) as a process, `manx-cni hold`. The plugin starts it at the first ADD of a pod with
//! a TUN or TAP device. It has a session of its own, and none of the runtime's descriptors and environment variables.

use std::env;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use manx_dataplane::sys::capabilities::{CapabilitySet, keep_only};
use manx_devices::holder::{self, Client, Holder};
use manx_linux::{process, socket};

/// The time that the plugin waits for a holder that it has started. A start takes milliseconds.
const START: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(1);

/// The reason why there is no holder.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The holder cannot listen.
    #[error(transparent)]
    Socket(#[from] socket::Error),
    #[error("the holder cannot go on: {0}")]
    System(#[from] io::Error),
    /// The holder did not start in time.
    #[error(
        "the holder does not listen at {0} after {secs} s: `manx-cni hold` by hand says why",
        secs = START.as_secs()
    )]
    Late(PathBuf),
}

/// Runs the holder for the agent that listens at `agent`, until the holder ends.
pub(crate) fn run(agent: &Path) -> Result<(), Error> {
    process::leave_parent()?;
    process::raise_open_files()?;
    keep_only(CapabilitySet::empty())?;
    let (path, start) = (holder::path(agent), Instant::now());
    loop {
        match Holder::bind(&path) {
            // The last holder was killed, but its process has not ended yet.
            Err(socket::Error::InUse(_)) if start.elapsed() < socket::patience(&path) => {
                thread::sleep(LOOK);
            }
            bound => return Ok(bound?.run()?),
        }
    }
}

/// Starts the holder for an agent, if there is none.
pub(crate) fn ensure(agent: &Path) -> Result<(), Error> {
    let path = holder::path(agent);
    if holder::is_there(&path) {
        return Ok(());
    }
    // Two plugins may start a holder at the same time; then one of the two holders ends at once.
    Command::new(env::current_exe()?)
        .arg0("manx-cni")
        .args(["hold", "--socket"])
        .arg(agent)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let start = Instant::now();
    while !holder::is_there(&path) {
        if start.elapsed() > START {
            return Err(Error::Late(path));
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

/// Ends the holder of an agent. Returns whether there was one.
pub(crate) fn end(agent: &Path) -> Result<bool, holder::Error> {
    match Client::connect(&holder::path(agent)) {
        Err(holder::Error::NoHolder { .. }) => Ok(false),
        connected => connected?.end().map(|()| true),
    }
}
