//! A listening socket. At any time only one process has its path.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, getsockopt, listen, socket, sockopt,
};
use nix::sys::stat::{Mode, fchmod};

use crate::{private, process};

/// The time for which a killed process may keep its lock and its sockets: the kernel closes its open files one after
/// the other, which takes 13 ms and more for each packet socket.
const ENDING: Duration = Duration::from_secs(10);
/// The time to wait for a process that has the socket and is not known to be ending. A killed process may not look like
/// one for a moment, until its signal is visible.
const LIVING: Duration = Duration::from_millis(300);

/// The reason why a process cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process listens there.
    #[error(
        "another process listens at {0}: stop it first, or give this one a socket of its own by --socket"
    )]
    InUse(PathBuf),
    /// At the path is a file that is no socket.
    #[error("{0} is there and is no socket: remove it, or name another path by --socket")]
    NotASocket(PathBuf),
    /// The path is longer than the kernel takes (unix(7)).
    #[error(
        "the socket's path {0} is longer than the 107 bytes that the kernel takes: name a shorter one by --socket"
    )]
    PathTooLong(PathBuf),
    /// Other users could replace the socket, and add files next to it.
    #[error(
        "a socket lies in a folder of its user's alone: {0}; name a socket in such a folder by --socket"
    )]
    Folder(#[from] private::Error),
    /// Any other error.
    #[error("no process can listen at {path}: {source}; name a path that can be made by --socket")]
    Listen { path: PathBuf, source: io::Error },
}

/// The right to listen at a path, which one process has at a time. It ends when this is dropped.
#[derive(Debug)]
pub struct SocketLock {
    path: PathBuf,
    _lock: Flock<File>,
}

impl SocketLock {
    /// Takes the right to listen at `path`. The folder is made (0700) if it does not exist, and must belong to the caller
    /// ([`private::examine`]). The error `InUse` means that another process has the right.
    pub fn take(path: &Path) -> Result<Self, Error> {
        UnixAddr::new(path).map_err(|_| Error::PathTooLong(path.to_owned()))?;
        match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => private::make(folder)?,
            _ => private::examine(Path::new("."))?,
        }
        Ok(Self { path: path.to_owned(), _lock: lock(path)? })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Listens, with mode 0600 from the first instant. A socket without a listener is replaced, one with a listener is
    /// not. The socket does not block.
    pub fn listen(self) -> Result<Listening, Error> {
        remove_stale(&self.path)?;
        Ok(Listening { listener: listen_at(&self.path)?, beside: None, lock: self })
    }
}

fn listen_at(path: &Path) -> Result<UnixListener, Error> {
    let error = |errno: Errno| Error::Listen { path: path.to_owned(), source: errno.into() };
    let address = UnixAddr::new(path).map_err(|_| Error::PathTooLong(path.to_owned()))?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let made = socket(AddressFamily::Unix, SockType::Stream, flags, None).map_err(error)?;
    // The file gets the mode of the unbound socket (unix(7)); the umask can only remove permissions.
    fchmod(&made, Mode::S_IRUSR | Mode::S_IWUSR).map_err(error)?;
    bind(made.as_raw_fd(), &address).map_err(error)?;
    listen(&made, Backlog::MAXCONN).map_err(error)?;
    Ok(made.into())
}

impl Drop for SocketLock {
    fn drop(&mut self) {
        // There is no caller to report an error to. A file that stays does no harm.
        let _ = fs::remove_file(lock_path(&self.path));
    }
}

/// A listening socket. It and its files are removed when this is dropped.
#[derive(Debug)]
pub struct Listening {
    listener: UnixListener,
    /// The second path.
    beside: Option<PathBuf>,
    lock: SocketLock,
}

impl Listening {
    /// Combines [`SocketLock::take`] and [`SocketLock::listen`].
    pub fn bind(path: &Path) -> Result<Self, Error> {
        SocketLock::take(path)?.listen()
    }

    pub const fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Listens at a second path, too, in the same way. Only the process that has the first path takes the second one. So a
    /// socket that already exists there belongs to a process that has ended or is ending.
    pub fn listen_second(&mut self, path: &Path) -> Result<UnixListener, Error> {
        let error = |source: io::Error| Error::Listen { path: path.to_owned(), source };
        if is_socket(path)? {
            fs::remove_file(path).map_err(error)?;
        }
        let listener = listen_at(path)?;
        self.beside = Some(path.to_owned());
        Ok(listener)
    }
}

/// The time to wait for the process whose listener causes [`Error::InUse`] at `path`. It is long if that process was killed
/// and is ending, and short if it lives.
pub fn patience(path: &Path) -> Duration {
    let listener = UnixStream::connect(path).map_err(drop);
    let peer = listener.and_then(|it| getsockopt(&it, sockopt::PeerCredentials).map_err(drop));
    // A process of another pid namespace has the id 0 here, so it is not known whether it ends.
    match peer {
        Ok(peer) if !process::is_ending(peer.pid()) => LIVING,
        _ => ENDING,
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // There is no caller to report an error to. The next process removes a stale socket.
        for path in self.beside.iter().chain([&self.lock.path]) {
            let _ = fs::remove_file(path);
        }
    }
}

fn lock_path(path: &Path) -> PathBuf {
    let mut lock = path.as_os_str().to_owned();
    lock.push(".lock");
    lock.into()
}

/// Takes the lock of a path, so that two processes that start at once do not both treat the socket as stale.
fn lock(path: &Path) -> Result<Flock<File>, Error> {
    let error = |source: io::Error| Error::Listen { path: path.to_owned(), source };
    loop {
        let name = lock_path(path);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&name)
            .map_err(error)?;
        let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((_, Errno::EWOULDBLOCK)) => return Err(Error::InUse(path.to_owned())),
            Err((_, errno)) => return Err(error(errno.into())),
        };
        // A process that ends removes the file, and the lock of a removed file does not exclude other processes.
        let still_there = fs::metadata(&name).is_ok_and(|there| {
            lock.metadata().is_ok_and(|ours| (ours.dev(), ours.ino()) == (there.dev(), there.ino()))
        });
        if still_there {
            return Ok(lock);
        }
    }
}

fn remove_stale(path: &Path) -> Result<(), Error> {
    let error = |source: io::Error| Error::Listen { path: path.to_owned(), source };
    if !is_socket(path)? {
        return Ok(());
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(error)
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(error(e)),
        Ok(_) => Err(Error::InUse(path.to_owned())),
    }
}

/// Whether there is a socket. An error if there is another kind of file.
fn is_socket(path: &Path) -> Result<bool, Error> {
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(Error::Listen { path: path.to_owned(), source }),
        Ok(metadata) if metadata.file_type().is_socket() => Ok(true),
        Ok(_) => Err(Error::NotASocket(path.to_owned())),
    }
}

#[cfg(test)]
mod tests;
