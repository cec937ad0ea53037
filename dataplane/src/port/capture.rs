//! A wrapper around a port that copies every packet, in both directions, to a reader.
//!
//! The worker never waits for the reader. Copies wait in a channel that is bounded in packets and in bytes
//! ([`CopyBudget`]); a copy that does not fit is counted as lost. A copy shows the packet as a wire would carry it, as
//! far as a single packet can. A super-packet is copied as one long packet, and a partial checksum is completed in the
//! copy.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};

use super::{PacketIo, Received, Transmitted};
use crate::checksum;
use crate::packet::{Capabilities, Checksum, Packet, Pool};

/// The offset of the checksum in the UDP header.
const UDP_CHECKSUM: u16 = 6;

/// The direction of a packet, seen from the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the port.
    Received,
    /// To the port, whether or not the device then accepted it.
    Transmitted,
}

/// A copy of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// The time since 1970, by the capture's clock. All packets of a batch have the same time.
    pub at: Duration,
    /// Its direction.
    pub direction: Direction,
    /// Its length before the copy was cut.
    pub original_len: u32,
    /// Its first bytes, starting at the IP header.
    pub bytes: Vec<u8>,
    /// The number of packets that the capture had lost before this one was copied.
    pub lost: u64,
}

/// The largest number of bytes of copies that may wait for readers, of one capture or of all captures together.
#[derive(Debug)]
pub struct CopyBudget {
    free: AtomicUsize,
    whole: Option<Arc<Self>>,
}

impl CopyBudget {
    /// Creates a budget of this many bytes.
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { free: AtomicUsize::new(bytes), whole: None })
    }

    /// Creates a part of this budget: bytes taken from the part are taken from the whole, too. The parts together may
    /// exceed the whole.
    pub fn part(self: &Arc<Self>, bytes: usize) -> Arc<Self> {
        Arc::new(Self { free: AtomicUsize::new(bytes), whole: Some(Arc::clone(self)) })
    }

    /// Takes this many bytes. Returns `false` and takes nothing if there are fewer.
    fn take(&self, bytes: usize) -> bool {
        let less = |free: usize| free.checked_sub(bytes);
        if self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err() {
            return false;
        }
        let taken = self.whole.as_ref().is_none_or(|whole| whole.take(bytes));
        if !taken {
            self.free.fetch_add(bytes, Ordering::Relaxed);
        }
        taken
    }

    fn give_back(&self, bytes: usize) {
        self.free.fetch_add(bytes, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.give_back(bytes);
        }
    }
}

/// A copy that waits for the reader.
#[derive(Debug)]
struct Waiting {
    copy: Captured,
    #[expect(dead_code, reason = "its bytes are given back when it is dropped")]
    share: BudgetShare,
}

/// Bytes taken from a budget. They are returned when the copy is read, or when the reader and all copiers are gone.
#[derive(Debug)]
struct BudgetShare {
    room: Arc<CopyBudget>,
    bytes: usize,
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.room.give_back(self.bytes);
    }
}

/// The reader's end. Copying ends when it is dropped.
#[derive(Debug)]
pub struct Tap {
    copies: Receiver<Waiting>,
    lost: Arc<AtomicU64>,
}

impl Tap {
    /// Returns the next copy. Copies of one copier are in order. Returns `Disconnected` when the capture is gone.
    pub fn next(&self, timeout: Duration) -> Result<Captured, RecvTimeoutError> {
        self.copies.recv_timeout(timeout).map(|waiting| waiting.copy)
    }

    /// The copies that wait for the reader now.
    pub fn waiting(&self) -> impl Iterator<Item = Captured> {
        self.copies.try_iter().map(|waiting| waiting.copy)
    }

