//! The lock for moving host ends. Either any number of callers move host ends into the shelter, or one caller gives all of
//! them back. The locked file is next to the shelter's name. It exists as long as Manx judges the node's pods. No other
//! user can open it, because any process that has a file open may lock it without a time limit.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use super::Error;

/// A lock that is released when it is dropped.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "dropping it unlocks")] Flock<File>);

impl Lock {
    /// Makes the file, if there is none. From then on host ends may be moved in.
    pub fn create(shelter: &Path) -> Result<(), Error> {
        make_file(&path(shelter))
    }

    /// Takes the right to move host ends in. Waits while another process gives all host ends back.
    ///
    /// # Errors
    /// [`Error::GivenBack`] if all host ends were given back, or if none may be moved in yet.
    pub fn shared(shelter: &Path) -> Result<Self, Error> {
        let path = path(shelter);
        take(&path, FlockArg::LockShared)?.ok_or(Error::GivenBack(path))
    }

    /// Takes the right to give all host ends back. Waits until no process moves host ends in. Returns `None` if there
    /// is no lock file.
    pub fn exclusive(shelter: &Path) -> Result<Option<Self>, Error> {
        take(&path(shelter), FlockArg::LockExclusive)
    }

    /// Removes the file after all host ends were given back. Processes that wait for the lock then get an error.
    pub fn remove(self, shelter: &Path) -> Result<(), Error> {
        let path = path(shelter);
        std::fs::remove_file(&path).map_err(failed(&path, "removed"))
    }
}

/// Makes a file to lock, if there is none.
pub(super) fn make_file(path: &Path) -> Result<(), Error> {
    let mut options = File::options();
    let file = options.create(true).truncate(false).write(true).mode(0o600).open(path);
    file.map(drop).map_err(failed(path, "made"))
}

/// Locks a file. Returns `None` if there is no file, or if it was removed meanwhile.
pub(super) fn take(path: &Path, how: FlockArg) -> Result<Option<Lock>, Error> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.map_err(failed(path, "opened"))?,
    };
    let locked = Flock::lock(file, how);
    let locked = locked.map_err(|(_, errno)| failed(path, "locked")(errno.into()))?;
    let is_there = locked.metadata().map_err(failed(path, "read"))?.nlink() > 0;
    Ok(is_there.then_some(Lock(locked)))
}

fn path(shelter: &Path) -> PathBuf {
    shelter.with_extension("netns.lock")
}

fn failed(path: &Path, verb: &'static str) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Lock { path, verb, source }
}
