//! The traffic over a path. Figures count the traffic that has arrived.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use manx_linux::netns;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce};

use super::ends::PathEnds;
use crate::error::{Error, errno, io as io_error};
use crate::host::cores::{self, Cores};
use crate::host::sys::Batch;
use crate::report::statistics::percentile;

/// The number of payload bytes of a small packet, which has 64 bytes with its IPv4 and UDP headers.
pub const SMALL: usize = 64 - 20 - 8;
/// The time for which the traffic runs before a figure is taken.
pub const WARM_UP: Duration = Duration::from_millis(400);
/// The timeout of each socket call. A thread checks after each call whether the measurement is over.
pub(super) const TIMEOUT: Duration = Duration::from_millis(200);
/// The longest time that connecting may take.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The receive buffer of a UDP socket, in bytes.
const RECEIVE_BUFFER: usize = 4 << 20;
/// The bytes that a TCP sender writes at once.
const CHUNK: usize = 128 << 10;
/// If a paced sender is late, it sends faster afterwards to catch up, but only for a delay up to this.
const BACKLOG: Duration = Duration::from_millis(10);

/// Sends `count` TCP streams for `length`. Returns the gigabits of payload that the receiver read per second.
pub fn tcp_streams(
    ends: &PathEnds,
    count: usize,
    length: Duration,
    cores: Cores,
) -> Result<f64, Error> {
    let streams = TcpStreams::connect(ends, count)?;
    let target = streams.target;
    match streams.send(None, length, cores)? {
        0.0 => Err(Error::Nothing(format!("TCP to {target}"))),
        rate => Ok(rate),
    }
}

/// Like [`tcp_streams`] with one stream, but the receiver sends, on the connection that the sender opened. The end that
/// sends uses the sender's core.
pub fn tcp_backwards(ends: &PathEnds, length: Duration, cores: Cores) -> Result<f64, Error> {
    let streams = TcpStreams::connect(ends, 1)?;
    let target = streams.target;
    match streams.turned().send(None, length, cores)? {
        0.0 => Err(Error::Nothing(format!("TCP from {target}"))),
        rate => Ok(rate),
    }
}

/// TCP connections that do not carry data yet.
#[derive(Debug)]
pub struct TcpStreams {
    /// Both sockets of each connection: the one that sends data, and the one that receives.
    connections: Vec<(TcpStream, TcpStream)>,
    target: SocketAddr,
}

impl TcpStreams {
    /// Connects `count` times.
    pub fn connect(ends: &PathEnds, count: usize) -> Result<Self, Error> {
        let target = ends.target;
        let listener = netns::run_in(&ends.receiver.netns, || TcpListener::bind(ends.bound()))?
            .map_err(io_error("the receiver cannot listen"))?;
        let connections = (0..count).map(|_| connect(ends, &listener, target));
        Ok(Self { connections: connections.collect::<Result<_, _>>()?, target })
    }

    /// Reverses the direction: the end that received now sends.
    #[must_use]
    pub fn turned(self) -> Self {
        let connections = self.connections.into_iter().map(|(one, other)| (other, one)).collect();
        Self { connections, ..self }
    }

    /// Sends for `length`, as fast as possible or with `pace` gigabits per second in each stream. Returns the gigabits
    /// of payload that the receiver read per second. The result may be 0.
    pub fn send(self, pace: Option<f64>, length: Duration, cores: Cores) -> Result<f64, Error> {
        let pace = pace.map(|gigabits| gigabits * 1e9 / 8.0);
        let bytes = rate_of_arrival(length, |over, arrived| {
            thread::scope(|scope| {
                for (sending, receiving) in &self.connections {
                    scope.spawn(|| {
                        cores::pin(cores.sender);
                        write_until_over(sending, pace, over);
                    });
                    scope.spawn(|| {
                        cores::pin(cores.receiver);
                        read_until_over(receiving, over, arrived);
                        // The writer may still wait in a call. This ends the call.
                        let _ = receiving.shutdown(Shutdown::Both);
                    });
                }
            });
        })?;
        Ok(bytes * 8.0 / 1e9)
    }
}

/// Opens a connection. Returns the sender's socket and the receiver's socket.
fn connect(
    ends: &PathEnds,
    listener: &TcpListener,
    target: SocketAddr,
) -> Result<(TcpStream, TcpStream), Error> {
    let start = || TcpStream::connect_timeout(&target, CONNECT_TIMEOUT);
    let sending = netns::run_in(&ends.sender.netns, start)?
        .map_err(io_error(format!("no connection to {target}")))?;
    let (receiving, _) = listener.accept().map_err(io_error("no connection came"))?;
    for stream in [&sending, &receiving] {
        stream.set_read_timeout(Some(TIMEOUT)).map_err(io_error("no timeout can be set"))?;
        stream.set_write_timeout(Some(TIMEOUT)).map_err(io_error("no timeout can be set"))?;
    }
    Ok((sending, receiving))
}

/// Writes at `pace` bytes per second, or as fast as possible. Catches up after a delay, but only for a delay up to
/// [`BACKLOG`].
fn write_until_over(mut to: &TcpStream, pace: Option<f64>, over: &AtomicBool) {
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
            // A broken stream needs no report here: the receiver counts only data that arrived, so the figure is low.
            Err(_) => return,
        }
    }
}