    /// The number of packets that did not fit.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// A port whose packets are copied. A port may have several wrappers, each with its own reader; [`PacketIo::unwrapped`]
/// removes those without a reader.
pub struct Capture<C> {
    port: Box<dyn PacketIo>,
    copier: Copier<C>,
}

/// The copying end, which wraps a port. Its clones wrap other ports for the same reader.
#[derive(Clone)]
pub struct Copier<C> {
    copies: Sender<Waiting>,
    /// The counter of the [`Tap`]. If the counter is gone, there is no reader.
    lost: Weak<AtomicU64>,
    room: Arc<CopyBudget>,
    snaplen: usize,
    clock: C,
}

/// Creates both ends of a capture. Copies are cut at `snaplen` bytes. At most `capacity` copies wait for the reader,
/// with at most the bytes of `room`. `clock` returns the time since 1970.
pub fn capture<C: FnMut() -> Duration + Send>(
    snaplen: usize,
    capacity: usize,
    room: Arc<CopyBudget>,
    clock: C,
) -> (Copier<C>, Tap) {
    let (sender, copies) = bounded(capacity);
    let lost = Arc::new(AtomicU64::new(0));
    let copier = Copier { copies: sender, lost: Arc::downgrade(&lost), room, snaplen, clock };
    (copier, Tap { copies, lost })
}

impl<C> Copier<C> {
    /// Wraps a port.
    pub fn wrap(self, port: Box<dyn PacketIo>) -> Capture<C> {
        Capture { port, copier: self }
    }

