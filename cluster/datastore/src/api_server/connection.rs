//! A connection to the API server: it sends requests and reads answers of bounded size.
//!
//! An answer that is read as a whole, or one line of a watch, has at most [`MOST`] bytes. A longer one causes an error
//! as soon as that many bytes have arrived, and is not stored. So the memory for reading is proportional to this bound,
//! whatever the server sends: each watch stores at most the start of one line, and only one line or answer is parsed at
//! a time.

use std::future::Future;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Request, Response};
use kube::api::WatchEvent;
use kube::client::Body;
use kube::config::Config;
use kube::core::Status;
use kube::{Client, Error};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

use super::fault::{self, ClientError, own};

/// If the server does not answer within this time, it counts as not answering.
pub(super) const ANSWER: Duration = Duration::from_secs(4);

/// The maximum size of an answer, or of a line of a watch, in bytes. The server accepts no request of more than 3 MiB
/// (Kubernetes, `MaxRequestBodyBytes`), and etcd accepts no object of more than 1.5 MiB in another encoding. If a page
/// of a list is longer, it is requested again with fewer objects.
pub(super) const MOST: usize = 8 << 20;
/// The timeout for a complete answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The age after which a token is read again (client-go reads it every minute).
const TOKEN: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct Connection {
    client: Client,
    token: Option<TokenFile>,
}

impl Connection {
    /// Makes a connection, without sending a request yet.
    pub(super) fn new(config: Config, token: Option<TokenFile>) -> kube::Result<Self> {
        Ok(Self { client: Client::try_from(config)?, token })
    }

    /// Sends a request and reads the answer, which is JSON.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        request: Request<Vec<u8>>,
    ) -> kube::Result<T> {
        let answer = self.bytes(request).await?;
        serde_json::from_slice(&answer).map_err(Error::SerdeError)
    }

    /// Sends a request and reads the answer as bytes.
    pub(super) async fn bytes(&self, request: Request<Vec<u8>>) -> kube::Result<Bytes> {
        in_time(async { whole(self.send(request).await?).await }).await
    }

    /// Starts a watch.
    pub(super) async fn watch(&self, request: Request<Vec<u8>>) -> kube::Result<Lines> {
        let body = in_time(self.send(request)).await?.into_body();
        Ok(Lines { body, frame: Bytes::new(), part: Vec::new() })
    }

    /// Sends a request and returns the answer after reading its head. An answer without success is returned as an error
    /// with the server's message.
    async fn send(&self, mut request: Request<Vec<u8>>) -> kube::Result<Response<Body>> {
        if let Some(token) = &self.token {
            request.headers_mut().insert(AUTHORIZATION, token.header(Instant::now()));
        }
        let response = self.client.send(request.map(Body::from)).await?;
        let code = response.status();
        if code.is_success() {
            return Ok(response);
        }
        let answer = whole(response).await?;
        let status = serde_json::from_slice::<Status>(&answer).unwrap_or_else(|_| {
            // The answer comes from a proxy, or from a server that does not give a reason.
            let start =
                String::from_utf8_lossy(&answer[..answer.len().min(fault::WORDS)]).into_owned();
            Status::failure(start.trim(), code.canonical_reason().unwrap_or_default())
        });
        Err(Error::Api(Box::new(status.with_code(code.as_u16()))))
    }
}

async fn in_time<T>(answer: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    match timeout(PATIENCE, answer).await {
        Ok(answer) => answer,
        Err(_elapsed) => Err(own(format!("no answer for {} s", PATIENCE.as_secs()))),
    }
}

async fn whole(response: Response<Body>) -> kube::Result<Bytes> {
    match Limited::new(response.into_body(), MOST).collect().await {
        Ok(all) => Ok(all.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_long("an answer")),
        Err(error) => Err(Error::Service(error)),
    }
}

fn too_long(what: &'static str) -> Error {
    ClientError::TooLong { what, most: MOST }.into()
}

/// The events of a watch. Each line is one event.
pub(super) struct Lines {
    body: Body,
    /// Received bytes that are not read yet.
    frame: Bytes,
    /// The start of a line that is not complete yet.
    part: Vec<u8>,
}

