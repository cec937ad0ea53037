//! Folders and files that nobody else has a hand in: where sockets and rigs lie, and what results are written to.
//!
//! A folder that others can write to holds what they put there: a link that leads a write to another file, a socket of
//! theirs under an agent's name. So the program keeps its files in folders of its user, whose owner and mode it looks at
//! before it believes anything in them, and makes files without following links.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _,
    PermissionsExt as _,
};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

/// Where the system keeps what runs, of root.
const SYSTEM: &str = "/run/manx";
/// Where a user's session keeps what runs (XDG base directories).
const SESSION: &str = "XDG_RUNTIME_DIR";

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Why a folder or file is not used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is somebody else's.
    #[error("{path} belongs to user {owner}, and this is run by user {}", geteuid())]
    Foreign {
        /// Which.
        path: PathBuf,
        /// Whose.
        owner: u32,
    },
    /// Others may put into it, or take out of it, what they like.
    #[error("others may write to {path} (mode {mode:04o})")]
    Shared {
        /// Which.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A link or a file.
    #[error("{0} is no folder, or a link to one")]
    NotAFolder(PathBuf),
    /// It cannot be made or looked at.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::File { path: path.to_owned(), source }
}

/// Whether a mode lets anybody but `user` write, given the group. Where each user has a group to himself, which has his
/// number, a umask may let it write; any other group may have other members, the user's primary one as well.
fn is_shared(mode: u32, user: u32, group: u32) -> bool {
    mode & OTHERS_WRITE != 0 || (mode & GROUP_WRITES != 0 && group != user)
}

/// An error unless this is a folder of the caller's own, no link, into which nobody else can put anything.
///
/// It is looked at by a descriptor. That the path leads to the same folder afterwards is the parent's affair: nobody but the
/// caller and root may rename it there (see [`of_rigs`]).
pub fn examine(path: &Path) -> Result<(), Error> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let folder = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(folder) => folder,
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            return Err(Error::NotAFolder(path.to_owned()));
        }
        Err(error) => return Err(at(path)(error)),
    };
    let metadata = folder.metadata().map_err(at(path))?;
    if metadata.uid() != geteuid().as_raw() {
        return Err(Error::Foreign { path: path.to_owned(), owner: metadata.uid() });
    }
    if is_shared(metadata.mode(), metadata.uid(), metadata.gid()) {
        return Err(Error::Shared { path: path.to_owned(), mode: metadata.mode() & 0o7777 });
    }
    Ok(())
}

/// Makes a folder of the caller's own, mode 0700; one that is there already has to be such a folder. Parents that are not
/// there are made likewise.
pub fn make(path: &Path) -> Result<(), Error> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).or_else(|error| {
        match error.kind() {
            // A link to nowhere, say.
            ErrorKind::AlreadyExists => Ok(()),
            _ => Err(at(path)(error)),
        }
    })?;
    examine(path)
}

/// The folder of agents' sockets, which need not exist: `/run/manx` for root, that of rigs for others.
pub fn of_agents() -> Result<PathBuf, Error> {
    if geteuid().is_root() { checked(PathBuf::from(SYSTEM)) } else { of_rigs() }
}

/// The folder of rigs, which need not exist: `manx` in `$XDG_RUNTIME_DIR`; without one `/run/manx` for root, for others
/// `manx-UID` in the folder for temporary files.
///
/// Errors: that folder, or the one it lies in, is not the caller's own as [`examine`] has it. The folder for temporary files
/// may be everybody's if nobody can take away there what is another's (the sticky bit).
pub fn of_rigs() -> Result<PathBuf, Error> {
    if let Some(session) = session() {
        examine(&session)?;
        return checked(session.join("manx"));
    }
    if geteuid().is_root() {
        return checked(PathBuf::from(SYSTEM));
    }
    checked(temporary()?.join(format!("manx-{}", geteuid())))
}

/// The folder for temporary files (`TMPDIR`), in which folders of the caller's own can be made.
///
/// Errors: it belongs to neither the caller nor root, or somebody else can take away there what is another's.
pub fn temporary() -> Result<PathBuf, Error> {
    let temporary = std::env::temp_dir();
    let metadata = fs::metadata(&temporary).map_err(at(&temporary))?;
    if metadata.uid() != 0 && metadata.uid() != geteuid().as_raw() {
        return Err(Error::Foreign { path: temporary, owner: metadata.uid() });
    }
    let shared = is_shared(metadata.mode(), metadata.uid(), metadata.gid());
    if metadata.mode() & STICKY == 0 && shared {
        return Err(Error::Shared { path: temporary, mode: metadata.mode() & 0o7777 });
    }
    Ok(temporary)
}

/// Whether the folder of rigs is one for all who are root on this machine: also with `XDG_RUNTIME_DIR`, because every login
/// of root gets the same one (`pam_systemd`).
pub fn is_shared_by_root() -> bool {
    geteuid().is_root()
}

/// A relative path is as if there were none (XDG base directories).
fn session() -> Option<PathBuf> {
    std::env::var_os(SESSION).map(PathBuf::from).filter(|folder| folder.is_absolute())
}

fn checked(folder: PathBuf) -> Result<PathBuf, Error> {
    match examine(&folder) {
        Err(Error::File { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(folder),
        examined => examined.map(|()| folder),
    }
}

/// A new folder for results, with a name that nobody can foresee, mode 0700. It stays.
pub fn make_unpredictable(within: &Path, prefix: &str) -> io::Result<PathBuf> {
    let private = fs::Permissions::from_mode(0o700);
    let folder = tempfile::Builder::new().prefix(prefix).permissions(private).tempdir_in(within)?;
    Ok(folder.keep())
}

/// Makes a file that is not there. A link is there, wherever it leads.
pub fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// [`create`], and writes all of it.
pub fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create(path)?.write_all(bytes)
}

/// Makes a file, or empties one that is there if it is the caller's own, or root's: no link, and no further name of a file.
/// So nobody has a file overwritten, or gets to read what is written, by what he has put in its place. A link may lead to a
/// pipe or a character device (`/dev/stdout`, a shell's `>(...)`), which hold nothing that could be overwritten.
pub fn replace(path: &Path) -> io::Result<File> {
    match create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let refused = |what: String| Err(io::Error::new(ErrorKind::AlreadyExists, what));
    let look = |flags| OpenOptions::new().read(true).custom_flags(libc::O_PATH | flags).open(path);
    let mut found = look(libc::O_NOFOLLOW)?;
    let mut metadata = found.metadata()?;
    if metadata.is_symlink() {
        found = look(0)?;
        metadata = found.metadata()?;
        if !metadata.file_type().is_fifo() && !metadata.file_type().is_char_device() {
            return refused("it is a link, and to no pipe or character device".to_owned());
        }
    }
    let (owner, user) = (metadata.uid(), geteuid());
    if owner != 0 && owner != user.as_raw() {
        return refused(format!("it belongs to user {owner}, and this is run by user {user}"));
    }
    if metadata.is_file() && metadata.nlink() > 1 {
        return refused("it is one of several names of one file".to_owned());
    }
    // What was looked at, whatever has the name meanwhile.
    let same = format!("/proc/self/fd/{}", found.as_raw_fd());
    OpenOptions::new().write(true).truncate(true).open(same)
}

#[cfg(test)]
mod tests;
