//! Connections that peers begin.

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

/// The most connections that wait in the kernel until this node takes them.
const BACKLOG: u32 = 128;
/// The time that a listener pauses when the process has no descriptor left for a connection.
const REST: Duration = Duration::from_millis(100);

/// Whose connections are taken.
#[derive(Debug, Default)]
pub(crate) struct Doors {
    peers: Mutex<BTreeMap<IpAddr, mpsc::Sender<TcpStream>>>,
    /// The connections that were closed at once.
    refused: AtomicU64,
}

impl Doors {
    /// The peers whose connections are taken from now on.
    pub(crate) fn set(&self, peers: BTreeMap<IpAddr, mpsc::Sender<TcpStream>>) {
        *lock(&self.peers) = peers;
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Brings a connection to its peer's task. One of nobody that is known is closed, and so is one more than the task has
    /// looked at.
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
    /// The same one, to take at once what waits there.
    waiting: net::TcpListener,
    address: SocketAddr,
}

impl Listener {
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the password that a peer's connections have, or that they have none.
    ///
    /// # Errors
    /// What this node's kernel cannot, and what to do.
    pub(crate) fn set_password(
        &self,
        peer: IpAddr,
        password: Option<&Password>,
    ) -> Result<(), String> {
        if peer.is_ipv6() && self.address.is_ipv4() {
            // Nothing comes here from there.
            return Ok(());
        }
        set_password(&self.socket, self.address.is_ipv6(), peer, password)
    }

    /// Brings the connections that wait, and no more than can.
    pub(crate) fn take_waiting(&self, doors: &Doors) {
        for _ in 0..=BACKLOG {
            let Ok((stream, from)) = self.waiting.accept() else { return };
            match stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)) {
                Ok(stream) => doors.bring(stream, from),
                Err(error) => tracing::debug!(%error, "a BGP connection could not be taken"),
            }
        }
    }

    /// Takes connections until the task is told to end.
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

/// The port is free at once: a process that another thread has just begun still holds copies of all sockets until it runs
/// its program, and a copy of this one would go on to listen.
impl Drop for Listener {
    fn drop(&mut self) {
        // A socket that does not listen any more has nothing to end.
        let _ = shutdown(self.waiting.as_raw_fd(), Shutdown::Read);
    }
}

/// Listens at an address. `[::]` stands for all addresses of both families; a kernel without IPv6 has those of IPv4.
///
/// # Errors
/// The address is another process's, or needs rights that this one does not have.
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
    // A process that starts anew does not wait for the connections of the one before.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    // Connections that it accepts send as it does.
    send_full_ttl(&socket, true)?;
    if address.is_ipv6() {
        send_full_ttl(&socket, false)?;
    }
    let waiting = socket.listen(BACKLOG)?.into_std()?;
    let socket = TcpListener::from_std(waiting.try_clone()?)?;
    Ok(Listener { address: socket.local_addr()?, socket, waiting })
}
