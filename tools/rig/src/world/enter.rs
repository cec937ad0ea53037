//! Moves the whole process into namespaces and then runs a program there.
//!
//! The owner of a rig may enter it: the owner of a user namespace has every capability in it (`user_namespaces(7)`).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::SigSet;
use nix::unistd::geteuid;

use super::supervisor::SELF;
use super::workdir::Workdir;
use manx_linux::netns;

/// The reason why a namespace cannot be entered, or a program cannot be run in it.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// The network namespace cannot be entered.
    #[error(transparent)]
    Netns(#[from] netns::Error),
    /// Another namespace cannot be entered.
    #[error("{path} cannot be entered: {source}")]
    Namespace { path: PathBuf, source: io::Error },
    #[error("{program:?} cannot be run: {source}")]
    Program { program: OsString, source: io::Error },
}

/// Replaces this process by `command` in the network namespace, with its own host name if one is given and the kernel
/// allows it. Returns only on failure, with the reason.
pub fn become_in(netns: &Path, host_name: Option<&str>, command: &[OsString]) -> EnterError {
    let entered = netns::open(netns).and_then(netns::enter);
    if let Err(error) = entered {
        return error.into();
    }
    if let Some(name) = host_name {
        // The host name is only shown in a prompt. A container's seccomp filter may refuse it.
        let _ = unshare(CloneFlags::CLONE_NEWUTS).and_then(|()| nix::unistd::sethostname(name));
    }
    // The supervisor blocks signals, and a program inherits blocked signals (signal(7)): otherwise SIGTERM could not
    // stop an agent.
    if let Err(errno) = SigSet::empty().thread_set_mask() {
        return EnterError::Namespace { path: "signals".into(), source: errno.into() };
    }
    let (program, arguments) = split(command);
    let mut command = Command::new(program);
    if program == SELF {
        command.arg0("manx");
    }
    let source = command.args(arguments).exec();
    EnterError::Program { program: program.to_owned(), source }
}

/// Runs `command` in a rig, in one of its network namespaces, with the caller's own stdin, stdout and stderr.
pub fn run_in_rig(
    workdir: &Workdir,
    netns: &Path,
    command: &[OsString],
) -> Result<ExitStatus, EnterError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source: io::Error| EnterError::Namespace { path, source }
    };
    let init_folder = open_init(workdir)?;
    let init = PathBuf::from(format!("/proc/self/fd/{}", init_folder.as_raw_fd()));
    // All namespaces are opened before the first is entered, and the mount namespace is entered last, because it has
    // another /proc, which does not contain this process.
    let inside = netns.strip_prefix("/").unwrap_or(netns);
    let netns = netns::open(&init.join("root").join(inside))?;
    let mut opened = Vec::new();
    for (name, kind) in [
        ("user", CloneFlags::CLONE_NEWUSER),
        ("uts", CloneFlags::CLONE_NEWUTS),
        ("ipc", CloneFlags::CLONE_NEWIPC),
        ("pid", CloneFlags::CLONE_NEWPID),
        ("mnt", CloneFlags::CLONE_NEWNS),
    ] {
        let path = init.join("ns").join(name);
        opened.push((File::open(&path).map_err(at(&path))?, kind, path));
    }
    let folder = std::env::current_dir().ok();
    for (file, kind, path) in &opened {
        if *kind == CloneFlags::CLONE_NEWNS {
            netns::enter(&netns)?;
        }
        setns(file, *kind).map_err(|errno| at(path)(errno.into()))?;
    }
    let (program, arguments) = split(command);
    let mut run = Command::new(program);
    // Entering a mount namespace changes the folder to its root (setns(2)).
    if let Some(folder) = folder {
        run.current_dir(folder);
    }
    run.args(arguments)
        .status()
        .map_err(|source| EnterError::Program { program: program.to_owned(), source })
}

/// The folder in /proc of the first process in a rig. A file opened below it belongs to that process or cannot be
/// opened (proc(5)), even if the process has ended and another process has its number.
///
/// # Errors
/// The rig has ended, or the process belongs to another user.
fn open_init(workdir: &Workdir) -> Result<File, EnterError> {
    let pid_file = workdir.init_pid();
    let refused = |source: io::Error| EnterError::Namespace { path: pid_file.clone(), source };
    let pid = std::fs::read_to_string(&pid_file).map_err(refused)?;
    let folder = File::open(format!("/proc/{}", pid.trim())).map_err(refused)?;
    let owner = folder.metadata().map_err(refused)?.uid();
    // The lock shows that the rig did not end in between.
    if owner == geteuid().as_raw()
        && workdir.is_running().map_err(|it| refused(io::Error::other(it)))?
    {
        return Ok(folder);
    }
    let what = format!("process {} is user {owner}'s, or the rig has ended", pid.trim());
    Err(refused(io::Error::other(what)))
}

fn split(command: &[OsString]) -> (&OsStr, &[OsString]) {
    command.split_first().map_or((OsStr::new(""), &[]), |(program, rest)| (program, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_another_users_process_has_leads_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let workdir = Workdir::from_path(&folder.path().join("manx/rigs/shop"));
        let held = workdir.create().unwrap();
        let number = |pid: u32| std::fs::write(workdir.init_pid(), pid.to_string()).unwrap();
        let mut own = Command::new("sleep").arg("60").spawn().unwrap();
        number(own.id());
        let found = open_init(&workdir).unwrap();
        // The folder belongs to that process, and to no process after it has ended.
        let inside = format!("/proc/self/fd/{}/ns/net", found.as_raw_fd());
        File::open(&inside).unwrap();
        own.kill().unwrap();
        own.wait().unwrap();
        assert!(File::open(&inside).is_err());
        assert!(open_init(&workdir).is_err());
        // A process of another user: root's test uses an ordinary user's, other users' tests use root's.
        let mut strange = Command::new("sleep");
        let mut strange =
            geteuid().is_root().then(|| strange.arg("60").uid(61_337).spawn().unwrap());
        number(strange.as_ref().map_or(1, std::process::Child::id));
        let refused = open_init(&workdir);
        if let Some(strange) = &mut strange {
            strange.kill().unwrap();
            strange.wait().unwrap();
        }
        assert!(refused.unwrap_err().to_string().contains("'s, or the rig has ended"));
        number(std::process::id());
        open_init(&workdir).unwrap();
        drop(held);
        std::fs::create_dir_all(workdir.path()).unwrap();
        assert!(open_init(&workdir).is_err(), "a rig that has ended has no process");
    }
}
