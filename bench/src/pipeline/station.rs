//! Both ends of every wire: a port that makes the packets it receives and counts those that it transmits.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use manx_dataplane::packet::{Packet, Pool};
use manx_dataplane::parse::parse;
use manx_dataplane::port::link::{ETHERNET_LEN, Frame, Link};
use manx_dataplane::port::{Capabilities, PacketIo, Received, Transmitted};
use nix::sys::eventfd::EventFd;

use super::stream::{Draw, Stream};

/// How packets come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Packets that one call of `receive` gives at most; the worker takes no more than its batch.
    pub(crate) vector: usize,
    /// Packets that wait in the device. Each was written there when its buffer was given to the device, so many packets before the
    /// worker receives it, and the worker meets as many buffers in turn, in an order that is not that of their addresses.
    pub(crate) ring: usize,
}

impl Pace {
    /// As many packets as a worker takes at once, and a ring as large as those of network cards.
    pub(crate) const DEVICE: Self = Self { vector: usize::MAX, ring: 2048 };
}

/// What a port still has to give, and what it was given.
struct State {
    stream: Option<Stream>,
    /// Packets that are not yet in the ring.
    left: u64,
    pace: Pace,
    ring: VecDeque<Packet>,
    /// Packets that it has given, and in how many batches.
    given: u64,
    batches: u64,
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
    /// The far side's end of the link, if frames cross the wire and not packets.
    link: Option<Link>,
}

impl Station {
    /// One with nothing to receive; `link`: the far side's end, if frames are to cross the wire. Errors: no descriptor.
    pub(crate) fn new(link: Option<Link>) -> io::Result<Self> {
        let state = State {
            stream: None,
            left: 0,
            pace: Pace::DEVICE,
            ring: VecDeque::new(),
            given: 0,
            batches: 0,
            checks: false,
            left_by: 0,
            broken: 0,
        };
        Ok(Self { state: Arc::new(Mutex::new(state)), bell: Arc::new(EventFd::new()?), link })
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The next packets to receive: `count` of `stream`.
    pub(crate) fn load(&self, stream: Stream, count: u64, pace: Pace) {
        let header = self.link.as_ref().and_then(|link| link.header(stream.packet()));
        let stream = stream.behind(header.as_ref().map_or(&[], |header| header));
        self.with(|state| {
            state.stream = Some(stream);
            state.left = count;
            state.pace = pace;
        });
        // It cannot fail: the count is far from its end.
        let _ = self.bell.write(1);
    }

    /// Ends the stream and returns it as far as it has come. Packets in the ring are still received.
    pub(crate) fn unload(&self) -> Option<Stream> {
        self.with(|state| {
            state.left = 0;
            state.stream.take()
        })
    }

    /// Whether what leaves is read.
    pub(crate) fn check(&self, checks: bool) {
        self.with(|state| state.checks = checks);
    }

    /// Packets that have left by it, and how many of them were broken.
    pub(crate) fn left_by(&self) -> (u64, u64) {
        self.with(|state| (state.left_by, state.broken))
    }

    /// Packets that it has given to the worker, and in how many batches.
    pub(crate) fn given(&self) -> (u64, u64) {
        self.with(|state| (state.given, state.batches))
    }
}

impl State {
    /// Gives the device buffers as long as it has room and packets are to come.
    #[inline]
    fn fill(&mut self, pool: &mut Pool, room: usize) {
        let Some(stream) = &mut self.stream else { return };
        let held = self.ring.len();
        while self.ring.len() < room && self.left > 0 {
            let Some(packet) = pool.take() else { break };
            self.ring.push_back(packet);
            self.left -= 1;
        }
        if held == 0 && self.pace.ring > 0 {
            shuffle(self.ring.make_contiguous());
        }
        for packet in self.ring.range_mut(held..) {
            let len = stream.write_next(packet.room_mut());
            packet.set_len(len);
            packet.offload = stream.offload();
        }
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
            let limit = limit.min(state.pace.vector);
            state.fill(pool, state.pace.ring.max(limit));
            let count = limit.min(state.ring.len());
            into.extend(state.ring.drain(..count));
            state.given += count as u64;
            state.batches += u64::from(count > 0);
            let drained = state.left == 0 && state.ring.is_empty();
            Ok(Received { drained, ..Received::default() })
        })
    }

    fn transmit(&mut self, pool: &mut Pool, packets: &mut Vec<Packet>) -> io::Result<Transmitted> {
        let link = self.link.as_ref();
        self.with(|state| {
            let sent = packets.len();
            state.left_by += sent as u64;
            for packet in packets.drain(..) {
                if state.checks && !is_whole(packet.bytes(), link) {
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

/// Puts buffers that lie in memory one behind the other in no order, as those of a pool are that several ports have used for a
/// while. They stay so: what is used in turn comes back in turn.
#[inline(never)]
fn shuffle(packets: &mut [Packet]) {
    let mut draw = Draw::default();
    for at in (1..packets.len()).rev() {
        packets.swap(at, draw.below(at as u32 + 1) as usize);
    }
}

/// Whether a receiver takes a packet, or a frame if it has a link.
fn is_whole(bytes: &[u8], link: Option<&Link>) -> bool {
    let Some(link) = link else { return parse(bytes).is_ok() };
    let Some((header, packet)) = bytes.split_first_chunk::<ETHERNET_LEN>() else { return false };
    link.sort(header, packet) == Frame::Packet(packet.len()) && parse(packet).is_ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::peers::Peers;
    use super::super::stream::Way;
    use super::*;

    /// How many buffers a port uses for 10,000 packets, and how many packets after it was written a buffer is received.
    fn rotation(pace: Pace) -> usize {
        let mut port = Station::new(None).unwrap();
        let stream = Stream::udp(&Peers::near(), Way::Forth, 0, 10);
        port.load(stream, 10_000, pace);
        let (mut pool, mut packets) = (Pool::new(4096), Vec::new());
        let mut buffers = BTreeSet::new();
        while !port.receive(&mut pool, &mut packets, 32).unwrap().drained {
            buffers.extend(packets.iter().map(|packet| packet.bytes().as_ptr() as usize));
            let _ = port.transmit(&mut pool, &mut packets).unwrap();
        }
        let _ = port.transmit(&mut pool, &mut packets).unwrap();
        assert_eq!(
            (port.left_by(), pool.available()),
            ((10_000, 0), 4096),
            "all came, none is left"
        );
        buffers.len()
    }

    #[test]
    fn a_device_uses_all_buffers_of_its_ring_in_turn() {
        assert_eq!(rotation(Pace::DEVICE), 2048);
        assert_eq!(rotation(Pace { ring: 0, ..Pace::DEVICE }), 32);
    }

    #[test]
    fn a_batch_is_what_a_port_gave_at_once() {
        let mut port = Station::new(None).unwrap();
        let stream = Stream::udp(&Peers::near(), Way::Forth, 0, 10);
        port.load(stream, 100, Pace { vector: 8, ..Pace::DEVICE });
        let (mut pool, mut packets) = (Pool::new(4096), Vec::new());
        while !port.receive(&mut pool, &mut packets, 32).unwrap().drained {}
        assert_eq!((packets.len(), port.given()), (100, (100, 13)));
    }
}
