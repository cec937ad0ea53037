//! The folder of a rig's files, and the lock that prevents two rigs of one name.
//!
//! The folder is `rigs/NAME` in the user's own runtime folder ([`private::of_rigs`]). A rig exists as long as a process
//! holds the lock on its log. The caller takes the lock before it builds the rig, and passes it to the supervisor with
//! the open file. A folder with a free lock was left behind by a crash, and the next command that finds it removes it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use manx_linux::private;

/// The longest path of a unix socket: `sun_path` has 108 bytes, one of them for the terminating zero (unix(7)).
const LONGEST_SOCKET: usize = 107;
/// The length of the longest socket path inside a rig's folder, with some reserve.
const ROOM_FOR_SOCKET: usize = "/nodes/999/agent.sock".len();

/// The reason why a rig's folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WorkdirError {
    /// The name is not allowed.
    #[error(
        "{0:?} cannot name a rig: expected at most 40 letters, digits, `-`, `_` or `.`, beginning with a letter or digit"
    )]
    Name(String),
    /// A rig with this name is running.
    #[error(
        "a rig named {0} is running: `manx rig down {0}` ends it, `--name` gives this one another name"
    )]
    Running(String),
    /// No rig with this name is running.
    #[error("no rig named {0} is running: `manx rig list` shows those that are")]
    NotRunning(String),
    /// The folder for runtime files does not belong to the caller alone.
    #[error(
        "rigs are kept in a folder of their user's alone: {0}; set XDG_RUNTIME_DIR to a folder of your own"
    )]
    Private(#[from] private::Error),
    /// The paths of sockets would be too long.
    #[error("{0} is too long a path for sockets: set XDG_RUNTIME_DIR to a shorter one")]
    TooLong(PathBuf),
    /// A file cannot be made, read or removed.
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> WorkdirError {
    move |source| WorkdirError::File { path: path.to_owned(), source }
}

/// A rig's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workdir {
    name: String,
    path: PathBuf,
}

/// The lock of a rig's folder, held until all copies of its file are closed (flock(2)).
#[derive(Debug)]
pub struct WorkdirLock(File);

impl From<WorkdirLock> for Stdio {
    /// The rig's log. The process that gets it holds the lock.
    fn from(WorkdirLock(log): WorkdirLock) -> Self {
        Self::from(log)
    }
}

impl Workdir {
    /// The folder of the rig `name`, which need not exist.
    pub fn from_name(name: &str) -> Result<Self, WorkdirError> {
        let legal = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
        if !begins || name.len() > 40 || !name.chars().all(legal) {
            return Err(WorkdirError::Name(name.to_owned()));
        }
        let path = rigs()?.join(name);
        if path.as_os_str().len() + ROOM_FOR_SOCKET > LONGEST_SOCKET {
            return Err(WorkdirError::TooLong(path));
        }
        Ok(Self { name: name.to_owned(), path })
    }

