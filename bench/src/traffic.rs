//! What is sent over a path. Figures count what arrived.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use manx_linux::netns;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce};

use crate::cores::{self, Cores};
use crate::error::{Error, errno, io as io_error};
use crate::path::Path;
use crate::statistics::percentile;
use crate::sys::Batch;

/// The port that everything goes to, TCP and UDP; policies of a path must allow it.
pub const PORT: u16 = 5201;
/// How many ports from [`PORT`] on an attacker may send to.
pub const ATTACK_PORTS: u16 = 64;
/// A small packet's bytes of payload: 64 bytes with its IPv4 and UDP headers.
pub const SMALL: usize = 64 - 20 - 8;
/// Before a figure is taken the traffic runs this long.
pub const WARM_UP: Duration = Duration::from_millis(400);
/// How long a socket waits before it looks whether the measurement is over.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(5);
/// What a receiver of datagrams asks the kernel to keep for it, in bytes.
const RECEIVE_BUFFER: usize = 4 << 20;
/// How much a stream's writer hands over at once, in bytes.
const CHUNK: usize = 128 << 10;
/// How late a paced writer may be and still make up for it.
const BACKLOG: Duration = Duration::from_millis(10);

/// `count` TCP streams for `length`; returns gigabits per second of payload that the receiver read.
pub fn streams(path: &Path, count: usize, length: Duration, cores: Cores) -> Result<f64, Error> {
    let streams = Streams::connect(path, count)?;
    let target = streams.target;
    match streams.carry(None, length, cores)? {
        0.0 => Err(Error::Nothing(format!("TCP to {target}"))),
        rate => Ok(rate),
    }
}

/// TCP streams that are connected and carry nothing yet.
#[derive(Debug)]
pub struct Streams {
    /// Both ends of each, the sender's first.
    connections: Vec<(TcpStream, TcpStream)>,
    target: SocketAddr,
}

impl Streams {
    /// Connects so many.
    pub fn connect(path: &Path, count: usize) -> Result<Self, Error> {
        let target = SocketAddr::new(path.to.address, PORT);
        let listener = netns::run_in(&path.to.netns, || TcpListener::bind(target))?
            .map_err(io_error("the receiver cannot listen"))?;
        let connections = (0..count).map(|_| connect(path, &listener, target));
        Ok(Self { connections: connections.collect::<Result<_, _>>()?, target })
    }

    /// Carries for `length` as much as goes, or `pace` gigabits per second in each stream; returns gigabits per second of payload
    /// that the receiver read, which may be none.
    pub fn carry(self, pace: Option<f64>, length: Duration, cores: Cores) -> Result<f64, Error> {
        let pace = pace.map(|gigabits| gigabits * 1e9 / 8.0);
        let bytes = run(length, |over, arrived| {
            thread::scope(|scope| {
                for (sending, receiving) in &self.connections {
                    scope.spawn(|| {
                        cores::pin(cores.sender);
                        write_all_the_time(sending, pace, over);
                    });
                    scope.spawn(|| {
                        cores::pin(cores.receiver);
                        read_all(receiving, over, arrived);
                        // Ends a writer that still waits.
                        let _ = receiving.shutdown(Shutdown::Both);
                    });
                }
            });
        })?;
        Ok(bytes * 8.0 / 1e9)
    }
}

/// Both ends of a new connection, the sender's first.
fn connect(
    path: &Path,
    listener: &TcpListener,
    target: SocketAddr,
) -> Result<(TcpStream, TcpStream), Error> {
    let sending = netns::run_in(&path.from.netns, || TcpStream::connect_timeout(&target, CONNECT))?
        .map_err(io_error(format!("no connection to {target}")))?;
    let (receiving, _) = listener.accept().map_err(io_error("no connection came"))?;
    receiving.set_read_timeout(Some(PATIENCE)).map_err(io_error("no timeout can be set"))?;
    sending.set_write_timeout(Some(PATIENCE)).map_err(io_error("no timeout can be set"))?;
    Ok((sending, receiving))
}

