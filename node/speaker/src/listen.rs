//! Accepts the connections that peers begin.

use std::collections::BTreeMap;
use std::io;
use std::net::{self, IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::socket::{Shutdown, shutdown};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;

use crate::password::Password;
use crate::protection::{send_full_ttl, set_password};
use crate::routes::lock;

/// The most connections that wait in the kernel until this node accepts them.
const BACKLOG: u32 = 128;
/// The time that a listener pauses when the process has no descriptor left for a connection.
const REST: Duration = Duration::from_millis(100);

/// The peers whose connections are accepted.
#[derive(Debug, Default)]
pub(crate) struct Doors {
    peers: Mutex<BTreeMap<IpAddr, mpsc::Sender<TcpStream>>>,
    /// The number of connections that were closed at once.
    refused: AtomicU64,
}

impl Doors {
    /// Sets the peers whose connections are accepted from now on.
    pub(crate) fn set(&self, peers: BTreeMap<IpAddr, mpsc::Sender<TcpStream>>) {
        *lock(&self.peers) = peers;
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Passes a connection to its peer's task. The connection is closed if its source is no peer, or if the task's channel
    /// is full.
    fn bring(&self, stream: TcpStream, from: SocketAddr) {
        let peers = lock(&self.peers);
        let peer = peers.get(&from.ip().to_canonical());
        if peer.is_none_or(|it| it.try_send(stream).is_err()) {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A socket that listens.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    /// A duplicate of the socket, by which waiting connections are accepted without blocking.
    waiting: net::TcpListener,
    address: SocketAddr,
}

impl Listener {
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the password for a peer's connections, or removes it.
    ///
    /// # Errors
    /// This node's kernel does not support it. The text names the remedy.
    pub(crate) fn set_password(
        &self,
        peer: IpAddr,
        password: Option<&Password>,
    ) -> Result<(), String> {
        if peer.is_ipv6() && self.address.is_ipv4() {
            // An IPv4 socket gets no packets from an IPv6 peer.
            return Ok(());
        }
        set_password(&self.socket, self.address.is_ipv6(), peer, password)
    }

    /// Accepts the connections that wait in the kernel now, at most as many as the kernel's queue holds.
    pub(crate) fn take_waiting(&self, doors: &Doors) {
        for _ in 0..=BACKLOG {
            let Ok((stream, from)) = self.waiting.accept() else { return };
            match stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)) {
                Ok(stream) => doors.bring(stream, from),
                Err(error) => tracing::debug!(%error, "a BGP connection could not be taken"),
            }
        }
    }

    /// Accepts connections until the task is aborted.
    pub(crate) async fn accept(&self, doors: &Doors) {
        loop {
            match self.socket.accept().await {
                Ok((stream, from)) => doors.bring(stream, from),
                Err(error) => {
                    tracing::debug!(%error, "a BGP connection could not be taken");
                    tokio::time::sleep(REST).await;
                }
            }
        }
    }
}

/// Makes the port free at once. A process that another thread has just forked still holds copies of all sockets until it
/// executes its program, and a copy of this socket would continue to listen.
impl Drop for Listener {
    fn drop(&mut self) {
        // The call fails only for a socket that does not listen any more.
        let _ = shutdown(self.waiting.as_raw_fd(), Shutdown::Read);
    }
}

/// Listens at an address. With `[::]`, the socket listens at all addresses of both families, or at all IPv4 addresses
/// on a kernel without IPv6.
///
/// # Errors
/// Another process uses the address, or the caller lacks the right to use it.
pub(crate) fn listen(address: SocketAddr) -> io::Result<Listener> {
    match listen_at(address) {
        Err(error)
            if address.ip() == Ipv6Addr::UNSPECIFIED
                && error.kind() != io::ErrorKind::AddrInUse
                && error.kind() != io::ErrorKind::PermissionDenied =>
        {
            listen_at(SocketAddr::new([0, 0, 0, 0].into(), address.port()))
        }
        listener => listener,
    }
}

fn listen_at(address: SocketAddr) -> io::Result<Listener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restarted process does not wait for the connections of its predecessor to end.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    // Accepted connections inherit the TTL.
    send_full_ttl(&socket, true)?;
    if address.is_ipv6() {
        send_full_ttl(&socket, false)?;
    }
    let waiting = socket.listen(BACKLOG)?.into_std()?;
    let socket = TcpListener::from_std(waiting.try_clone()?)?;
    Ok(Listener { address: socket.local_addr()?, socket, waiting })
}
