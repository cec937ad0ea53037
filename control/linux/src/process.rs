//! What a process does to itself at its start.

use std::fs;
use std::io;
use std::os::fd::RawFd;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{chdir, close, setsid};

/// Allows this process as many open files as its hard limit does: a service's soft limit is 1,024 by default
/// (systemd, `DefaultLimitNOFILE=`), and programs that wait by `select` need no more.
pub fn raise_open_files() -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}

/// Leaves the session, the folder and the descriptors of the process that started this one, except standard input,
/// output and error. Call it before anything is opened.
pub fn leave_parent() -> io::Result<()> {
    for entry in fs::read_dir("/proc/self/fd")?.collect::<Vec<_>>() {
        let number = entry?.file_name().to_str().and_then(|it| it.parse::<RawFd>().ok());
        if let Some(number) = number.filter(|it| *it > 2) {
            // The folder's own is closed already.
            let _ = close(number);
        }
    }
    // A program that a shell started leads a group, and keeps its session.
    let _ = setsid();
    Ok(chdir("/")?)
}
