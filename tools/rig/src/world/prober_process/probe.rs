//! Sends one probe from a fresh source port and receives the answer.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use manx_policy_compiler::model::Protocol;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpSocket, UdpSocket};
use tokio::time::timeout;

use super::echo::Echo;
use super::raw::{RawProtocol, source_towards};
use super::sctp::{Chunk, Packet};
use super::wire::{Key, Reply, Wire};
use crate::plan::port::Port;
use crate::world::command::{Probe, ProbeReply, ProbeResult};
use crate::world::service::Service;

/// The longest name that a server may send.
const LONGEST_NAME: usize = 512;
/// The time to wait for a server's INIT ACK after an ABORT. A kernel that supports SCTP answers an unknown INIT with an
/// ABORT, in addition to our server's INIT ACK.
const AFTER_ABORT: Duration = Duration::from_millis(20);

/// A counter for the source ports of raw packets and the echo identifiers, from the start of the ephemeral range.
static NEXT: AtomicU16 = AtomicU16::new(0);

fn next_port() -> u16 {
    0x8000 | NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Sends a probe and waits for its answer, at most for its timeout.
pub(super) async fn probe(wire: &Wire, probe: &Probe) -> ProbeResult {
    let patience = Duration::from_millis(probe.timeout_ms);
    let mut from = None;
    let seen = match probe.service {
        Service::Port(Port { protocol: Protocol::Tcp, number }) => {
            let to = SocketAddr::new(probe.to, number);
            timeout(patience, tcp(to, &mut from)).await
        }
        Service::Port(Port { protocol: Protocol::Udp, number }) => {
            let to = SocketAddr::new(probe.to, number);
            timeout(patience, udp(to, &mut from)).await
        }
        Service::Port(Port { protocol: Protocol::Sctp, number }) => {
            let to = SocketAddr::new(probe.to, number);
            timeout(patience, sctp(wire, to, &mut from)).await
        }
        Service::Echo => timeout(patience, echo(wire, probe.to, &mut from)).await,
    };
    let answer = match seen {
        Err(_elapsed) => ProbeReply::Silence,
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => ProbeReply::Refused,
        Ok(Err(error)) => ProbeReply::Error(error.to_string()),
    };
    ProbeResult { from, answer }
}

fn any_of(to: SocketAddr) -> SocketAddr {
    let any: IpAddr = match to.ip() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(any, 0)
}

async fn tcp(to: SocketAddr, from: &mut Option<SocketAddr>) -> io::Result<ProbeReply> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // The socket is bound before it connects, so that the source is known even if there is no answer.
    socket.bind(SocketAddr::new(source_towards(to.ip())?, 0))?;
    *from = Some(socket.local_addr()?);
    let stream = socket.connect(to).await?;
    let mut name = Vec::new();
    let mut limited = stream.take(LONGEST_NAME as u64);
    while !name.ends_with(b"\n") && limited.read_buf(&mut name).await? > 0 {}
    Ok(served(&name))
}

/// A server's answer: its name, a space, and the client's address.
fn served(answer: &[u8]) -> ProbeReply {
    let text = String::from_utf8_lossy(answer);
    let (name, client) = text.trim_end().rsplit_once(' ').unwrap_or((text.trim_end(), ""));
    ProbeReply::From { name: name.to_owned(), client: client.parse().ok() }
}

async fn udp(to: SocketAddr, from: &mut Option<SocketAddr>) -> io::Result<ProbeReply> {
    let socket = UdpSocket::bind(any_of(to)).await?;
    socket.connect(to).await?;
    let local = socket.local_addr()?;
    *from = Some(local);
    let nonce = u64::from(local.port()).to_be_bytes();
    socket.send(&nonce).await?;
    let mut buffer = [0; LONGEST_NAME];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if let Some(name) = buffer[..length].strip_prefix(&nonce) {
            return Ok(served(name));
        }
    }
}

async fn echo(wire: &Wire, to: IpAddr, from: &mut Option<SocketAddr>) -> io::Result<ProbeReply> {
    let mut waiting;
    let echo = loop {
        let identifier = next_port();
        if let Some(free) = wire.wait_for(Key::Echo { peer: to, identifier }) {
            waiting = free;
            break Echo { request: true, identifier, sequence: 1 };
        }
    };
    *from = Some(SocketAddr::new(source_towards(to)?, 0));
    wire.send(RawProtocol::Icmp, &echo.bytes(to.is_ipv4()), to).await?;
    match waiting.reply().await {
        Some(_) => Ok(ProbeReply::Echo),
        None => Ok(ProbeReply::Silence),
    }
}

async fn sctp(
    wire: &Wire,
    to: SocketAddr,
    from: &mut Option<SocketAddr>,
) -> io::Result<ProbeReply> {
    let (peer, theirs) = (to.ip(), to.port());
    let mut waiting;
    let ours = loop {
        let ours = next_port();
        if let Some(free) = wire.wait_for(Key::Sctp { peer, theirs, ours }) {
            waiting = free;
            break ours;
        }
    };
    *from = Some(SocketAddr::new(source_towards(peer)?, ours));
    let initiate = 0x6d61_0000 | u32::from(ours);
    let init =
        Packet { source: ours, destination: theirs, verification: 0, initiate, chunk: Chunk::Init };
    wire.send(RawProtocol::Sctp, &init.bytes(), peer).await?;
    let mut reply = waiting.reply().await;
    if reply == Some(Reply::Sctp(Chunk::Abort)) {
        reply = timeout(AFTER_ABORT, waiting.reply()).await.unwrap_or(reply);
    }
    Ok(match reply {
        Some(Reply::Sctp(Chunk::InitAck(cookie))) => {
            ProbeReply::From { name: String::from_utf8_lossy(&cookie).into_owned(), client: None }
        }
        Some(Reply::Sctp(Chunk::Abort)) => ProbeReply::Refused,
        Some(Reply::Sctp(Chunk::Init) | Reply::Echo) | None => ProbeReply::Silence,
    })
}
