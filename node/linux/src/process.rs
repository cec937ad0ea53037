//! The setup of a process at its start, and whether another process ends.

use std::fs;
use std::io;
use std::os::fd::RawFd;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{chdir, close, setsid};

/// Raises this process's limit of open files to its hard limit. A service's soft limit is 1,024 by default (systemd,
/// `DefaultLimitNOFILE=`), because programs that wait by `select` cannot use descriptors above 1,023.
pub fn raise_open_files() -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}

/// Leaves the session, the folder and the descriptors of the parent process, except standard input, output and error.
/// Call it before anything is opened.
pub fn leave_parent() -> io::Result<()> {
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<RawFd>().ok();
    let open: Vec<RawFd> = fs::read_dir("/proc/self/fd")?.flatten().filter_map(number).collect();
    for inherited in open.into_iter().filter(|number| *number > 2) {
        // The descriptor of the folder itself is closed already.
        let _ = close(inherited);
    }
    // This fails if the program leads a process group, for example because a shell started it. Then it keeps its
    // session.
    let _ = setsid();
    Ok(chdir("/")?)
}

/// The flag of a task that ends (`PF_EXITING` of the kernel's `sched.h`).
const EXITING: u64 = 4;
/// The bit of SIGKILL in a set of signals.
const KILL: u64 = 1 << 8;

/// Whether a process of this pid namespace is gone, ends, or was killed and will end (`proc_pid_stat(5)`: state, flags
/// and pending signals).
pub fn is_ending(pid: i32) -> bool {
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    // The process's name, which comes before this, may contain any bytes.
    let fields: Vec<&str> = match text.rsplit_once(')') {
        Some((_, fields)) => fields.split_whitespace().collect(),
        None => return true,
    };
    let number = |at: usize| fields.get(at).and_then(|it| it.parse::<u64>().ok());
    let is_dead = matches!(fields.first(), Some(&"Z" | &"X") | None);
    is_dead
        || number(6).is_none_or(|flags| flags & EXITING != 0)
        || number(28).is_none_or(|pending| pending & KILL != 0)
}
