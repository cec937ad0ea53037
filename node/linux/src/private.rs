//! Folders and files that no other user can change: for sockets, rigs and results.
//!
//! A folder that others can write to may contain their files: a link that redirects a write to another file, or their
//! own socket under an agent's name. So the program keeps its files in folders of its user, checks their owner and mode
//! before it uses anything in them, and makes files without following links.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _,
    PermissionsExt as _,
};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

/// Root's folder for runtime files.
const SYSTEM: &str = "/run/manx";
/// The variable with the session's folder for runtime files (XDG base directories).
const SESSION: &str = "XDG_RUNTIME_DIR";

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// The reason why a folder or file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another user owns it.
    #[error("{path} belongs to user {owner}, and this is run by user {}", geteuid())]
    Foreign { path: PathBuf, owner: u32 },
    /// Other users may add or remove files in the folder.
    #[error("others may write to {path} (mode {mode:04o})")]
    Shared { path: PathBuf, mode: u32 },
    /// The path is a link or a file, not a folder.
    #[error("{0} is no folder, or a link to one")]
    NotAFolder(PathBuf),
    /// The folder or file cannot be made or examined.
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::File { path: path.to_owned(), source }
}

/// Whether a file with this mode and group can be written by other users than `user`. If each user has a
/// personal group with the same number, a umask may allow the group to write. Any other group may have other members,
/// even the user's primary group.
fn is_shared(mode: u32, user: u32, group: u32) -> bool {
    mode & OTHERS_WRITE != 0 || (mode & GROUP_WRITES != 0 && group != user)
}

/// Returns an error unless this is a folder of the caller (not a link) to which no other user can add anything.
///
/// The folder is examined through a descriptor. The path leads to the same folder afterwards only if no one except the
/// caller and root may rename it in the parent folder (see [`of_rigs`]).
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

/// Makes a folder of the caller with mode 0700; an existing one must be such a folder. Missing parents are made in the
/// same way.
pub fn make(path: &Path) -> Result<(), Error> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).or_else(|error| {
        match error.kind() {
            // The path is there but no folder, for example a link without a target. `examine` reports that.
            ErrorKind::AlreadyExists => Ok(()),
            _ => Err(at(path)(error)),
        }
    })?;
    examine(path)
}

/// The folder of agents' sockets, which need not exist: `/run/manx` for root, the folder of rigs for others.
pub fn of_agents() -> Result<PathBuf, Error> {
    if geteuid().is_root() { checked(PathBuf::from(SYSTEM)) } else { of_rigs() }
}

/// The folder of rigs, which need not exist. It is `manx` in `$XDG_RUNTIME_DIR`. Without that variable it is `/run/manx`
/// for root, and for others `manx-UID` in the folder for temporary files.
///
/// Errors: [`examine`] refuses that folder, or its parent. The folder for temporary files may belong to all users if no
/// user can remove another's files there (the sticky bit).
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

/// The folder for temporary files (`TMPDIR`), in which the caller can make its own folders. It need not exist, because
/// a container image may consist of one program.
///
/// Errors: the folder belongs to neither the caller nor root, or other users can remove the caller's files there.
pub fn temporary() -> Result<PathBuf, Error> {
    let temporary = std::env::temp_dir();
    let metadata = match fs::metadata(&temporary) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(temporary),
        found => found.map_err(at(&temporary))?,
    };
    if metadata.uid() != 0 && metadata.uid() != geteuid().as_raw() {
        return Err(Error::Foreign { path: temporary, owner: metadata.uid() });
    }
    let shared = is_shared(metadata.mode(), metadata.uid(), metadata.gid());
    if metadata.mode() & STICKY == 0 && shared {
        return Err(Error::Shared { path: temporary, mode: metadata.mode() & 0o7777 });
    }
    Ok(temporary)
}

/// Whether all logins of root on this machine share the folder of rigs. They do even with `XDG_RUNTIME_DIR`, because
/// every login of root gets the same one (`pam_systemd`).
pub fn is_shared_by_root() -> bool {
    geteuid().is_root()
}

/// The session's folder. A relative path counts as absent (XDG base directories).
fn session() -> Option<PathBuf> {
    std::env::var_os(SESSION).map(PathBuf::from).filter(|folder| folder.is_absolute())
}

fn checked(folder: PathBuf) -> Result<PathBuf, Error> {
    match examine(&folder) {
        Err(Error::File { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(folder),
        examined => examined.map(|()| folder),
    }
}

/// A new folder for results, with an unpredictable name, mode 0700. It is not removed. If the folder `within` does not
/// exist, it is made.
pub fn make_unpredictable(within: &Path, prefix: &str) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(within)?;
    let private = fs::Permissions::from_mode(0o700);
    let folder = tempfile::Builder::new().prefix(prefix).permissions(private).tempdir_in(within)?;
    Ok(folder.keep())
}

/// Makes a file that must not exist. A link counts as existing, whatever its target is.
pub fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Like [`create`], and writes the whole content.
pub fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create(path)?.write_all(bytes)
}

/// Makes a file, or empties an existing one. An existing file must belong to the caller or to root, must not be a link,
/// and must have no second name (hard link). Otherwise another user could put a link there, so that the caller
/// overwrites another file, or an own file, so that this user can read what the caller writes. Links to a pipe or a
/// character device (`/dev/stdout`, a shell's `>(...)`) are followed, because these hold nothing that could be
/// overwritten.
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
    // The opened file is the one that was examined, even if the name now leads elsewhere.
    let same = format!("/proc/self/fd/{}", found.as_raw_fd());
    OpenOptions::new().write(true).truncate(true).open(same)
}

#[cfg(test)]
mod tests;
