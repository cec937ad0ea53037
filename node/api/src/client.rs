//! A client of the agent's socket. It blocks: the command line and the rig make one call at a time.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::unistd::geteuid;

use crate::explain::{ExplainRequest, Explanation};
use crate::{
    self as api, Attach, Attached, Attachment, Call, Capture, Denial, Detach, ErrorKind, Failure,
    Flows, Reply, Request, Reservation, Response, Routes, Status, descriptors,
};

/// The time that an agent may take to answer.
const PATIENCE: Duration = Duration::from_mins(1);

/// The reason why there is no answer, or an unexpected one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No agent listens.
    #[error(
        "no agent listens at {path} ({source}): start one with `manx node`, or name its socket by --socket"
    )]
    NoAgent {
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The socket belongs to another user.
    #[error(
        "the agent's socket {0} may only be used by the user who runs the agent: run this as that user"
    )]
    Denied(PathBuf),
    /// The process that listens belongs to another user.
    #[error(
        "user {owner} listens at {path}, and this is run by user {}: its answers are not trusted; run this as the user \
         who runs the agent",
        geteuid()
    )]
    Stranger {
        /// The socket.
        path: PathBuf,
        /// The id of the user who listens.
        owner: u32,
    },
    /// The agent disconnected.
    #[error("the agent at {path} closed the connection: {source}")]
    Broken {
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The agent's process lives, but its control loop does not answer.
    #[error("the agent at {0} has not answered for {patience} s: its log shows what it does", patience = PATIENCE.as_secs())]
    Silent(PathBuf),
    /// The thread that serves the agent's health does not answer.
    #[error("the agent has not answered at {path} for {} s", patience.as_secs())]
    Slow {
        /// The socket.
        path: PathBuf,
        /// The time that the client waited.
        patience: Duration,
    },
    /// The answer does not fit the call.
    #[error("the agent at {path} gave an unexpected answer: {reason}")]
    Protocol {
        /// The socket.
        path: PathBuf,
        /// A description of the answer.
        reason: String,
    },
    /// The agent refused the call.
    #[error(transparent)]
    Refused(#[from] Failure),
}

impl Error {
    /// The kind, which decides the exit code.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::NoAgent { .. } | Self::Denied(_) | Self::Stranger { .. } => {
                ErrorKind::Environment
            }
            Self::Broken { .. } | Self::Silent(_) | Self::Slow { .. } => ErrorKind::Internal,
            Self::Protocol { .. } => ErrorKind::Version,
            Self::Refused(failure) => failure.kind,
        }
    }
}

/// Connects to a socket of the caller's user or of root. A read waits for `patience` at most.
pub(crate) fn connect(path: &Path, patience: Duration) -> Result<UnixStream, Error> {
    let path = path.to_owned();
    let stream = match UnixStream::connect(&path) {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(Error::Denied(path));
        }
        Err(source) => return Err(Error::NoAgent { path, source }),
    };
    let listener = getsockopt(&stream, PeerCredentials).map_err(io::Error::from);
    match listener.and_then(|it| stream.set_read_timeout(Some(patience)).map(|()| it.uid())) {
        Ok(owner) if owner != 0 && owner != geteuid().as_raw() => {
            Err(Error::Stranger { path, owner })
        }
        Ok(_) => Ok(stream),
        Err(source) => Err(Error::Broken { path, source }),
    }
}

/// A connection to an agent.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    path: PathBuf,
}

impl Client {
    /// Connects to the agent that listens at `path`. The agent must belong to the caller or to root, because any process
    /// that can write to the folder could have bound the path first.
    pub fn connect(path: &Path) -> Result<Self, Error> {
        Ok(Self { stream: connect(path, PATIENCE)?, path: path.to_owned() })
    }

    /// Sets the time to wait for later replies, instead of a minute.
    pub fn set_patience(&self, patience: Duration) -> Result<(), Error> {
        let set = self.stream.set_read_timeout(Some(patience));
        set.map_err(|source| Error::Broken { path: self.path.clone(), source })
    }

    /// Makes a call and waits for the reply.
    pub fn call(&mut self, call: Call) -> Result<Reply, Error> {
        self.call_with(call, &[])
    }

    /// Makes a call with descriptors, and waits for the reply.
    fn call_with(&mut self, call: Call, descriptors: &[BorrowedFd<'_>]) -> Result<Reply, Error> {
        let request = Request { version: api::VERSION, call };
        let bytes = api::encode(&request).map_err(|error| self.protocol(error.to_string()))?;
        let sent = descriptors::send(&self.stream, &bytes, descriptors);
        let answer = sent.and_then(|()| self.receive());
        match answer {
            Ok(bytes) => {
                let response = serde_json::from_slice::<Response>(&bytes);
                Ok(response.map_err(|error| self.protocol(error.to_string()))??)
            }
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                Err(Error::Silent(self.path.clone()))
            }
            Err(source) => Err(Error::Broken { path: self.path.clone(), source }),
        }
    }