/// `pace`: bytes a second; what is late by more than [`BACKLOG`] is not made up for.
fn write_all_the_time(mut to: &TcpStream, pace: Option<f64>, over: &AtomicBool) {
    let chunk = vec![0x5a; CHUNK];
    let mut due = Instant::now();
    while !over.load(Ordering::Relaxed) {
        if pace.is_some() {
            let now = Instant::now();
            thread::sleep(due.saturating_duration_since(now));
            due = due.max(now.checked_sub(BACKLOG).unwrap_or(now));
        }
        match to.write(&chunk) {
            Ok(written) => {
                due += pace.map_or(Duration::ZERO, |pace| {
                    Duration::from_secs_f64(written as f64 / pace.max(1.0))
                });
            }
            Err(error) if would_block(&error) => {}
            // The receiver counts what arrived; a stream that broke shows there.
            Err(_) => return,
        }
    }
}

fn read_all(mut from: &TcpStream, over: &AtomicBool, arrived: &AtomicU64) {
    let mut buffer = vec![0; 2 * CHUNK];
    while !over.load(Ordering::Relaxed) {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(n) => {
                arrived.fetch_add(n as u64, Ordering::Relaxed);
            }
            Err(error) if would_block(&error) => {}
            Err(_) => return,
        }
    }
}

/// A flood of small UDP packets, one way, for `length`; returns millions of packets per second that arrived.
pub fn flood(path: &Path, length: Duration, cores: Cores) -> Result<f64, Error> {
    let (sending, receiving) = udp_pair(path)?;
    let packets = run(length, |over, arrived| {
        thread::scope(|scope| {
            scope.spawn(|| {
                cores::pin(cores.sender);
                let mut batch = Batch::new(SMALL);
                while !over.load(Ordering::Relaxed) {
                    // A full queue is what a flood is for; what arrives is counted.
                    let _ = batch.send(&sending);
                }
            });
            cores::pin(cores.receiver);
            let mut batch = Batch::new(SMALL);
            while !over.load(Ordering::Relaxed) {
                if let Ok(n) = batch.receive(&receiving) {
                    arrived.fetch_add(n as u64, Ordering::Relaxed);
                }
            }
        });
    })?;
    if packets == 0.0 {
        return Err(Error::Nothing(format!("UDP packets to {}:{PORT}", path.to.address)));
    }
    Ok(packets / 1e6)
}

/// UDP ping-pong, one packet in flight, for `length`; returns the round trip in microseconds that so many of a
/// hundred are faster than.
pub fn ping_pong(path: &Path, of_100: u8, length: Duration, cores: Cores) -> Result<f64, Error> {
    let trips = PingPong::open(path)?.trips(length, cores);
    let nothing = || Error::Nothing(format!("a UDP answer from {}:{PORT}", path.to.address));
    percentile(&trips.answered, of_100).ok_or_else(nothing)
}

/// Both ends of a ping-pong that has not begun.
#[derive(Debug)]
pub struct PingPong {
    asking: UdpSocket,
    answering: UdpSocket,
}

/// Round trips in microseconds.
#[derive(Debug, Default)]
pub struct Trips {
    /// Of packets that were answered.
    pub answered: Vec<f64>,
    /// How long an answer was waited for in vain.
    pub lost: Vec<f64>,
}