    fn is_read(&self) -> bool {
        self.lost.strong_count() > 0
    }
}

impl<C: FnMut() -> Duration> Copier<C> {
    fn copy(&mut self, packets: &[Packet], direction: Direction) {
        if packets.is_empty() {
            return;
        }
        let Some(lost) = self.lost.upgrade() else { return };
        let at = (self.clock)();
        for (done, packet) in packets.iter().enumerate() {
            // The rest of the batch is lost, too: a worker spends no time on a slow reader.
            if !self.copy_one(packet, at, direction, lost.load(Ordering::Relaxed)) {
                lost.fetch_add((packets.len() - done) as u64, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Copies a packet. Returns `false` if there is no room for the copy.
    fn copy_one(&self, packet: &Packet, at: Duration, direction: Direction, lost: u64) -> bool {
        let bytes = packet.len().min(self.snaplen);
        if self.copies.is_full() || !self.room.take(bytes) {
            return false;
        }
        let share = BudgetShare { room: Arc::clone(&self.room), bytes };
        let bytes = complete_copy(packet, self.snaplen);
        let copy = Captured { at, direction, original_len: packet.len() as u32, bytes, lost };
        self.copies.try_send(Waiting { copy, share }).is_ok()
    }
}

/// The packet's first `snaplen` bytes, with a complete checksum.
fn complete_copy(packet: &Packet, snaplen: usize) -> Vec<u8> {
    let bytes = packet.bytes();
    let mut copy = bytes[..bytes.len().min(snaplen)].to_vec();
    if let Checksum::Partial { start, offset } = packet.offload.checksum {
        let at = start as usize + offset as usize;
        if let (Some(covered), Some(field)) =
            (bytes.get(start as usize..), copy.get_mut(at..at + 2))
        {
            // The field holds the sum of the pseudo-header. A checksum of 0 would mean that a UDP datagram has none
            // (RFC 768).
            let checksum = match checksum::finish(checksum::sum(covered)) {
                0 if offset == UDP_CHECKSUM => 0xffff,
                checksum => checksum,
            };
            field.copy_from_slice(&checksum.to_be_bytes());
        }
    }
    copy
}

impl<C: FnMut() -> Duration + Send + 'static> PacketIo for Capture<C> {
    fn receive(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
        limit: usize,
    ) -> io::Result<Received> {
        let before = into.len();
        let received = self.port.receive(pool, into, limit)?;
        self.copier.copy(&into[before..], Direction::Received);
        Ok(received)
    }

    fn transmit(&mut self, pool: &mut Pool, packets: &mut Vec<Packet>) -> io::Result<Transmitted> {
        self.copier.copy(packets, Direction::Transmitted);
        self.port.transmit(pool, packets)
    }

    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.port.descriptor()
    }

    fn is_mapped(&self) -> bool {
        self.port.is_mapped()
    }

    fn unwrapped(self: Box<Self>) -> Box<dyn PacketIo> {
        let Self { port, copier } = *self;
        let port = port.unwrapped();
        if copier.is_read() { Box::new(copier.wrap(port)) } else { port }
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
    use proptest::prelude::*;

    use super::*;
    use crate::packet::Offload;
    use crate::port::memory::{self, FarSide};

    fn captured_port(
        snaplen: usize,
        capacity: usize,
        room: Arc<CopyBudget>,
    ) -> (Capture<impl FnMut() -> Duration + Send + 'static>, Tap, FarSide) {
        let (port, far) = memory::pair(Capabilities::ALL, 64);
        let mut batches = 0;
        let clock = move || {
            batches += 1;
            Duration::from_secs(batches)
        };
        let (copier, tap) = capture(snaplen, capacity, room, clock);
        (copier.wrap(Box::new(port)), tap, far)
    }

    /// A packet with a partial checksum, as a kernel delivers it, then the completed packet.
    fn unfinished(udp: bool, v6: bool, payload: &[u8]) -> (Vec<u8>, Vec<u8>, Offload) {
        let mut finished = Vec::new();
        let (start, offset, protocol) =
            (if v6 { 40 } else { 20 }, if udp { 6 } else { 16 }, if udp { 17u8 } else { 6 });
        match (udp, v6) {
            (true, false) => PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
                .udp(1, 2)
                .write(&mut finished, payload),
            (true, true) => {
                PacketBuilder::ipv6([1; 16], [2; 16], 64).udp(1, 2).write(&mut finished, payload)
            }
            (false, false) => PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
                .tcp(1, 2, 3, 4)
                .write(&mut finished, payload),
            (false, true) => PacketBuilder::ipv6([1; 16], [2; 16], 64)
                .tcp(1, 2, 3, 4)
                .write(&mut finished, payload),
        }
        .unwrap();
        let addresses = if v6 { &finished[8..40] } else { &finished[12..20] };
        let len = ((finished.len() - start) as u32).to_be_bytes();
        let pseudo = [addresses, &len, &[0, 0, 0, protocol]].map(checksum::sum).iter().sum();
        let pseudo = checksum::fold(pseudo);
        let mut bytes = finished.clone();
        bytes[start + offset..start + offset + 2].copy_from_slice(&pseudo.to_be_bytes());
        let checksum = Checksum::Partial { start: start as u16, offset: offset as u16 };
        (bytes, finished, Offload { checksum, segmentation: None })
    }

    proptest! {
        #[test]
        fn a_partial_checksum_is_finished_in_the_copy_alone(
            udp: bool, v6: bool, payload in proptest::collection::vec(any::<u8>(), 0..3000),
        ) {
            let (bytes, finished, offload) = unfinished(udp, v6, &payload);
            let (mut port, tap, far) = captured_port(65_535, 8, CopyBudget::new(1 << 20));
            let mut pool = Pool::new(4);
            let mut packets = Vec::new();
            prop_assert!(far.inject(&bytes, offload));
            let _ = port.receive(&mut pool, &mut packets, 4).unwrap();
            prop_assert_eq!(packets[0].bytes(), &bytes[..]);
            let copy = tap.waiting().next().unwrap();
            prop_assert_eq!(&copy.bytes, &finished);
            let sliced = SlicedPacket::from_ip(&copy.bytes).unwrap();
            prop_assert!(matches!(sliced.transport, Some(TransportSlice::Udp(_) | TransportSlice::Tcp(_))));
        }
    }

    #[test]
    fn both_ways_are_copied_with_the_batch_time_and_cut() {
        let (mut port, tap, far) = captured_port(10, 8, CopyBudget::new(1 << 20));
        let mut pool = Pool::new(4);
        let mut packets = Vec::new();
        assert!(
            far.inject(&[1; 40], Offload::default()) && far.inject(&[2; 5], Offload::default())
        );
        let _ = port.receive(&mut pool, &mut packets, 4).unwrap();
        let _ = port.transmit(&mut pool, &mut packets).unwrap();
        assert_eq!(far.collect().unwrap().bytes, [1; 40], "the packet itself is not cut");
        let copies: Vec<_> = tap.waiting().collect();
        let expected = |second, direction, original_len, bytes| Captured {
            at: Duration::from_secs(second),
            direction,
            original_len,
            bytes,
            lost: 0,
        };
        assert_eq!(
            copies,
            [
                expected(1, Direction::Received, 40, vec![1; 10]),
                expected(1, Direction::Received, 5, vec![2; 5]),
                expected(2, Direction::Transmitted, 40, vec![1; 10]),
                expected(2, Direction::Transmitted, 5, vec![2; 5]),
            ]
        );
    }

    #[test]
    fn a_slow_reader_loses_copies_but_no_packets_and_copying_ends_with_the_last_reader() {
        let (mut port, tap, far) = captured_port(100, 3, CopyBudget::new(1 << 20));
        let mut pool = Pool::new(16);
        let mut packets = Vec::new();
        for n in 0..8 {
            assert!(far.inject(&[n; 40], Offload::default()));
        }
        let _ = port.receive(&mut pool, &mut packets, 16).unwrap();
        assert_eq!(packets.len(), 8);
        assert_eq!((tap.copies.len(), tap.lost()), (3, 5));
        assert!(tap.waiting().all(|copy| copy.lost == 0));
        assert!(far.inject(&[8; 40], Offload::default()));
        let _ = port.receive(&mut pool, &mut packets, 16).unwrap();
        let next = tap.waiting().next().unwrap();
        assert_eq!((&next.bytes[..], next.lost), (&[8; 40][..], 5), "it says what came before it");
        drop(tap);
        assert_eq!(port.transmit(&mut pool, &mut packets).unwrap().sent, 9);
        assert!(port.copier.copies.is_empty());
    }

    /// Receives and copies packets of this size, and returns the number of copies that then wait.
    fn flood(
        port: &mut dyn PacketIo,
        far: &FarSide,
        tap: &Tap,
        size: usize,
        count: usize,
    ) -> usize {
        let mut pool = Pool::new(count);
        let mut packets = Vec::new();
        for _ in 0..count {
            assert!(far.inject(&vec![7; size], Offload::default()));
            let _ = port.receive(&mut pool, &mut packets, 1).unwrap();
        }
        assert_eq!(packets.len(), count, "no packet waits for a reader");
        tap.copies.len()
    }

    #[test]
    fn waiting_copies_are_bounded_in_bytes_for_each_capture_and_for_all_together() {
        let all = CopyBudget::new(100_000);
        let (mut one, tap, far) = captured_port(65_535, 64, all.part(60_000));
        assert_eq!(flood(&mut one, &far, &tap, 20_000, 8), 3, "its own room is full");
        assert_eq!(tap.lost(), 5);
        let (mut other, other_tap, other_far) = captured_port(65_535, 64, all.part(60_000));
        assert_eq!(flood(&mut other, &other_far, &other_tap, 20_000, 8), 2, "all captures' is");
        assert_eq!(other_tap.lost(), 6);
        // A copy that is read makes room, and so does a copy that is dropped unread.
        assert_eq!(tap.waiting().next().unwrap().bytes.len(), 20_000);
        assert_eq!(flood(&mut other, &other_far, &other_tap, 20_000, 8), 3);
        drop((other, other_tap));
        assert_eq!(flood(&mut one, &far, &tap, 20_000, 8), 3);
        // Only the copied bytes count.
        let (mut cut, cut_tap, cut_far) = captured_port(100, 64, all.part(1000));
        assert_eq!(flood(&mut cut, &cut_far, &cut_tap, 20_000, 16), 10);
        drop((one, tap, cut, cut_tap));
        assert_eq!(all.free.load(Ordering::Relaxed), 100_000);
    }

    #[test]
    fn captures_of_a_port_that_have_no_reader_are_removed() {
        for gone in 0..8_u8 {
            let (port, far) = memory::pair(Capabilities::ALL, 64);
            let mut port: Box<dyn PacketIo> = Box::new(port);
            let (mut taps, mut tokens) = (Vec::new(), Vec::new());
            for _ in 0..3 {
                let token = Arc::new(Duration::ZERO);
                let clock = Arc::clone(&token);
                let (copier, tap) = capture(100, 8, CopyBudget::new(1 << 20), move || *clock);
                port = Box::new(copier.wrap(port));
                taps.push(Some(tap));
                tokens.push(token);
            }
            for (at, tap) in taps.iter_mut().enumerate() {
                tap.take_if(|_| gone >> at & 1 == 1);
            }
            port = port.unwrapped();
            for (tap, token) in taps.iter().zip(&tokens) {
                assert_eq!(tap.is_some(), Arc::strong_count(token) == 2, "{gone:03b}");
            }
            let mut pool = Pool::new(4);
            let mut packets = Vec::new();
            assert!(far.inject(&[7; 40], Offload::default()));
            let _ = port.receive(&mut pool, &mut packets, 4).unwrap();
            assert_eq!(packets.len(), 1);
            for tap in taps.iter().flatten() {
                assert_eq!(tap.copies.len(), 1, "{gone:03b}");
            }
        }
    }
}
