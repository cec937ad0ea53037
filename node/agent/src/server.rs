//! The agent's socket: it takes requests and sends the answers.
//!
//! The server knows the protocol, but nothing about the agent. It sends each request, with a channel for the outcome,
//! through one channel to the agent. The agent's single-threaded control loop takes requests between its other events. It
//! sends the outcome at once, or when the work for the request has ended.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net as blocking;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use manx_api::{Call, ErrorKind, Failure, Reply, Request, Reservation, Response, descriptors};
use manx_linux::netns::{self, Identity};
use manx_linux::socket::{self, Listening, SocketLock};

/// The most connections at one time; further ones wait in the socket's backlog. A caller that attaches a pod holds one
/// until the pod is attached, and a node has some 110 pods (Kubernetes, "Considerations for large clusters").
const CONNECTIONS: usize = 512;
/// The time that the listener pauses when the process has no descriptor left for a connection.
const REST: Duration = Duration::from_millis(100);
/// The time that a caller may take to make a device that it has reserved. One device takes milliseconds; many at once
/// take longer.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(20);
/// The most bytes of a message that are received at once.
const CHUNK: usize = 4 << 10;

/// A request that waits for the agent, with the channel for its outcome.
pub struct PendingRequest {
    pub call: Call,
    /// The network namespace of a call to attach: the one at the named path, or the one that comes as a descriptor.
    pub netns: Option<Identity>,
    /// The channel for the outcome, which is closed if the client has disconnected.
    pub answer: oneshot::Sender<Outcome>,
}

/// The agent's answer to a request.
pub enum Outcome {
    /// The answer to every call except [`Call::Capture`], and the refusal of a capture.
    Reply(Response),
    /// The answer to [`Call::Reserve`]: the device that the caller must make, and the channel for its queues. If the
    /// channel is closed, the reservation ends.
    Reserved(Reservation, oneshot::Sender<Handover>),
    /// An answer that takes long and does not need the control loop. It is made on another thread, one answer at a time. So
    /// many callers use at most one core, and a stopping agent waits for at most one answer.
    Deferred(Box<dyn FnOnce() -> Response + Send>),
    /// The answer to [`Call::Capture`]: the pcapng file in pieces. The channel is closed at the end of the file. The client
    /// ends the capture by closing its connection.
    Stream(mpsc::Receiver<Vec<u8>>),
}

/// The queues of a device that a caller has made.
pub struct Handover {
    pub queues: Vec<OwnedFd>,
    /// The channel for the outcome.
    pub answer: oneshot::Sender<Outcome>,
}

/// The agent's listening socket.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    /// The owner of the socket's path.
    listening: Listening,
}

impl Server {
    /// Listens at the path that `lock` holds. Call this in a tokio runtime.
    pub fn listen(lock: SocketLock) -> Result<Self, socket::Error> {
        let path = lock.path().to_owned();
        let listening = lock.listen()?;
        let listener = listening.listener().try_clone().and_then(UnixListener::from_std);
        let listener = listener.map_err(|source| socket::Error::Listen { path, source })?;
        Ok(Self { listener, listening })
    }

    /// Listens at a second path, too; see [`Listening::listen_second`].
    pub fn listen_second(&mut self, path: &Path) -> Result<blocking::UnixListener, socket::Error> {
        self.listening.listen_second(path)
    }

    /// Serves connections, 512 at once, until the receiver of `requests` ends.
    pub async fn run(self, requests: mpsc::Sender<PendingRequest>) {
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        let turn = Arc::new(Semaphore::new(1));
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = requests.closed() => return,
            };
            match accepted {
                Ok((stream, _)) => {
                    let (requests, turn) = (requests.clone(), Arc::clone(&turn));
                    tokio::spawn(async move {
                        // An error of a connection affects only its client.
                        let _ = serve_connection(stream, &requests, &turn).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection to the agent's socket could not be taken");
                    tokio::time::sleep(REST).await;
                }
            }
        }
    }
}

