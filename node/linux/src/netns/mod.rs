//! Network namespaces: making, naming and entering them.
//!
//! A namespace is kept alive by an open descriptor, or by a file onto which its `/proc/…/ns/net` is bind-mounted (a
//! *named* namespace, as `ip netns` and CNI make them). A thread has one network namespace and keeps it. Work in
//! another namespace is done in a thread of its own ([`run_in`]), and the caller waits.
//!
//! All of it needs `CAP_SYS_ADMIN` in the user namespace that owns the mount namespace and the target (`setns(2)`,
//! `unshare(2)`). An ordinary user has this capability inside a user namespace that this user owns.

pub mod sysctl;

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{NSFS_MAGIC, fstatfs};

/// The calling thread's own network namespace.
const OWN: &str = "/proc/thread-self/ns/net";

/// An error of a network namespace.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refuses to make a namespace.
    #[error(
        "no network namespace can be made here ({0}): that takes CAP_SYS_ADMIN, in a user namespace if not in the initial one; \
         `manx doctor` tells what is missing"
    )]
    Unshare(Errno),
    /// The name's file cannot be made, or is in use.
    #[error("the network namespace's file {path} cannot be made: {source}")]
    Name { path: PathBuf, source: io::Error },
    /// The namespace cannot be bound to its name.
    #[error("the network namespace cannot be mounted on {path}: {source}")]
    Mount { path: PathBuf, source: Errno },
    /// The path does not lead to a file that can be opened.
    #[error("the network namespace {path} cannot be opened: {source}")]
    Open { path: PathBuf, source: io::Error },
    /// The namespace is that of a process that the caller may not trace.
    #[error(
        "the network namespace {0} may not be opened: by a process's folder that takes CAP_SYS_PTRACE, which the agent does not \
         keep; name it by a file that it is mounted on, as CNI's runtimes do (ip netns attach NAME PID)"
    )]
    Process(PathBuf),
    /// The path leads to something that is no network namespace.
    #[error(
        "{0} is not a network namespace: nothing is mounted on the file (was it left behind by a crash?)"
    )]
    NotANamespace(PathBuf),
    /// The kernel refuses to let the thread enter the namespace.
    #[error("the network namespace cannot be entered: {0}")]
    Enter(Errno),
    /// The process has other threads, which would stay in their namespace.
    #[error("the process has {0} threads: a namespace is entered before the first of them starts")]
    Threads(usize),
    /// No thread could be started.
    #[error("no thread can be started: {0}")]
    Thread(io::Error),
    /// The name cannot be removed.
    #[error("the network namespace's file {path} cannot be removed: {source}")]
    Delete { path: PathBuf, source: io::Error },
}

impl Error {
    /// The kernel's error number.
    pub fn errno(&self) -> Errno {
        let number =
            |source: &io::Error| source.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw);
        match self {
            Self::Unshare(errno) | Self::Enter(errno) | Self::Mount { source: errno, .. } => *errno,
            Self::Name { source, .. } | Self::Open { source, .. } | Self::Delete { source, .. } => {
                number(source)
            }
            Self::Thread(source) => number(source),
            Self::Process(_) => Errno::EACCES,
            Self::NotANamespace(_) | Self::Threads(_) => Errno::EINVAL,
        }
    }
}

/// Makes a network namespace that lives as long as the descriptor or any other reference to it. Its loopback interface
/// is down.
pub fn create() -> Result<OwnedFd, Error> {
    in_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET).map_err(Error::Unshare)?;
        current()
    })
}

/// Makes a network namespace and names it `path`. The file must not exist, but its folder must. The name keeps the
/// namespace alive until [`delete`], in every mount namespace that sees the mount.
pub fn create_named(path: &Path) -> Result<OwnedFd, Error> {
    let name_error = |source| Error::Name { path: path.to_owned(), source };
    OpenOptions::new().write(true).create_new(true).mode(0o444).open(path).map_err(name_error)?;
    let made = create_on(path);
    if made.is_err() {
        // The first error is the one to report. If the empty file stays, the next call reports it by its name.
        let _ = fs::remove_file(path);
    }
    made
}

