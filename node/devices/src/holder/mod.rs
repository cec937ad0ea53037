//! The holder: a process that outlives the agent, and keeps a duplicate of each queue of each pod's device. A device
//! ends with its last queue, so pods keep their interfaces while there is no agent. The next agent takes them over. The
//! holder also keeps the records of the agent's flows, so that the next agent knows which side opened each connection.
//!
//! It keeps descriptors under names, each with a note that it does not interpret. So it need not change when agents do: a
//! holder of an older plugin serves newer agents. It reads no packets, knows no policy and decides nothing. It releases an
//! entry when a client asks for that, or when the device is gone. It ends when it has no device left.
//!
//! - this file: the protocol, and the notes of entries.
//! - `process`: the holder itself.
//! - `client`: the requests of the agent and the plugin.
//!
//! A message has the same framing as on the agent's socket, and at most `MAX_MESSAGE` bytes. The socket is next to the
//! agent's, with mode 0600.

mod client;
mod process;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use manx_api::descriptors;
use manx_api::{Attach, PodName};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::unistd::geteuid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::client::{Client, Error, Kept, is_there};
pub use self::process::Holder;

/// The version of the protocol.
const VERSION: u32 = 1;
/// The most bytes of a message. A pod's note has some hundred bytes.
const MAX_MESSAGE: usize = 16 << 10;
/// The most entries. A node has some 110 pods (Kubernetes, "Considerations for large clusters").
const MAX_ENTRIES: usize = 2048;
/// The time that the holder waits for a message. It serves one connection at a time.
const SILENCE: Duration = Duration::from_millis(500);
/// The time that a client waits. It is longer than the holder's own wait for another, silent client.
const PATIENCE: Duration = Duration::from_secs(2);

/// The path of the holder's socket, next to that of its agent.
pub fn path(agent: &Path) -> PathBuf {
    agent.with_extension("holder.sock")
}

/// The facts about a pod's device that the next agent needs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Held {
    /// The attachment, with the addresses of the pod.
    pub attach: Attach,
    /// The interface's MTU in bytes.
    pub mtu: u32,
}

/// The meaning of an entry, for the next agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Note {
    /// The queues of a pod's device.
    Pod(Box<Held>),
    /// The records of a worker's flows ([`manx_dataplane::flow::FlowRecordFile`]).
    Flows { worker: usize },
}

impl Note {
    pub fn name(&self) -> String {
        match self {
            Self::Pod(held) => name(&held.attach.pod),
            Self::Flows { worker } => format!("flows:{worker}"),
        }
    }
}

impl From<Held> for Note {
    fn from(held: Held) -> Self {
        Self::Pod(Box::new(held))
    }
}

/// The name of a pod's entry.
pub fn name(pod: &PodName) -> String {
    format!("pod:{pod}")
}

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    version: u32,
    call: Call,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Call {
    /// Keep the descriptors of the message in place of the entry's former ones.
    Keep { name: String, note: Value, descriptors: usize },
    /// The first entry, or the one after this name.
    Next { after: Option<String> },
    /// Release the entry. It is no error if there is none.
    Release { name: String },
    /// Release everything, and end.
    End,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Reply {
    /// The reply to [`Call::Keep`], with the number of entries.
    Kept {
        entries: usize,
    },
    /// The reply to [`Call::Next`]. `descriptors` is the number of descriptors that come with the message.
    Entry {
        name: String,
        note: Value,
        descriptors: usize,
    },
    /// The reply to [`Call::Next`] after the last entry.
    NoMore,
    Released,
    Ending,
}

/// A reply, or the reason why the holder refuses.
type Response = Result<Reply, String>;

/// Receives the next message, or `None` if the other side has closed the connection.
fn receive<T: DeserializeOwned>(stream: &UnixStream) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let Some((bytes, descriptors)) = descriptors::receive_message(stream, MAX_MESSAGE)? else {
        return Ok(None);
    };
    Ok(Some((serde_json::from_slice(&bytes)?, descriptors)))
}

/// Sets the time that the stream waits. Returns the other side's user if that is neither root nor the caller's.
fn prepare(stream: &UnixStream, patience: Duration) -> io::Result<Option<u32>> {
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let user = getsockopt(stream, PeerCredentials)?.uid();
    Ok((user != 0 && user != geteuid().as_raw()).then_some(user))
}

#[cfg(test)]
mod tests;