fn read_until_over(mut from: &TcpStream, over: &AtomicBool, arrived: &AtomicU64) {
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

/// Sends small UDP packets in one direction as fast as possible for `length`. Returns how many millions arrived per
/// second.
pub fn udp_flood(ends: &PathEnds, length: Duration, cores: Cores) -> Result<f64, Error> {
    let (sending, receiving) = udp_sockets(ends)?;
    let packets = rate_of_arrival(length, |over, arrived| {
        thread::scope(|scope| {
            scope.spawn(|| {
                cores::pin(cores.sender);
                let mut batch = Batch::new(SMALL);
                while !over.load(Ordering::Relaxed) {
                    // The flood fills the queue, so this may fail. Only packets that arrive are counted.
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
        return Err(Error::Nothing(format!("UDP packets to {}", ends.target)));
    }
    Ok(packets / 1e6)
}

/// Makes a UDP ping-pong for `length`, with one packet in flight. Returns this percentile of the round trips in
/// microseconds.
pub fn ping_pong(
    ends: &PathEnds,
    percent: u8,
    length: Duration,
    cores: Cores,
) -> Result<f64, Error> {
    let trips = PingPong::open(ends)?.round_trips(length, cores);
    let nothing = || Error::Nothing(format!("a UDP answer from {}", ends.target));
    percentile(&trips.answered, percent).ok_or_else(nothing)
}

/// The sockets of a ping-pong that has not begun.
#[derive(Debug)]
pub struct PingPong {
    asking: UdpSocket,
    answering: UdpSocket,
}

/// Times in microseconds.
#[derive(Debug, Default)]
pub struct RoundTrips {
    /// The round trips of packets that were answered.
    pub answered: Vec<f64>,
    /// The time that the sender waited for each answer that did not arrive.
    pub lost: Vec<f64>,
}

impl PingPong {
    pub fn open(ends: &PathEnds) -> Result<Self, Error> {
        let (asking, answering) = udp_sockets(ends)?;
        Ok(Self { asking, answering })
    }

    /// Measures for `length` with one packet in flight.
    pub fn round_trips(&self, length: Duration, cores: Cores) -> RoundTrips {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                cores::pin(cores.receiver);
                answer_until_over(&self.answering, &over);
            });
            let asking = scope.spawn(|| {
                cores::pin(cores.sender);
                ask_for(&self.asking, length)
            });
            let trips = asking.join();
            over.store(true, Ordering::Relaxed);
            trips.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

fn answer_until_over(socket: &UdpSocket, over: &AtomicBool) {
    let mut buffer = [0; SMALL];
    while !over.load(Ordering::Relaxed) {
        if let Ok((n, from)) = socket.recv_from(&mut buffer) {
            // If sending fails, the answer is lost, and counts as a lost round trip.
            let _ = socket.send_to(&buffer[..n], from);
        }
    }
}

fn ask_for(socket: &UdpSocket, length: Duration) -> RoundTrips {
    let warm = Instant::now() + WARM_UP;
    let mut trips = RoundTrips::default();
    for number in 0.. {
        let start = Instant::now();
        if start >= warm + length {
            break;
        }
        let is_answered = ask(socket, number);
        if start >= warm {
            let times = if is_answered { &mut trips.answered } else { &mut trips.lost };
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    trips
}

/// Sends a packet with this number and waits for its answer. Returns whether the answer arrived. Late answers to
/// earlier packets are ignored.
fn ask(asking: &UdpSocket, number: u64) -> bool {
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

/// Sends packets, with pauses, until one arrives.
///
/// # Errors
/// Returns an error if none has arrived after `patience`.
pub fn wait_until_carried(ends: &PathEnds, patience: Duration) -> Result<(), Error> {
    let (sending, receiving) = udp_sockets(ends)?;
    let start = Instant::now();
    let mut buffer = [0; SMALL];
    while start.elapsed() < patience {
        // A packet that cannot be sent yet is sent again.
        let _ = sending.send(&buffer);
        if receiving.recv(&mut buffer).is_ok() {
            return Ok(());
        }
    }
    Err(Error::Nothing(format!("a UDP packet to {} in {patience:?}", ends.target)))
}

/// The sockets of a sender and of a receiver.
fn udp_sockets(ends: &PathEnds) -> Result<(UdpSocket, UdpSocket), Error> {
    let receiving = netns::run_in(&ends.receiver.netns, || UdpSocket::bind(ends.bound()))?
        .map_err(io_error("the receiver cannot bind"))?;
    let sending = netns::run_in(&ends.sender.netns, || {
        let socket = UdpSocket::bind(SocketAddr::new(ends.sender.address, 0))?;
        socket.connect(ends.target)?;
        io::Result::Ok(socket)
    })?
    .map_err(io_error("the sender cannot bind"))?;
    // A large buffer keeps the packets that arrive while the receiver does not run for a moment. Only root may exceed
    // net.core.rmem_max; both sides of a comparison get the same size.
    if setsockopt(&receiving, RcvBufForce, &RECEIVE_BUFFER).is_err() {
        setsockopt(&receiving, RcvBuf, &RECEIVE_BUFFER)
            .map_err(errno("no larger receive buffer"))?;
    }
    for socket in [&sending, &receiving] {
        socket.set_read_timeout(Some(TIMEOUT)).map_err(io_error("no timeout can be set"))?;
    }
    Ok((sending, receiving))
}

/// Runs `traffic` in a thread, first for the warm-up and then for `length`. Returns how much the counter has grown per
/// second after the warm-up.
pub(super) fn rate_of_arrival(
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