impl PingPong {
    /// Opens its sockets.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let (asking, answering) = udp_pair(path)?;
        Ok(Self { asking, answering })
    }

    /// One packet in flight, for `length`.
    pub fn trips(&self, length: Duration, cores: Cores) -> Trips {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                cores::pin(cores.receiver);
                let mut buffer = [0; SMALL];
                while !over.load(Ordering::Relaxed) {
                    if let Ok((n, from)) = self.answering.recv_from(&mut buffer) {
                        // One lost is one trip less.
                        let _ = self.answering.send_to(&buffer[..n], from);
                    }
                }
            });
            let trips = scope
                .spawn(|| {
                    cores::pin(cores.sender);
                    let warm = Instant::now() + WARM_UP;
                    let mut trips = Trips::default();
                    for number in 0.. {
                        let start = Instant::now();
                        if start >= warm + length {
                            break;
                        }
                        let is_answered = answers(&self.asking, number);
                        if start >= warm {
                            let of =
                                if is_answered { &mut trips.answered } else { &mut trips.lost };
                            of.push(start.elapsed().as_secs_f64() * 1e6);
                        }
                    }
                    trips
                })
                .join();
            over.store(true, Ordering::Relaxed);
            trips.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// Sends a packet of this number and waits for its answer; the late one of an earlier packet is none.
fn answers(asking: &UdpSocket, number: u64) -> bool {
    let mut buffer = [0; SMALL];
    let name = number.to_be_bytes();
    buffer[..name.len()].copy_from_slice(&name);
    if asking.send(&buffer).is_err() {
        return false;
    }
    while asking.recv(&mut buffer).is_ok() {
        if buffer.starts_with(&name) {
            return true;
        }
    }
    false
}

/// Sends a packet now and then until one comes through.
///
/// # Errors
/// None has until then.
pub fn wait_until_carried(path: &Path, patience: Duration) -> Result<(), Error> {
    let (sending, receiving) = udp_pair(path)?;
    let start = Instant::now();
    let mut buffer = [0; SMALL];
    while start.elapsed() < patience {
        // What cannot be sent yet is sent later.
        let _ = sending.send(&buffer);
        if receiving.recv(&mut buffer).is_ok() {
            return Ok(());
        }
    }
    Err(Error::Nothing(format!("a UDP packet to {}:{PORT} in {patience:?}", path.to.address)))
}

fn udp_pair(path: &Path) -> Result<(UdpSocket, UdpSocket), Error> {
    let target = SocketAddr::new(path.to.address, PORT);
    let receiving = netns::run_in(&path.to.netns, || UdpSocket::bind(target))?
        .map_err(io_error("the receiver cannot bind"))?;
    let sending = netns::run_in(&path.from.netns, || {
        let socket = UdpSocket::bind(SocketAddr::new(path.from.address, 0))?;
        socket.connect(target)?;
        io::Result::Ok(socket)
    })?
    .map_err(io_error("the sender cannot bind"))?;
    // A receiver that is off its core for a moment should not lose what already arrived. Only root may ask for more than
    // net.core.rmem_max; both sides of a comparison get the same.
    if setsockopt(&receiving, RcvBufForce, &RECEIVE_BUFFER).is_err() {
        setsockopt(&receiving, RcvBuf, &RECEIVE_BUFFER)
            .map_err(errno("no larger receive buffer"))?;
    }
    for socket in [&sending, &receiving] {
        socket.set_read_timeout(Some(PATIENCE)).map_err(io_error("no timeout can be set"))?;
    }
    Ok((sending, receiving))
}

/// Runs `traffic` in a thread until it is over and returns how much arrived a second, the warm-up not counted.
fn run(
    length: Duration,
    traffic: impl FnOnce(&AtomicBool, &AtomicU64) + Send,
) -> Result<f64, Error> {
    let (over, arrived) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let running = scope.spawn(|| traffic(&over, &arrived));
        thread::sleep(WARM_UP);
        let (start, before) = (Instant::now(), arrived.load(Ordering::Relaxed));
        thread::sleep(length);
        let (elapsed, after) = (start.elapsed(), arrived.load(Ordering::Relaxed));
        over.store(true, Ordering::Relaxed);
        match running.join() {
            Ok(()) => Ok((after - before) as f64 / elapsed.as_secs_f64()),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn would_block(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}
