//! A port in memory: it generates the packets that it receives, and counts those that it transmits.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use manx_dataplane::packet::Capabilities;
use manx_dataplane::packet::{Packet, Pool};
use manx_dataplane::parse::parse;
use manx_dataplane::port::link::{ETHERNET_LEN, Frame, Link};
use manx_dataplane::port::{PacketIo, Received, Transmitted};
use nix::sys::eventfd::EventFd;

use super::stream::{Random, Stream};

/// How packets arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    /// The largest number of packets that one call of `receive` returns. The worker takes no more than its batch.
    pub(crate) vector: usize,
    /// The number of packets that wait in the device. A packet is written when its buffer enters the ring, so this many
    /// other packets are received before it. The same buffers are used in turn, in an order that is not that of their
    /// addresses.
    pub(crate) ring: usize,
}

impl Pace {
    /// The pace of a device: as many packets as the worker takes at once, and a ring as large as that of network cards.
    pub(crate) const DEVICE: Self = Self { vector: usize::MAX, ring: 2048 };
}

/// The state of a port: the packets that it will still generate, and its counts.
struct State {
    stream: Option<Stream>,
    /// The number of packets that are not yet in the ring.
    left: u64,
    pace: Pace,
    ring: VecDeque<Packet>,
    /// The number of packets that the worker has received, and the number of batches.
    given: u64,
    batches: u64,
    /// Whether every transmitted packet is parsed, to count the broken ones, which no receiver would accept.
    checks: bool,
    transmitted: u64,
    broken: u64,
}

/// A port in memory. All clones of a value are the same port.
#[derive(Clone)]
pub(crate) struct Station {
    state: Arc<Mutex<State>>,
    /// Signals that there is something to receive. So, as with other ports, a port without traffic costs the worker
    /// nothing.
    bell: Arc<EventFd>,
    /// The other end of the link, if the port carries Ethernet frames instead of packets.
    link: Option<Link>,
}

impl Station {
    /// Creates a port with nothing to receive. `link` is the other end of the link, if the port carries Ethernet
    /// frames.
    ///
    /// # Errors
    /// Returns an error if there is no descriptor left.
    pub(crate) fn new(link: Option<Link>) -> io::Result<Self> {
        let state = State {
            stream: None,
            left: 0,
            pace: Pace::DEVICE,
            ring: VecDeque::new(),
            given: 0,
            batches: 0,
            checks: false,
            transmitted: 0,
            broken: 0,
        };
        Ok(Self { state: Arc::new(Mutex::new(state)), bell: Arc::new(EventFd::new()?), link })
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the next packets to receive: `count` packets of `stream`.
    pub(crate) fn load(&self, stream: Stream, count: u64, pace: Pace) {
        let header = self.link.as_ref().and_then(|link| link.header(stream.template()));
        let stream = stream.with_link_header(header.as_ref().map_or(&[], |header| header));
        self.with(|state| {
            state.stream = Some(stream);
            state.left = count;
            state.pace = pace;
        });
        // It cannot fail, because the counter is far from its limit.
        let _ = self.bell.write(1);
    }

    /// Stops the stream and returns it at its current position. Packets that are already in the ring are still
    /// received.
    pub(crate) fn unload(&self) -> Option<Stream> {
        self.with(|state| {
            state.left = 0;
            state.stream.take()
        })
    }

    /// Sets whether packets that leave are parsed.
    pub(crate) fn check(&self, checks: bool) {
        self.with(|state| state.checks = checks);
    }

    /// The number of transmitted packets, and the number of broken packets among them.
    pub(crate) fn transmitted(&self) -> (u64, u64) {
        self.with(|state| (state.transmitted, state.broken))
    }

    /// The number of packets that the worker has received, and the number of batches.
    pub(crate) fn given(&self) -> (u64, u64) {
        self.with(|state| (state.given, state.batches))
    }
}

impl State {
    /// Fills the ring up to `room` with the packets still to come.
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
            state.transmitted += sent as u64;
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

    fn unwrapped(self: Box<Self>) -> Box<dyn PacketIo> {
        self
    }
}

/// Shuffles buffers that are adjacent in memory. In a real pool, which several ports have used for a while, buffers are
/// in no order either. The buffers stay shuffled, because they return to the pool in the order of their use.
#[inline(never)]
fn shuffle(packets: &mut [Packet]) {
    let mut random = Random::default();
    for at in (1..packets.len()).rev() {
        packets.swap(at, random.below(at as u32 + 1) as usize);
    }
}

/// Whether a receiver accepts these bytes as a packet or, if there is a link, as a frame of this link.
fn is_whole(bytes: &[u8], link: Option<&Link>) -> bool {
    let Some(link) = link else { return parse(bytes).is_ok() };
    let Some((header, packet)) = bytes.split_first_chunk::<ETHERNET_LEN>() else { return false };
    link.sort(header, packet) == Frame::Packet(packet.len()) && parse(packet).is_ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::peers::Peers;
    use super::super::stream::Direction;
    use super::*;

    /// The number of buffers that a port uses for 10,000 packets.
    fn rotation(pace: Pace) -> usize {
        let mut port = Station::new(None).unwrap();
        let stream = Stream::udp(&Peers::near(), Direction::Request, 0, 10);
        port.load(stream, 10_000, pace);
        let (mut pool, mut packets) = (Pool::new(4096), Vec::new());
        let mut buffers = BTreeSet::new();
        while !port.receive(&mut pool, &mut packets, 32).unwrap().drained {
            buffers.extend(packets.iter().map(|packet| packet.bytes().as_ptr() as usize));
            let _ = port.transmit(&mut pool, &mut packets).unwrap();
        }
        let _ = port.transmit(&mut pool, &mut packets).unwrap();
        assert_eq!(
            (port.transmitted(), pool.available()),
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
        let stream = Stream::udp(&Peers::near(), Direction::Request, 0, 10);
        port.load(stream, 100, Pace { vector: 8, ..Pace::DEVICE });
        let (mut pool, mut packets) = (Pool::new(4096), Vec::new());
        while !port.receive(&mut pool, &mut packets, 32).unwrap().drained {}
        assert_eq!((packets.len(), port.given()), (100, (100, 13)));
    }
}