/// The part of a request that all versions have in common.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

fn parse(bytes: &[u8]) -> Result<Call, Failure> {
    let invalid = |error| Failure {
        kind: ErrorKind::Invalid,
        message: manx_api::FrameError::Json(error).to_string(),
    };
    let Versioned { version } = serde_json::from_slice(bytes).map_err(invalid)?;
    if version != manx_api::VERSION {
        return Err(Failure {
            kind: ErrorKind::Version,
            message: format!(
                "the request speaks version {version} of the agent's protocol, this agent (manx {}) speaks version {}: use the manx \
                 that the agent was started from",
                env!("CARGO_PKG_VERSION"),
                manx_api::VERSION
            ),
        });
    }
    let Request { call, .. } = serde_json::from_slice(bytes).map_err(invalid)?;
    Ok(call)
}

async fn serve_connection(
    mut stream: UnixStream,
    requests: &mpsc::Sender<PendingRequest>,
    turn: &Arc<Semaphore>,
) -> io::Result<()> {
    while let Some((bytes, descriptors)) = receive(&mut stream).await? {
        let mut answer = match parse(&bytes) {
            Ok(call) => submit(&mut stream, requests, call, &descriptors).await?,
            Err(failure) => Outcome::Reply(Err(failure)),
        };
        drop(descriptors);
        if let Outcome::Reserved(reservation, handover) = answer {
            send(&mut stream, &Ok(Reply::Reserved(reservation))).await?;
            answer = hand_over(&mut stream, handover).await?;
        }
        match answer {
            // A handover never leads to a second reservation.
            Outcome::Reserved(..) => return Err(io::ErrorKind::InvalidData.into()),
            Outcome::Reply(response) => send(&mut stream, &response).await?,
            Outcome::Deferred(work) => {
                let taken = Arc::clone(turn).acquire_owned();
                let taken = unless_gone(&mut stream, taken).await?.map_err(io::Error::other)?;
                send(&mut stream, &run_on_thread(work, taken).await).await?;
            }
            Outcome::Stream(pieces) => {
                send(&mut stream, &Ok(Reply::Capturing)).await?;
                return forward(stream, pieces).await;
            }
        }
    }
    Ok(())
}

/// Waits for the queues of the device that a caller makes, and hands them to the agent. An error or the end of the
/// connection ends the reservation.
async fn hand_over(
    stream: &mut UnixStream,
    handover: oneshot::Sender<Handover>,
) -> io::Result<Outcome> {
    let received = tokio::time::timeout(HANDOVER_TIMEOUT, receive(stream)).await;
    let Some((bytes, queues)) = received.map_err(|_| io::ErrorKind::TimedOut)?? else {
        return Err(io::ErrorKind::UnexpectedEof.into());
    };
    match parse(&bytes) {
        Ok(Call::HandOver) => {}
        Ok(_) => {
            let message = "a reservation is followed by `hand-over`; the reservation has ended";
            let failure = Failure { kind: ErrorKind::Invalid, message: message.to_owned() };
            return Ok(Outcome::Reply(Err(failure)));
        }
        Err(failure) => return Ok(Outcome::Reply(Err(failure))),
    }
    let (answer, answered) = oneshot::channel();
    // This fails if the agent stops.
    let _ = handover.send(Handover { queues, answer });
    unless_gone(stream, answered).await.map(|outcome| outcome.unwrap_or_else(|_| stopping()))
}

fn stopping() -> Outcome {
    let message = "the agent is stopping and answers no more".to_owned();
    Outcome::Reply(Err(Failure { kind: ErrorKind::Internal, message }))
}