/// Like [`create_named`], for a file that exists and on which nothing is mounted.
pub fn create_on(path: &Path) -> Result<OwnedFd, Error> {
    in_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET).map_err(Error::Unshare)?;
        mount(Some(OWN), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .map_err(|source| Error::Mount { path: path.to_owned(), source })?;
        current()
    })
}

/// Removes a name. The namespace ends when nothing refers to it any more. It is no error if the name does not exist.
pub fn delete(path: &Path) -> Result<(), Error> {
    let delete_error = |source| Error::Delete { path: path.to_owned(), source };
    match umount2(path, MntFlags::MNT_DETACH) {
        // EINVAL: nothing is mounted on it.
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
        Err(errno) => return Err(delete_error(errno.into())),
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(delete_error(error)),
        _ => Ok(()),
    }
}

/// The calling thread's network namespace.
pub fn current() -> Result<OwnedFd, Error> {
    open(Path::new(OWN))
}

/// Opens a namespace by its name, or by the path `/proc/PID/ns/net` of a process that the caller may trace (`ptrace(2)`).
pub fn open(path: &Path) -> Result<OwnedFd, Error> {
    let file = File::open(path).map_err(|source| match source.kind() {
        io::ErrorKind::PermissionDenied if path.starts_with("/proc") => {
            Error::Process(path.to_owned())
        }
        _ => Error::Open { path: path.to_owned(), source },
    })?;
    match fstatfs(&file) {
        Ok(stat) if stat.filesystem_type() == NSFS_MAGIC => Ok(file.into()),
        Ok(_) => Err(Error::NotANamespace(path.to_owned())),
        Err(errno) => Err(Error::Open { path: path.to_owned(), source: errno.into() }),
    }
}

/// Whether two descriptors hold the same namespace.
pub fn same(a: impl AsFd, b: impl AsFd) -> io::Result<bool> {
    Ok(identity(a)? == identity(b)?)
}

/// Device and inode of a namespace. At one time no two namespaces have the same numbers, but a later namespace may get the
/// inode of one that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl From<&Metadata> for Identity {
    fn from(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// The identity of an open namespace.
pub fn identity(netns: impl AsFd) -> io::Result<Identity> {
    Ok(Identity::from(&File::from(netns.as_fd().try_clone_to_owned()?).metadata()?))
}

/// Runs `work` in the namespace, in a thread of its own, and waits for it. Sockets and devices that it opens always
/// belong to the namespace and may be used from any thread afterwards.
///
/// # Errors
/// The namespace cannot be entered, or the thread cannot be started. A panic of `work` continues in the caller.
pub fn run_in<T: Send>(
    netns: impl AsFd + Sync,
    work: impl FnOnce() -> T + Send,
) -> Result<T, Error> {
    in_thread(|| {
        // Entering the current namespace also needs a capability, and changes nothing.
        if !current().is_ok_and(|current| same(&netns, current).unwrap_or(false)) {
            setns(netns.as_fd(), CloneFlags::CLONE_NEWNET).map_err(Error::Enter)?;
        }
        Ok(work())
    })
}

/// Moves the whole process into the namespace. It must have a single thread; later threads inherit the namespace.
pub fn enter(netns: impl AsFd) -> Result<(), Error> {
    // A joined thread may still be listed for a moment.
    for last in [false, false, false, false, true] {
        let threads = fs::read_dir("/proc/self/task")
            .map_err(|source| Error::Open { path: "/proc/self/task".into(), source })?
            .count();
        match threads {
            0 | 1 => break,
            n if last => return Err(Error::Threads(n)),
            _ => thread::sleep(Duration::from_millis(1)),
        }
    }
    setns(netns.as_fd(), CloneFlags::CLONE_NEWNET).map_err(Error::Enter)
}

fn in_thread<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    thread::scope(|scope| {
        thread::Builder::new()
            .name("netns".to_owned())
            .spawn_scoped(scope, work)
            .map_err(Error::Thread)?
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests;
