//! A port whose far side is this program: for tests, benches and simulation.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam::queue::ArrayQueue;

use super::{PacketIo, Received, Transmitted};
use crate::packet::{Capabilities, MAX_PACKET, Offload, Packet, Pool};

/// A packet that is outside of any pool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Frame {
    /// The packet's bytes, starting at the IP header.
    pub bytes: Vec<u8>,
    /// The offload metadata of the packet.
    pub offload: Offload,
}

#[derive(Debug)]
struct Wire {
    towards_port: ArrayQueue<Frame>,
    from_port: ArrayQueue<Frame>,
    /// Used frames, so that a steady stream allocates nothing.
    spare: ArrayQueue<Frame>,
    unplugged: AtomicBool,
}

/// The number of bytes for which a new frame has room. Most packets fit, so reused frames rarely grow.
const FRAME_CAPACITY: usize = 4096;

impl Wire {
    fn frame(&self, bytes: &[u8], offload: Offload) -> Frame {
        let mut frame = self.spare.pop().unwrap_or_else(|| Frame {
            bytes: Vec::with_capacity(FRAME_CAPACITY),
            ..Frame::default()
        });
        frame.bytes.clear();
        frame.bytes.extend_from_slice(bytes);
        frame.offload = offload;
        frame
    }

    /// Keeps the frame for reuse, or frees it if there are enough.
    fn recycle(&self, frame: Frame) {
        drop(self.spare.push(frame));
    }

    fn check(&self) -> io::Result<()> {
        if self.unplugged.load(Ordering::Acquire) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        Ok(())
    }
}

/// The port's end, for a worker.
#[derive(Debug)]
pub struct MemoryPort {
    wire: Arc<Wire>,
    capabilities: Capabilities,
}

/// The other end: injects and collects packets. All clones are the same end.
#[derive(Debug, Clone)]
pub struct FarSide {
    wire: Arc<Wire>,
}

/// Makes a port with these `capabilities`, and its far side. Each direction holds at most `capacity` packets (at least
/// one).
pub fn pair(capabilities: Capabilities, capacity: usize) -> (MemoryPort, FarSide) {
    let capacity = capacity.max(1);
    let wire = Arc::new(Wire {
        towards_port: ArrayQueue::new(capacity),
        from_port: ArrayQueue::new(capacity),
        spare: ArrayQueue::new(2 * capacity),
        unplugged: AtomicBool::new(false),
    });
    (MemoryPort { wire: Arc::clone(&wire), capabilities }, FarSide { wire })
}

impl FarSide {
    /// Sends a packet to the port. Returns false if the queue is full; then the packet is lost.
    pub fn inject(&self, bytes: &[u8], offload: Offload) -> bool {
        self.wire.towards_port.push(self.wire.frame(bytes, offload)).is_ok()
    }

    /// The next packet that the port has transmitted.
    pub fn collect(&self) -> Option<Frame> {
        self.wire.from_port.pop()
    }

    /// Returns the memory of a collected frame, for streams that must not allocate.
    pub fn recycle(&self, frame: Frame) {
        self.wire.recycle(frame);
    }

    /// Makes every later call of the port fail, as if its interface had been deleted.
    pub fn unplug(&self) {
        self.wire.unplugged.store(true, Ordering::Release);
    }
}

impl PacketIo for MemoryPort {
    fn receive(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
        limit: usize,
    ) -> io::Result<Received> {
        self.wire.check()?;
        let mut received = Received::default();
        for _ in 0..limit {
            let Some(mut packet) = pool.take() else { return Ok(received) };
            let Some(frame) = self.wire.towards_port.pop() else {
                pool.put(packet);
                received.drained = true;
                return Ok(received);
            };
            if frame.bytes.len() > MAX_PACKET {
                pool.put(packet);
                received.malformed += 1;
            } else {
                packet.room_mut()[..frame.bytes.len()].copy_from_slice(&frame.bytes);
                packet.set_len(frame.bytes.len());
                packet.offload = frame.offload;
                into.push(packet);
            }
            self.wire.recycle(frame);
        }
        Ok(received)
    }