    /// [`Call::Attach`].
    pub fn attach(&mut self, attach: Attach) -> Result<Attached, Error> {
        match self.call(Call::Attach(attach))? {
            Reply::Attached(attached) => Ok(attached),
            other => Err(self.unexpected(&other)),
        }
    }

    /// [`Call::Reserve`].
    pub fn reserve(
        &mut self,
        attach: Attach,
        netns: BorrowedFd<'_>,
    ) -> Result<Result<Reservation, Attached>, Error> {
        match self.call_with(Call::Reserve(attach), &[netns])? {
            Reply::Reserved(reservation) => Ok(Ok(reservation)),
            Reply::Attached(attached) => Ok(Err(attached)),
            other => Err(self.unexpected(&other)),
        }
    }

    /// [`Call::HandOver`], after a reservation.
    pub fn hand_over(&mut self, queues: &[BorrowedFd<'_>]) -> Result<Attached, Error> {
        match self.call_with(Call::HandOver, queues)? {
            Reply::Attached(attached) => Ok(attached),
            other => Err(self.unexpected(&other)),
        }
    }

    /// [`Call::Detach`].
    pub fn detach(&mut self, what: impl Into<Detach>) -> Result<(), Error> {
        match self.call(Call::Detach(what.into()))? {
            Reply::Detached => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// [`Call::Attachments`].
    pub fn attachments(&mut self) -> Result<Vec<Attachment>, Error> {
        match self.call(Call::Attachments)? {
            Reply::Attachments(attachments) => Ok(attachments),
            other => Err(self.unexpected(&other)),
        }
    }

    /// [`Call::Ready`].
    pub fn ready(&mut self) -> Result<(), Error> {
        match self.call(Call::Ready)? {
            Reply::Ready => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// [`Call::Removed`].
    pub fn removed(&mut self) -> Result<bool, Error> {
        match self.call(Call::Removed)? {
            Reply::Removed(removed) => Ok(removed),
            other => Err(self.unexpected(&other)),
        }
    }

    /// [`Call::Status`].
    pub fn status(&mut self) -> Result<Status, Error> {
        match self.call(Call::Status)? {
            Reply::Status(status) => Ok(*status),
            other => Err(self.unexpected(&other)),
        }
    }

    /// [`Call::Routes`].
    pub fn routes(&mut self, around: Option<IpAddr>) -> Result<Routes, Error> {
        match self.call(Call::Routes(around))? {
            Reply::Routes(routes) => Ok(*routes),
            other => Err(self.unexpected(&other)),
        }
    }

    /// [`Call::Explain`].
    pub fn explain(&mut self, request: ExplainRequest) -> Result<Explanation, Error> {
        match self.call(Call::Explain(request))? {
            Reply::Explained(explanation) => Ok(*explanation),
            other => Err(self.unexpected(&other)),
        }
    }

    /// [`Call::Denials`].
    pub fn denials(&mut self) -> Result<Vec<Denial>, Error> {
        match self.call(Call::Denials)? {
            Reply::Denials(denials) => Ok(denials),
            other => Err(self.unexpected(&other)),
        }
    }

    /// [`Call::Flows`].
    pub fn flows(&mut self, denied_since: Option<u64>) -> Result<Flows, Error> {
        match self.call(Call::Flows(denied_since))? {
            Reply::Flows(flows) => Ok(*flows),
            other => Err(self.unexpected(&other)),
        }
    }

    /// [`Call::Capture`]: the stream then carries the pcapng file, and pauses while nothing is captured. Closing (or
    /// shutting down) the stream ends the capture.
    pub fn capture(mut self, port: String) -> Result<UnixStream, Error> {
        match self.call(Call::Capture(Capture { port }))? {
            Reply::Capturing => match self.stream.set_read_timeout(None) {
                Ok(()) => Ok(self.stream),
                Err(source) => Err(Error::Broken { path: self.path, source }),
            },
            other => Err(self.unexpected(&other)),
        }
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let received = descriptors::receive_message(&self.stream, api::MAX_MESSAGE)?;
        received.map(|(bytes, _)| bytes).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn protocol(&self, reason: String) -> Error {
        Error::Protocol { path: self.path.clone(), reason }
    }

    fn unexpected(&self, reply: &Reply) -> Error {
        let name = match reply {
            Reply::Attached(_) => "attached",
            Reply::Reserved(_) => "reserved",
            Reply::Detached => "detached",
            Reply::Attachments(_) => "attachments",
            Reply::Ready => "ready",
            Reply::Removed(_) => "removed",
            Reply::Status(_) => "status",
            Reply::Routes(_) => "routes",
            Reply::Explained(_) => "explained",
            Reply::Denials(_) => "denials",
            Reply::Flows(_) => "flows",
            Reply::Capturing => "capturing",
        };
        self.protocol(format!("it answered `{name}` to another call"))
    }
}
