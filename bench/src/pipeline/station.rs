//! Both ends of every wire: a port that makes the packets it receives and counts those that it transmits.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use manx_dataplane::packet::{Packet, Pool};
use manx_dataplane::parse::parse;
use manx_dataplane::port::{Capabilities, PacketIo, Received, Transmitted};
use nix::sys::eventfd::EventFd;

use super::stream::Stream;

/// What a port still has to give, and what it was given.
#[derive(Default)]
struct State {
    stream: Option<Stream>,
    left: u64,
    /// Packets that one call of `receive` gives at most.
    vector: usize,
    /// Read every packet that leaves, and count those that no receiver would take.
    checks: bool,
    left_by: u64,
    broken: u64,
}

/// A port and its far side: clones are the same.
#[derive(Clone)]
pub(crate) struct Station {
    state: Arc<Mutex<State>>,
    /// Rings when there is something to receive, so that a port without traffic costs a worker what it costs elsewhere: nothing.
    bell: Arc<EventFd>,
}

impl Station {
    /// One with nothing to receive. Errors: no descriptor.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { state: Arc::default(), bell: Arc::new(EventFd::new()?) })
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The next packets to receive: `count` of `stream`, at most `vector` at a time.
    pub(crate) fn load(&self, stream: Stream, count: u64, vector: usize) {
        self.with(|state| {
            state.stream = Some(stream);
            state.left = count;
            state.vector = vector;
        });
        // It cannot: the count is far from its end.
        let _ = self.bell.write(1);
    }

    /// The stream, as far as it has come.
    pub(crate) fn unload(&self) -> Option<Stream> {
        self.with(|state| state.stream.take())
    }

    /// Whether what leaves is read.
    pub(crate) fn check(&self, checks: bool) {
        self.with(|state| state.checks = checks);
    }

    /// Packets that have left by it, and how many of them were broken.
    pub(crate) fn left_by(&self) -> (u64, u64) {
        self.with(|state| (state.left_by, state.broken))
    }
}

impl PacketIo for Station {
    fn receive(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
        limit: usize,
    ) -> io::Result<Received> {
        self.with(|state| {
            let count = state.left.min(limit.min(state.vector) as u64);
            if let Some(stream) = &mut state.stream {
                for _ in 0..count {
                    let Some(mut packet) = pool.take() else { break };
                    let len = stream.write_next(packet.room_mut());
                    packet.set_len(len);
                    packet.offload = stream.offload();
                    into.push(packet);
                    state.left -= 1;
                }
            }
            Ok(Received { drained: state.left == 0, ..Received::default() })
        })
    }

    fn transmit(&mut self, pool: &mut Pool, packets: &mut Vec<Packet>) -> io::Result<Transmitted> {
        self.with(|state| {
            let sent = packets.len();
            state.left_by += sent as u64;
            for packet in packets.drain(..) {
                if state.checks && parse(packet.bytes()).is_err() {
                    state.broken += 1;
                }
                pool.put(packet);
            }
            Ok(Transmitted { sent, refused: 0 })
        })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.bell.as_raw_fd())
    }

    fn is_mapped(&self) -> bool {
        false
    }

    fn unwrapped(self: Box<Self>) -> Box<dyn PacketIo> {
        self
    }
}