    fn transmit(&mut self, pool: &mut Pool, packets: &mut Vec<Packet>) -> io::Result<Transmitted> {
        let state = self.wire.check();
        let mut transmitted = Transmitted::default();
        for packet in packets.drain(..) {
            let taken = state.is_ok()
                && self.capabilities.take(packet.offload)
                && self
                    .wire
                    .from_port
                    .push(self.wire.frame(packet.bytes(), packet.offload))
                    .is_ok();
            transmitted.count(&packet, taken);
            pool.put(packet);
        }
        state.map(|()| transmitted)
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn descriptor(&self) -> Option<RawFd> {
        None
    }

    fn unwrapped(self: Box<Self>) -> Box<dyn PacketIo> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Checksum, SegmentKind, Segmentation};

    const PARTIAL: Offload =
        Offload { checksum: Checksum::Partial { start: 20, offset: 6 }, segmentation: None };

    #[test]
    fn packets_cross_both_ways_in_order_with_their_offload() {
        let (mut port, far) = pair(Capabilities::ALL, 8);
        let mut pool = Pool::new(8);
        for n in 0..3 {
            assert!(far.inject(&[n; 40], PARTIAL));
        }
        let mut packets = Vec::new();
        let first = port.receive(&mut pool, &mut packets, 2).unwrap();
        assert!(!first.drained, "the limit was met first");
        let rest = port.receive(&mut pool, &mut packets, 2).unwrap();
        assert!(rest.drained);
        assert_eq!(packets.iter().map(|p| p.bytes()[0]).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(packets.iter().all(|p| p.offload == PARTIAL));
        let done = port.transmit(&mut pool, &mut packets).unwrap();
        assert_eq!(done, Transmitted { sent: 3, refused: 0 });
        assert_eq!(pool.available(), 8);
        for n in 0..3 {
            assert_eq!(far.collect(), Some(Frame { bytes: vec![n; 40], offload: PARTIAL }));
        }
        assert_eq!(far.collect(), None);
    }

    #[test]
    fn queues_are_bounded_and_an_exhausted_pool_is_not_drained() {
        let (mut port, far) = pair(Capabilities::ALL, 2);
        assert!(far.inject(&[1], Offload::default()) && far.inject(&[2], Offload::default()));
        assert!(!far.inject(&[3], Offload::default()));
        let mut pool = Pool::new(1);
        let mut packets = Vec::new();
        let received = port.receive(&mut pool, &mut packets, 8).unwrap();
        assert_eq!((packets.len(), received.drained), (1, false));
        packets.drain(..).for_each(|packet| pool.put(packet));
        let received = port.receive(&mut pool, &mut packets, 8).unwrap();
        assert_eq!((packets[0].bytes(), received.drained), (&[2][..], false));
    }

    #[test]
    fn a_packet_that_the_capabilities_do_not_allow_is_refused() {
        let (mut port, far) = pair(Capabilities::default(), 8);
        let mut pool = Pool::new(4);
        let segmentation = Segmentation { kind: SegmentKind::Udp, size: 8, ecn: false };
        let mut packets = Vec::new();
        for offload in [
            PARTIAL,
            Offload { segmentation: Some(segmentation), ..Offload::default() },
            Offload { checksum: Checksum::Verified, segmentation: None },
        ] {
            let mut packet = pool.take_filled(&[0; 60]).unwrap();
            packet.offload = offload;
            packets.push(packet);
        }
        assert_eq!(
            port.transmit(&mut pool, &mut packets).unwrap(),
            Transmitted { sent: 1, refused: 2 }
        );
        assert_eq!(far.collect().unwrap().offload.checksum, Checksum::Verified);
    }

    #[test]
    fn an_unplugged_port_fails_and_still_returns_the_buffers() {
        let (mut port, far) = pair(Capabilities::ALL, 8);
        let mut pool = Pool::new(1);
        let mut packets = vec![pool.take_filled(&[0; 20]).unwrap()];
        far.unplug();
        assert!(port.transmit(&mut pool, &mut packets).is_err());
        assert!(port.receive(&mut pool, &mut packets, 1).is_err());
        assert_eq!((packets.len(), pool.available()), (0, 1));
    }
}