/// Receives a message and the descriptors that came with it. `None`: the client has closed the connection.
async fn receive(stream: &mut UnixStream) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut descriptors = Vec::new();
    let mut header = [0; 4];
    let mut filled = 0;
    while filled < header.len() {
        match receive_some(stream, &mut header[filled..], &mut descriptors).await? {
            0 => return Ok(None),
            len => filled += len,
        }
    }
    let len = manx_api::message_len(header).map_err(io::Error::other)?;
    // Memory grows with the bytes received, not with the announced length.
    let mut bytes = Vec::new();
    let mut chunk = [0; CHUNK];
    while bytes.len() < len {
        let rest = CHUNK.min(len - bytes.len());
        match receive_some(stream, &mut chunk[..rest], &mut descriptors).await? {
            0 => return Ok(None),
            len => bytes.extend_from_slice(&chunk[..len]),
        }
    }
    Ok(Some((bytes, descriptors)))
}

async fn receive_some(
    stream: &UnixStream,
    buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    loop {
        stream.readable().await?;
        let received =
            stream.try_io(Interest::READABLE, || descriptors::receive(stream, buffer, descriptors));
        match received {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
    }
}

async fn submit(
    stream: &mut UnixStream,
    requests: &mpsc::Sender<PendingRequest>,
    call: Call,
    descriptors: &[OwnedFd],
) -> io::Result<Outcome> {
    let (answer, answered) = oneshot::channel();
    let netns = match &call {
        // The control loop must not do this: a path on a mount that does not answer would block it for ever.
        Call::Attach(attach) => unless_gone(stream, tokio::fs::metadata(&attach.netns))
            .await?
            .ok()
            .as_ref()
            .map(Identity::from),
        Call::Reserve(_) => descriptors.first().and_then(|it| netns::identity(it).ok()),
        _ => None,
    };
    if requests.send(PendingRequest { call, netns, answer }).await.is_err() {
        return Ok(stopping());
    }
    unless_gone(stream, answered).await.map(|answer| answer.unwrap_or_else(|_| stopping()))
}

/// Waits for something on behalf of a client. The client has nothing to send meanwhile, so a readable socket means that the
/// client has disconnected or breaks the protocol.
async fn unless_gone<T>(
    stream: &mut UnixStream,
    awaited: impl Future<Output = T>,
) -> io::Result<T> {
    let mut closed = [0; 1];
    tokio::select! {
        awaited = awaited => Ok(awaited),
        read = stream.read(&mut closed) => match read {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Err(io::ErrorKind::InvalidData.into()),
            Err(error) => Err(error),
        },
    }
}

/// Makes an answer on another thread. The work keeps the permit `turn` until the work has ended, even if the caller no
/// longer waits.
async fn run_on_thread(
    work: Box<dyn FnOnce() -> Response + Send>,
    turn: OwnedSemaphorePermit,
) -> Response {
    let in_turn = move || {
        let response = work();
        drop(turn);
        response
    };
    let answer = tokio::task::spawn_blocking(in_turn).await;
    answer.unwrap_or_else(|_| {
        let message = "the answer could not be made".to_owned();
        Err(Failure { kind: ErrorKind::Internal, message })
    })
}

async fn send(stream: &mut UnixStream, response: &Response) -> io::Result<()> {
    let bytes = match manx_api::encode(response) {
        Ok(bytes) => bytes,
        Err(error) => {
            let message = format!("the answer cannot be sent: {error}");
            manx_api::encode(&Response::Err(Failure { kind: ErrorKind::Internal, message }))
                .map_err(io::Error::other)?
        }
    };
    stream.write_all(&bytes).await
}

/// Sends the pieces to the client until there are none left, or the client closes the connection. Then the channel is
/// closed, by which the agent notices.
async fn forward(stream: UnixStream, mut pieces: mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
    let (mut read, mut write) = stream.into_split();
    let mut closed = [0; 1];
    loop {
        tokio::select! {
            piece = pieces.recv() => match piece {
                Some(piece) => write.write_all(&piece).await?,
                None => return write.shutdown().await,
            },
            read = read.read(&mut closed) => return read.map(|_| ()),
        }
    }
}

#[cfg(test)]
mod tests;
