//! The requests of the agent and the plugin to the holder. Each call blocks for two seconds at
//! most.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use manx_api::descriptors;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, socket};

use super::{Call, Note, PATIENCE, Reply, Request, Response, VERSION, prepare, receive};

/// The reason why the holder does not do what a client requests.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No holder listens there.
    #[error(
        "no holder listens at {path} ({source}): the CNI plugin starts one when it attaches the next pod"
    )]
    NoHolder { path: PathBuf, source: io::Error },
    /// Another user listens there.
    #[error(
        "user {user} listens at {path}, and is not trusted: expected the user that runs this, or root"
    )]
    Stranger { path: PathBuf, user: u32 },
    /// The holder does not reply, ends, or sends an unexpected reply.
    #[error(
        "the holder at {path} does not answer as it should: {reason}; kill its process, and the CNI plugin starts another when it \
         attaches the next pod"
    )]
    Broken { path: PathBuf, reason: String },
    /// The holder refuses the request.
    #[error("the holder at {path} refuses: {reason}")]
    Refused { path: PathBuf, reason: String },
}

/// A connection to the holder.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    path: PathBuf,
}

/// An entry of the holder.
#[derive(Debug)]
pub struct Kept {
    pub name: String,
    /// The note of the entry; `Err` if this program does not know it.
    pub note: Result<Note, serde_json::Error>,
    /// A pod's queues, or the file of flow records.
    pub descriptors: Vec<OwnedFd>,
}

/// Connects to a socket. If a listener does not accept, this waits as long as for a reply.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    let stream = UnixStream::from(socket);
    stream.set_write_timeout(Some(PATIENCE))?;
    socket::connect(stream.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(stream)
}

/// Whether this error of connecting means that no process listens.
fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Whether a holder listens there.
pub fn is_there(path: &Path) -> bool {
    connect(path).is_ok()
}

impl Client {
    /// Connects to the holder that listens at `path`.
    pub fn connect(path: &Path) -> Result<Self, Error> {
        let path = path.to_owned();
        let stream = match connect(&path) {
            Ok(stream) => stream,
            Err(source) if is_absence(&source) => return Err(Error::NoHolder { path, source }),
            Err(error) => return Err(Error::Broken { path, reason: error.to_string() }),
        };
        match prepare(&stream, PATIENCE) {
            Ok(None) => Ok(Self { stream, path }),
            Ok(Some(user)) => Err(Error::Stranger { path, user }),
            Err(error) => Err(Error::Broken { path, reason: error.to_string() }),
        }
    }

    /// Makes the holder keep the queues of a pod, or flow records. Returns the number of its
    /// entries afterwards.
    pub fn keep(&mut self, what: &Note, descriptors: &[BorrowedFd<'_>]) -> Result<usize, Error> {
        let note = serde_json::to_value(what).map_err(|error| self.broken(&error))?;
        let call = Call::Keep { name: what.name(), note, descriptors: descriptors.len() };
        match self.call(call, descriptors)? {
            (Reply::Kept { entries }, _) => Ok(entries),
            (other, _) => Err(self.broken(&format!("{other:?}"))),
        }
    }

    /// All entries, with duplicates of the descriptors.
    pub fn entries(&mut self) -> Result<Vec<Kept>, Error> {
        let mut all: Vec<Kept> = Vec::new();
        loop {
            let after = all.last().map(|it| it.name.clone());
            match self.call(Call::Next { after }, &[])? {
                (Reply::NoMore, _) => return Ok(all),
                (Reply::Entry { name, note, descriptors }, given) if given.len() == descriptors => {
                    let note = serde_json::from_value(note);
                    all.push(Kept { name, note, descriptors: given });
                }
                (Reply::Entry { name, descriptors, .. }, given) => {
                    let came = given.len();
                    let reason = format!(
                        "{came} of {descriptors} descriptors of {name} came: raise the limit of open files"
                    );
                    return Err(Error::Refused { path: self.path.clone(), reason });
                }
                (other, _) => return Err(self.broken(&format!("{other:?}"))),
            }
        }
    }

    /// Makes the holder release an entry.
    pub fn release(&mut self, name: String) -> Result<(), Error> {
        match self.call(Call::Release { name }, &[])? {
            (Reply::Released, _) => Ok(()),
            (other, _) => Err(self.broken(&format!("{other:?}"))),
        }
    }

    /// Makes the holder release everything and end.
    pub fn end(&mut self) -> Result<(), Error> {
        match self.call(Call::End, &[])? {
            (Reply::Ending, _) => Ok(()),
            (other, _) => Err(self.broken(&format!("{other:?}"))),
        }
    }

    fn call(
        &mut self,
        call: Call,
        brought: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), Error> {
        let request = Request { version: VERSION, call };
        let bytes = manx_api::encode(&request).map_err(|error| self.broken(&error))?;
        let answer = descriptors::send(&self.stream, &bytes, brought)
            .and_then(|()| receive::<Response>(&self.stream))
            .and_then(|answer| answer.ok_or_else(|| io::ErrorKind::UnexpectedEof.into()));
        match answer {
            Ok((Ok(reply), given)) => Ok((reply, given)),
            Ok((Err(reason), _)) => Err(Error::Refused { path: self.path.clone(), reason }),
            Err(error) => Err(self.broken(&error)),
        }
    }

    fn broken(&self, reason: &impl ToString) -> Error {
        Error::Broken { path: self.path.clone(), reason: reason.to_string() }
    }
}