    /// A folder that exists. The rig's own processes get it as an argument.
    pub fn from_path(path: &Path) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self { name, path: path.to_owned() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The live manifests, which the agents watch.
    pub fn manifests(&self) -> PathBuf {
        self.path.join("manifests")
    }

    /// The folder of the node with this index.
    pub fn node(&self, index: usize) -> PathBuf {
        self.path.join("nodes").join(index.to_string())
    }

    /// The socket of the agent of the node with this index.
    pub fn agent_socket(&self, index: usize) -> PathBuf {
        self.node(index).join("agent.sock")
    }

    /// The log of the agent of the node with this index.
    pub fn agent_log(&self, index: usize) -> PathBuf {
        self.node(index).join("agent.log")
    }

    /// The rig's own socket.
    pub fn socket(&self) -> PathBuf {
        self.path.join("rig.sock")
    }

    /// The log of the rig's own processes.
    pub fn log(&self) -> PathBuf {
        self.path.join("rig.log")
    }

    /// Policies that are hidden from the agents.
    pub fn withheld(&self) -> PathBuf {
        self.path.join("withheld")
    }

    pub fn setup(&self) -> PathBuf {
        self.path.join("setup.json")
    }

    /// The file of the state for `manx rig list`.
    pub fn state(&self) -> PathBuf {
        self.path.join("state.json")
    }

    /// The file with the pid of the supervisor, which ends the rig on a signal.
    pub fn pid(&self) -> PathBuf {
        self.path.join("pid")
    }

    /// The file with the pid of the first process in the rig's pid namespace, as seen from outside.
    pub fn init_pid(&self) -> PathBuf {
        self.path.join("init.pid")
    }

    /// The mount point for the names of the network namespaces. It is mounted only inside the rig.
    pub fn names(&self) -> PathBuf {
        self.path.join("ns")
    }

    /// The file by which the cluster's process requests a `pasta` for each node. Each line is a
    /// node's address.
    pub fn pasta_request(&self) -> PathBuf {
        self.path.join("pasta")
    }

    /// The log of the `pasta` of the node with this index.
    pub fn pasta_log(&self, index: usize) -> PathBuf {
        self.node(index).join("pasta.log")
    }

    /// Makes an empty folder and takes its lock.
    pub fn create(&self) -> Result<WorkdirLock, WorkdirError> {
        // The user's folder comes first. Each folder is examined before anything is made in it.
        let folders: Vec<&Path> = self.path.ancestors().take(3).collect();
        folders.into_iter().rev().try_for_each(private::make)?;
        let held = self.hold()?.ok_or_else(|| WorkdirError::Running(self.name.clone()))?;
        for entry in fs::read_dir(&self.path).map_err(at(&self.path))? {
            let path = entry.map_err(at(&self.path))?.path();
            if path != self.log() {
                remove(&path)?;
            }
        }
        held.0.set_len(0).map_err(at(&self.log()))?;
        for folder in [self.manifests(), self.withheld(), self.names(), self.path.join("nodes")] {
            private::make(&folder)?;
        }
        Ok(held)
    }

    /// Takes the folder's lock if no other process has it.
    pub fn hold(&self) -> Result<Option<WorkdirLock>, WorkdirError> {
        let path = self.log();
        let log = File::options().create(true).append(true).open(&path).map_err(at(&path))?;
        match flock(&log, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(WorkdirLock(log))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(at(&path)(errno.into())),
        }
    }

    /// Whether the rig is running. Removes the folder if a crash left it behind.
    pub fn is_running(&self) -> Result<bool, WorkdirError> {
        if !self.path.exists() {
            return Ok(false);
        }
        match self.hold() {
            Ok(None) => Ok(true),
            Ok(Some(_held)) => {
                self.remove()?;
                Ok(false)
            }
            // The folder has just been removed.
            Err(WorkdirError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Removes the folder.
    pub fn remove(&self) -> Result<(), WorkdirError> {
        remove(&self.path)
    }
}

/// All running rigs, by name.
pub fn running() -> Result<Vec<Workdir>, WorkdirError> {
    let rigs = rigs()?;
    let entries = match fs::read_dir(&rigs) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(at(&rigs)(error)),
    };
    let mut running = Vec::new();
    for entry in entries {
        let name = entry.map_err(at(&rigs))?.file_name().to_string_lossy().into_owned();
        if let Ok(workdir) = Workdir::from_name(&name)
            && workdir.is_running()?
        {
            running.push(workdir);
        }
    }
    running.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(running)
}

fn remove(path: &Path) -> Result<(), WorkdirError> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

/// The folder of all rigs of this user.
fn rigs() -> Result<PathBuf, WorkdirError> {
    Ok(private::of_rigs()?.join("rigs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_held_once_and_what_a_crash_left_is_cleared() {
        let folder = tempfile::tempdir().unwrap();
        let workdir = Workdir::from_path(&folder.path().join("manx/rigs/shop"));
        let held = workdir.create().unwrap();
        fs::write(workdir.manifests().join("a.json"), "{}").unwrap();
        assert!(matches!(workdir.create(), Err(WorkdirError::Running(name)) if name == "shop"));
        assert!(workdir.is_running().unwrap());
        drop(held);
        let _held = workdir.create().unwrap();
        assert!(!workdir.manifests().join("a.json").exists());
    }

    #[test]
    fn a_folder_goes_from_process_to_process_without_being_free_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let workdir = Workdir::from_path(&folder.path().join("manx/rigs/shop"));
        let held = workdir.create().unwrap();
        let mut next =
            std::process::Command::new("cat").stdin(Stdio::piped()).stderr(held).spawn().unwrap();
        assert!(workdir.is_running().unwrap() && workdir.manifests().exists());
        drop(next.stdin.take());
        next.wait().unwrap();
        assert!(!workdir.is_running().unwrap() && !workdir.path().exists());
    }

    #[test]
    fn a_folder_without_a_holder_is_not_running_and_goes() {
        let folder = tempfile::tempdir().unwrap();
        let workdir = Workdir::from_path(&folder.path().join("manx/rigs/shop"));
        drop(workdir.create().unwrap());
        assert!(!workdir.is_running().unwrap());
        assert!(!workdir.path().exists());
    }

    #[test]
    fn names_stay_within_the_folder() {
        for name in ["", "..", ".hidden", "a/b", "-a", &"x".repeat(41)] {
            assert!(matches!(Workdir::from_name(name), Err(WorkdirError::Name(_))), "{name:?}");
        }
    }
}
