//! TCP connections per second: each is opened, carries one byte in each direction, and is closed.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use manx_linux::netns;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::time::{TimeVal, TimeValLike as _};

use super::ends::PathEnds;
use super::traffic::{TIMEOUT, rate_of_arrival};
use crate::error::{Error, io as io_error};
use crate::host::cores::{self, Cores};

/// The number of clients. Each client has one connection at a time.
const CLIENTS: u16 = 16;

/// Opens connections for `length` and returns the number per second that were answered and closed. The connections go
/// to `ports` ports in turn, starting with the target's port. A connection that has not ended after `TIMEOUT` is given
/// up and is not counted.
///
/// The server closes first, so that the clients' ports are free again at once.
pub fn tcp_connections(
    ends: &PathEnds,
    ports: u16,
    length: Duration,
    cores: Cores,
) -> Result<f64, Error> {
    let (bound, target) = (ends.bound(), ends.target);
    let listen =
        || (0..ports).map(|at| listen(nth_port(bound, at))).collect::<io::Result<Vec<_>>>();
    let listeners = netns::run_in(&ends.receiver.netns, listen)?
        .map_err(io_error("the receiver cannot listen"))?;
    // The client threads run in the sender's namespace.
    let per_second = netns::run_in(&ends.sender.netns, || {
        rate_of_arrival(length, |over, answered| {
            thread::scope(|scope| {
                // There are at least as many server threads as clients, so that no client waits while a server answers
                // another one.
                let servers = usize::from(ports.max(CLIENTS));
                for listener in listeners.iter().cycle().take(servers) {
                    scope.spawn(|| {
                        cores::pin(cores.receiver);
                        answer_until_over(listener, over);
                    });
                }
                for client in 0..CLIENTS {
                    scope.spawn(move || {
                        cores::pin(cores.sender);
                        let of_client = (0..ports).cycle().skip(usize::from(client % ports));
                        ask_until_over(of_client.map(|at| nth_port(target, at)), over, answered);
                    });
                }
            });
        })
    })??;
    if per_second == 0.0 {
        return Err(Error::Nothing(format!("an answer to a TCP connection to {target}")));
    }
    Ok(per_second)
}

fn nth_port(first: SocketAddr, at: u16) -> SocketAddr {
    SocketAddr::new(first.ip(), first.port() + at)
}

/// A listener that waits at most [`TIMEOUT`] for a connection (`socket(7)`, `SO_RCVTIMEO`).
fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(at)?;
    setsockopt(&listener, ReceiveTimeout, &TimeVal::milliseconds(TIMEOUT.as_millis() as i64))?;
    Ok(listener)
}

fn answer_until_over(listener: &TcpListener, over: &AtomicBool) {
    let mut question = [0];
    while !over.load(Ordering::Relaxed) {
        let Ok((mut client, _)) = listener.accept() else { continue };
        // If a client gets no answer, it does not count the connection.
        let _ = client
            .set_read_timeout(Some(TIMEOUT))
            .and_then(|()| client.read_exact(&mut question))
            .and_then(|()| client.write_all(&question));
    }
}

fn ask_until_over(
    targets: impl Iterator<Item = SocketAddr>,
    over: &AtomicBool,
    answered: &AtomicU64,
) {
    for target in targets.take_while(|_| !over.load(Ordering::Relaxed)) {
        if ask(target).is_ok() {
            answered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Makes one connection and waits until the server has closed it.
fn ask(target: SocketAddr) -> io::Result<()> {
    let mut server = TcpStream::connect_timeout(&target, TIMEOUT)?;
    server.set_read_timeout(Some(TIMEOUT))?;
    server.write_all(&[0x5a])?;
    let mut answer = [0; 2];
    server.read_exact(&mut answer[..1])?;
    match server.read(&mut answer)? {
        0 => Ok(()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
