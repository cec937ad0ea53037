//! The prober's raw sockets: they answer SCTP, and deliver replies to waiting probes.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;

use super::echo::Echo;
use super::raw::{RawProtocol, RawSocket};
use super::sctp::{Chunk, Packet};

/// The key by which a reply is matched to its waiting probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// A reply to an echo.
    Echo {
        /// The sender.
        peer: IpAddr,
        identifier: u16,
    },
    /// An answer to an INIT.
    Sctp {
        /// The sender.
        peer: IpAddr,
        /// The peer's port.
        theirs: u16,
        /// The probe's own port.
        ours: u16,
    },
}

/// A reply for a waiting probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    Echo,
    /// The first chunk of an SCTP packet.
    Sctp(Chunk),
}

/// All raw sockets of the prober.
#[derive(Debug)]
pub(super) struct Wire {
    sockets: Vec<(RawProtocol, bool, RawSocket)>,
    waiting: Mutex<HashMap<Key, mpsc::Sender<Reply>>>,
}

/// A waiting probe; it is deregistered when dropped.
#[derive(Debug)]
pub(super) struct Waiting<'a> {
    wire: &'a Wire,
    key: Key,
    replies: mpsc::Receiver<Reply>,
}

impl Wire {
    /// Opens the sockets and starts to answer INITs to the ports in `listening` with `name`.
    pub(super) fn open(listening: BTreeSet<u16>, name: &Arc<str>) -> io::Result<Arc<Self>> {
        let mut sockets = Vec::new();
        for protocol in [RawProtocol::Icmp, RawProtocol::Sctp] {
            for v4 in [true, false] {
                match RawSocket::open(protocol, v4) {
                    Ok(socket) => sockets.push((protocol, v4, socket)),
                    // The kernel may lack IPv6.
                    Err(error) if !v4 && error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        let wire = Arc::new(Self { sockets, waiting: Mutex::default() });
        let listening = Arc::new(listening);
        for index in 0..wire.sockets.len() {
            let (wire, listening, name) = (wire.clone(), listening.clone(), name.clone());
            tokio::spawn(async move { wire.receive(index, &listening, &name).await });
        }
        Ok(wire)
    }

    async fn receive(&self, index: usize, listening: &BTreeSet<u16>, name: &str) {
        let (protocol, v4, socket) = &self.sockets[index];
        loop {
            let Ok((bytes, peer)) = socket.recv_from().await else { continue };
            match protocol {
                RawProtocol::Icmp => {
                    if let Some(Echo { request: false, identifier, .. }) = Echo::parse(&bytes, *v4)
                    {
                        self.deliver(Key::Echo { peer, identifier }, Reply::Echo);
                    }
                }
                RawProtocol::Sctp => {
                    let Some(packet) = Packet::parse(&bytes) else { continue };
                    let listens = listening.contains(&packet.destination);
                    if let Some(answer) = packet.reply(listens, name, packet.initiate ^ 0x6d61_6e78)
                    {
                        let _ = socket.send_to(&answer.bytes(), peer).await;
                        continue;
                    }
                    let (theirs, ours) = (packet.source, packet.destination);
                    self.deliver(Key::Sctp { peer, theirs, ours }, Reply::Sctp(packet.chunk));
                }
            }
        }
    }

    fn deliver(&self, key: Key, reply: Reply) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(probe) = waiting.get(&key) {
            // If the queue is full, the probe already has enough replies.
            let _ = probe.try_send(reply);
        }
    }

    /// Sends a packet through the socket of its protocol and of the destination's family.
    pub(super) async fn send(
        &self,
        protocol: RawProtocol,
        bytes: &[u8],
        to: IpAddr,
    ) -> io::Result<()> {
        let wanted =
            |(p, v4, _): &&(RawProtocol, bool, RawSocket)| *p == protocol && *v4 == to.is_ipv4();
        match self.sockets.iter().find(wanted) {
            Some((.., socket)) => socket.send_to(bytes, to).await,
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Registers for replies with this key; `None` if the key is already in use.
    pub(super) fn wait_for(&self, key: Key) -> Option<Waiting<'_>> {
        let (sender, replies) = mpsc::channel(4);
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.contains_key(&key) {
            return None;
        }
        waiting.insert(key, sender);
        Some(Waiting { wire: self, key, replies })
    }
}

impl Waiting<'_> {
    /// The next reply.
    pub(super) async fn reply(&mut self) -> Option<Reply> {
        self.replies.recv().await
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.wire.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}
