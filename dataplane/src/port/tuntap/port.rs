//! A queue as a port.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};

use super::framing::Framing;
use crate::packet::{Capabilities, Packet, Pool};
use crate::port::virtio::HEADER_LEN;
use crate::port::{Disposition, Intake, PacketIo, Received, Transmitted};
use crate::sys::uring::{WRITES, Writes};

/// With at least this many packets at once, a ring is worth its cost.
const MANY: usize = 4;

/// One queue of a device whose packets have `HEAD` bytes in front of them.
#[derive(Debug)]
pub(super) struct Port<const HEAD: usize, F> {
    queue: File,
    capabilities: Capabilities,
    framing: F,
    many: BatchWriter<HEAD>,
}

/// How several packets are written at once.
#[derive(Debug)]
enum BatchWriter<const HEAD: usize> {
    /// No call has had enough packets for a ring so far.
    Untried,
    /// A ring writes them.
    Ring(Box<Writes<HEAD>>),
    /// They are written one by one, because the kernel provides no ring.
    OneByOne,
}

impl<const HEAD: usize> BatchWriter<HEAD> {
    fn ring(&mut self) -> Option<&mut Writes<HEAD>> {
        if let Self::Untried = self {
            *self = Writes::new().map_or(Self::OneByOne, |ring| Self::Ring(Box::new(ring)));
        }
        match self {
            Self::Ring(ring) => Some(ring),
            Self::Untried | Self::OneByOne => None,
        }
    }
}

impl<const HEAD: usize, F: Framing<HEAD>> Port<HEAD, F> {
    pub(super) fn new(queue: File, capabilities: Capabilities, framing: F) -> Self {
        Self { queue, capabilities, framing, many: BatchWriter::Untried }
    }

    /// Writes the packets that the capabilities allow, and counts them. Returns an error if the device is gone.
    fn write(&mut self, packets: &[Packet], transmitted: &mut Transmitted) -> io::Result<()> {
        if packets.len() >= MANY
            && let Some(ring) = self.many.ring()
        {
            let head = |packet: &Packet| self.framing.head(packet);
            if let Ok(results) = ring.write(self.queue.as_fd(), packets, head) {
                let detached = |result: &i32| *result == -libc::EBADFD;
                if results.iter().any(detached) {
                    return Err(io::Error::from_raw_os_error(libc::EBADFD));
                }
                for (packet, result) in packets.iter().zip(results) {
                    transmitted.count(packet, *result >= 0);
                }
                return Ok(());
            }
            self.many = BatchWriter::OneByOne;
        }
        for packet in packets {
            match self.write_one(packet) {
                // The queue is detached or the device is deleted. Any other error concerns only this packet (EIO: the
                // device is down).
                Err(error) if error.raw_os_error() == Some(libc::EBADFD) => return Err(error),
                written => transmitted.count(packet, written.is_ok()),
            }
        }
        Ok(())
    }

    fn write_one(&self, packet: &Packet) -> io::Result<usize> {
        let head = self.framing.head(packet);
        retry(|| (&self.queue).write_vectored(&[IoSlice::new(&head), IoSlice::new(packet.bytes())]))
    }
}

impl<const HEAD: usize, F: Framing<HEAD>> PacketIo for Port<HEAD, F> {
    fn receive(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
        limit: usize,
    ) -> io::Result<Received> {
        let mut received = Received::default();
        let mut intake = Intake::default();
        for _ in 0..limit {
            if intake.is_enough() {
                break;
            }
            let Some(mut packet) = pool.take() else { return Ok(received) };
            let answer = |frame: &[u8]| answer(&self.queue, frame);
            match read(&self.queue, &mut packet, &self.framing, answer) {
                Ok(disposition) => {
                    intake.add(&packet);
                    disposition.account(packet, &mut received, pool, into);
                }
                Err(e) => {
                    pool.put(packet);
                    if e.kind() != io::ErrorKind::WouldBlock {
                        return Err(e);
                    }
                    received.drained = true;
                    return Ok(received);
                }
            }
        }
        Ok(received)
    }

    fn transmit(&mut self, pool: &mut Pool, packets: &mut Vec<Packet>) -> io::Result<Transmitted> {
        let capabilities = self.capabilities;
        let mut transmitted = Transmitted::default();
        for packet in packets.extract_if(.., |packet| !capabilities.take(packet.offload)) {
            transmitted.count(&packet, false);
            pool.put(packet);
        }
        let outcome =
            packets.chunks(WRITES).try_for_each(|some| self.write(some, &mut transmitted));
        packets.drain(..).for_each(|packet| pool.put(packet));
        outcome.map(|()| transmitted)
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.queue.as_raw_fd())
    }

    fn unwrapped(self: Box<Self>) -> Box<dyn PacketIo> {
        self
    }
}

