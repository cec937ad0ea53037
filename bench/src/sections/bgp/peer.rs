//! One peer of the bench: its connection, the routes that it announces, and the routes that it has
//! received.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt,
};

use super::messages::{Message, announce, first, keepalive, numbers, open};
use super::scenario::{self, NUMBERS, SYSTEM};

/// The port of BGP.
const PORT: u16 = 179;
/// The number of bytes that are read at once.
pub(super) const READ: usize = 256 * 1024;

/// A peer. The messages that it sends are built before the measurement.
#[derive(Debug)]
pub(super) struct Peer {
    address: Ipv4Addr,
    speaker: Ipv4Addr,
    system: u32,
    /// All its routes, as messages.
    routes: Vec<u8>,
    /// The number of prefixes that it should have received from the speaker.
    pub(super) expected: usize,
    /// One bit for each prefix: whether the peer has received it (and no withdrawal since).
    held: Vec<u64>,
    count: usize,
    stage: Stage,
    stream: Option<TcpStream>,
    /// The beginning of a message whose end has not arrived.
    inbound: Vec<u8>,
    outbound: Vec<u8>,
    /// The number of bytes of `outbound` that have been written.
    written: usize,
}

/// The stage of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Closed,
    /// The OPEN has been sent.
    Connected,
    /// The speaker's OPEN has arrived.
    Opened,
    Established,
}

impl Peer {
    pub(super) fn new(of: &scenario::Peer) -> Self {
        let is_internal = of.system == SYSTEM;
        let routes = of.routes.iter().flat_map(|it| announce(it, of.address, is_internal));
        Self {
            address: of.address,
            speaker: of.speaker,
            system: of.system,
            routes: routes.collect(),
            expected: of.announced,
            held: vec![0; NUMBERS / 64],
            count: 0,
            stage: Stage::Closed,
            stream: None,
            inbound: Vec::new(),
            outbound: Vec::new(),
            written: 0,
        }
    }

    pub(super) const fn stage(&self) -> Stage {
        self.stage
    }

    /// Whether it has received the expected number of prefixes, and has sent all of its own.
    pub(super) fn is_whole(&self) -> bool {
        self.stage == Stage::Established && self.count == self.expected && self.has_announced()
    }

    fn has_announced(&self) -> bool {
        self.written == self.outbound.len()
    }

    /// Connects to its speaker and sends the OPEN.
    ///
    /// # Errors
    /// Returns an error if no speaker listens.
    pub(super) fn connect(&mut self) -> io::Result<BorrowedFd<'_>> {
        let stream = connect_from(self.address, self.speaker)?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        self.stage = Stage::Connected;
        self.inbound.clear();
        self.held.fill(0);
        (self.outbound, self.written, self.count) = (open(self.system, self.address), 0, 0);
        self.stream = Some(stream);
        self.write()?;
        self.stream.as_ref().map(AsFd::as_fd).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Records that the connection is over.
    pub(super) fn close(&mut self) {
        (self.stream, self.stage) = (None, Stage::Closed);
    }

    /// Appends messages to the queue, and writes as much of the queue as the socket accepts.
    pub(super) fn send(&mut self, messages: &[u8]) -> io::Result<()> {
        if self.written == self.outbound.len() {
            self.outbound.clear();
            self.written = 0;
        }
        self.outbound.extend_from_slice(messages);
        self.write()
    }

    /// Reads and writes as much as is possible without blocking.
    ///
    /// # Errors
    /// Returns an error if the connection is over, if the received data is not BGP, or if it
    /// contains a route that no peer announces.
    pub(super) fn progress(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        loop {
            let Some(stream) = &mut self.stream else { return Ok(()) };
            match stream.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.receive(&buffer[..length])?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.write()
    }

    fn write(&mut self) -> io::Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        while self.written < self.outbound.len() {
            match stream.write(&self.outbound[self.written..]) {
                Ok(length) => self.written += length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Processes bytes from the speaker. Complete messages are not copied, except one whose beginning had arrived
    /// earlier.
    fn receive(&mut self, come: &[u8]) -> io::Result<()> {
        let begun = std::mem::take(&mut self.inbound);
        let joined = if begun.is_empty() { Vec::new() } else { [&begun, come].concat() };
        let mut bytes = if joined.is_empty() { come } else { &joined };
        while let Some((message, length)) = first(bytes).map_err(io::Error::other)? {
            self.take(message)?;
            bytes = &bytes[length..];
        }
        self.inbound = bytes.to_vec();
        Ok(())
    }

    fn take(&mut self, message: Message<'_>) -> io::Result<()> {
        match message {
            Message::Open if self.stage == Stage::Connected => {
                self.stage = Stage::Opened;
                self.send(&keepalive())
            }
            Message::Keepalive if self.stage == Stage::Opened => {
                self.stage = Stage::Established;
                let routes = std::mem::take(&mut self.routes);
                let sent = self.send(&routes);
                self.routes = routes;
                sent
            }
            Message::Update { withdrawn, announced } => {
                numbers(withdrawn).try_for_each(|it| self.hold(it, false))?;
                numbers(announced).try_for_each(|it| self.hold(it, true))
            }
            Message::Notification(code, subcode) => {
                Err(io::Error::other(format!("NOTIFICATION {code}/{subcode}")))
            }
            Message::Open | Message::Keepalive | Message::Other => Ok(()),
        }
    }

    fn hold(&mut self, number: Option<usize>, holds: bool) -> io::Result<()> {
        let number = number.ok_or_else(|| io::Error::other("a prefix that nobody tells"))?;
        let (word, bit) = (&mut self.held[number / 64], 1 << (number % 64));
        if (*word & bit != 0) != holds {
            *word ^= bit;
            self.count = if holds { self.count + 1 } else { self.count - 1 };
        }
        Ok(())
    }
}

/// Connects to the BGP port of `to`, from the address `source`.
pub(super) fn connect_from(source: Ipv4Addr, to: Ipv4Addr) -> io::Result<TcpStream> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    let address = |it: Ipv4Addr, port| {
        let [a, b, c, d] = it.octets();
        SockaddrIn::new(a, b, c, d, port)
    };
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    bind(fd, &address(source, 0))?;
    connect(fd, &address(to, PORT))?;
    Ok(socket.into())
}