impl Lines {
    /// Returns the next event, or `None` if the watch has ended. If the future is dropped, no event is lost.
    pub(super) async fn next(&mut self) -> kube::Result<Option<WatchEvent<Value>>> {
        loop {
            if let Some(line) = self.line()? {
                return event(&line).map(Some);
            }
            match self.body.frame().await {
                // If a connection ends in the middle of a line, the watch ends normally. The next watch continues from
                // the last version.
                None => return Ok(None),
                Some(frame) => {
                    self.frame = frame?.into_data().unwrap_or_default();
                }
            }
        }
    }

    /// Returns whether a line has begun but is not complete.
    pub(super) fn is_inside(&self) -> bool {
        !self.part.is_empty()
    }

    /// Returns the next line of the received bytes, if it is complete.
    fn line(&mut self) -> kube::Result<Option<Bytes>> {
        let end = self.frame.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
        let more = self.frame.split_to(end.unwrap_or(self.frame.len()));
        if self.part.len() + more.len() > MOST {
            return Err(too_long("a line of a watch"));
        }
        if end.is_some() && self.part.is_empty() {
            return Ok(Some(more));
        }
        self.part.extend_from_slice(&more);
        Ok(end.map(|_| std::mem::take(&mut self.part).into()))
    }
}

fn event(line: &[u8]) -> kube::Result<WatchEvent<Value>> {
    serde_json::from_slice(line).map_err(|error| match serde_json::from_slice::<Status>(line) {
        Ok(status) => Error::Api(Box::new(status)),
        Err(_) => Error::SerdeError(error),
    })
}

/// A bearer token in a file, which is replaced from time to time. As in client-go, white space around it is ignored,
/// and the last token is used while the file is empty or cannot be read. The age of the token is measured with the
/// monotonic clock, so that a change of the system time does not keep an old token in use.
pub(super) struct TokenFile {
    path: PathBuf,
    read: Mutex<(Instant, HeaderValue)>,
}

impl TokenFile {
    /// Reads the token.
    pub(super) fn open(path: PathBuf) -> Result<Self, String> {
        let header = read_token(&path)?;
        Ok(Self { path, read: Mutex::new((Instant::now(), header)) })
    }

    fn header(&self, now: Instant) -> HeaderValue {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(read.0) >= TOKEN {
            match read_token(&self.path) {
                Ok(header) => *read = (now, header),
                Err(reason) => {
                    tracing::warn!(reason, "the last token counts");
                    read.0 = now;
                }
            }
        }
        read.1.clone()
    }
}

fn read_token(path: &std::path::Path) -> Result<HeaderValue, String> {
    let wrong =
        |found: &str| format!("token file {}: {found}, expected a bearer token", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| wrong(&error.to_string()))?;
    let token = text.trim();
    if token.is_empty() {
        return Err(wrong("found nothing"));
    }
    let mut header = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| wrong("found a character that no header of HTTP may hold"))?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_token_is_read_again_in_time_and_without_white_space() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(TokenFile::open(path.clone()).is_err(), "there is none");
        fs::write(&path, " \n").unwrap();
        let Err(empty) = TokenFile::open(path.clone()) else { panic!() };
        assert!(empty.ends_with("token: found nothing, expected a bearer token"), "{empty}");
        fs::write(&path, "  one\r\n\n").unwrap();
        let token = TokenFile::open(path.clone()).unwrap();
        let start = Instant::now();
        assert_eq!(token.header(start), "Bearer one");
        fs::write(&path, "two\n").unwrap();
        assert_eq!(token.header(start + TOKEN / 2), "Bearer one");
        assert_eq!(token.header(start + TOKEN * 2), "Bearer two");
        // The file is written in two steps, and then removed.
        fs::write(&path, "").unwrap();
        assert_eq!(token.header(start + TOKEN * 4), "Bearer two");
        fs::remove_file(&path).unwrap();
        assert_eq!(token.header(start + TOKEN * 6), "Bearer two");
        fs::write(&path, "th\u{1}ree").unwrap();
        assert_eq!(token.header(start + TOKEN * 8), "Bearer two");
    }
}