/// Reads one packet. A packet whose header is impossible is not accepted. This also happens when a process has changed
/// the header's length for all queues ([`Settings::restore`](super::Settings::restore)).
#[inline]
fn read<const HEAD: usize>(
    mut queue: impl Read,
    packet: &mut Packet,
    framing: &impl Framing<HEAD>,
    answer: impl FnOnce(&[u8]),
) -> io::Result<Disposition> {
    // If the device's header is longer than ours, its further bytes lie where the packet, or the frame, should begin.
    // Newer kernels fill them with zeros; kernels before 6.15 leave the earlier content of the buffers. In either case,
    // the bytes there begin neither an IP packet nor our hardware address.
    let mut head = [0; HEAD];
    packet.room_mut()[0] = 0;
    let mut room = [IoSliceMut::new(&mut head), IoSliceMut::new(packet.room_mut())];
    let len = match retry(|| queue.read_vectored(&mut room)) {
        Ok(len) => len,
        // The kernel had no room for its header or no header for its packet, so it has dropped the packet.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => return Ok(Disposition::Malformed),
        Err(e) => return Err(e),
    };
    packet.set_len(len.saturating_sub(HEAD));
    Ok(framing.accept(&head, packet, answer))
}

/// Writes a frame that answers a request. If it is lost, its sender asks again.
fn answer(mut queue: impl Write, frame: &[u8]) {
    let none = [0; HEADER_LEN];
    drop(queue.write_vectored(&[IoSlice::new(&none), IoSlice::new(frame)]));
}

/// Repeats a call that a signal interrupted.
fn retry(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Pool;
    use crate::port::link::{ETHERNET_LEN, Link, Mac};
    use crate::port::tuntap::framing::{Ethernet, Ip};

    const OWN: Mac = [0xee; 6];

    /// A queue of a kernel before 6.15 with a header of this many bytes. It does not write the bytes beyond our header.
    struct OldKernel<'a> {
        header_len: usize,
        /// The packet or the frame.
        bytes: &'a [u8],
    }

    impl Read for OldKernel<'_> {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            unreachable!("packets are read in one piece")
        }

        fn read_vectored(&mut self, room: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
            let mut places = room.iter_mut().flat_map(|part| part.iter_mut());
            places.by_ref().take(HEADER_LEN).for_each(|byte| *byte = 0);
            let mut places = places.skip(self.header_len - HEADER_LEN).peekable();
            if places.peek().is_none() {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            }
            places.zip(self.bytes).for_each(|(to, from)| *to = *from);
            Ok(self.header_len + self.bytes.len())
        }
    }

    fn check_headers<const HEAD: usize>(framing: &impl Framing<HEAD>, bytes: &[u8]) {
        let mut pool = Pool::new(1);
        let packet = &bytes[HEAD - HEADER_LEN..];
        let shifted = (11..40).chain([70, 60_000, 70_000]);
        for header_len in [HEADER_LEN].into_iter().chain(shifted).chain([HEADER_LEN]) {
            // An earlier packet, which would be accepted if it were read again.
            let mut buffer = pool.take_filled(&vec![0x45; 65_535]).unwrap();
            let kernel = OldKernel { header_len, bytes };
            let answer = |_: &[u8]| panic!("a header of {header_len} bytes: nobody asked");
            let read = read(kernel, &mut buffer, framing, answer).unwrap();
            let is_ours = read == Disposition::Ours;
            assert_eq!(is_ours, header_len == HEADER_LEN, "a header of {header_len} bytes");
            assert!(!is_ours || buffer.bytes() == packet);
            pool.put(buffer);
        }
    }

    #[test]
    fn a_longer_header_brings_no_byte_of_the_buffers_former_user() {
        // The frame contains our hardware address twice, so that it stands first or at a later place.
        let packet = [&[0x45, 0, 0, 100][..], &[7; 96]].concat();
        check_headers(&Ip, &packet);
        let link = Link { own: OWN, peer: [2; 6], addresses: Vec::new() };
        let header = [&OWN[..], &OWN, &[8, 0]].concat();
        assert_eq!(header.len(), ETHERNET_LEN);
        check_headers(&Ethernet::new(link), &[header, packet].concat());
    }
}
