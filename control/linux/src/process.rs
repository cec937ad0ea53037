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
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<RawFd>().ok();
    let open: Vec<RawFd> = fs::read_dir("/proc/self/fd")?.flatten().filter_map(number).collect();
    for inherited in open.into_iter().filter(|number| *number > 2) {
        // The folder's own is closed already.
        let _ = close(inherited);
    }
    // A program that a shell started leads a group, and keeps its session.
    let _ = setsid();
    Ok(chdir("/")?)
}
