//! TUN queues: the device lies in the network namespace of the pod (or the node), this program holds its queues.
//!
//! Each packet is one system call with a virtio-net header in front, so that the kernel's TCP and UDP send and
//! take super-packets of up to 64 KB. The kernel spreads flows over the queues; each worker owns one.

mod settings;

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

use super::virtio::{self, HEADER_LEN};
use super::{Intake, PacketIo, Received, Transmitted};
use crate::packet::{Capabilities, Packet, Pool};
use crate::sys;
use crate::sys::uring::{WRITES, Writes};

pub use settings::{Changed, Settings, owner};

const DEVICE: &str = "/dev/net/tun";
/// A layer-3 device without the four bytes of packet information, with virtio headers.
const FLAGS: i32 = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
/// With this many packets at once, a ring is worth its cost.
const MANY: usize = 4;

/// One queue of a TUN device.
#[derive(Debug)]
pub struct Tun {
    queue: File,
    name: String,
    capabilities: Capabilities,
    many: Many,
}

/// How several packets are written at once.
#[derive(Debug)]
enum Many {
    /// There have never been several yet.
    Untried,
    /// By a ring.
    Ring(Box<Writes<HEADER_LEN>>),
    /// One by one, because the kernel gives no ring.
    OneByOne,
}

impl Many {
    fn ring(&mut self) -> Option<&mut Writes<HEADER_LEN>> {
        if let Self::Untried = self {
            *self = Writes::new().map_or(Self::OneByOne, |ring| Self::Ring(Box::new(ring)));
        }
        match self {
            Self::Ring(ring) => Some(ring),
            Self::Untried | Self::OneByOne => None,
        }
    }
}

impl Tun {
    /// Creates the device `name` in the caller's network namespace and opens `queues` queues of it (at least one); `%d`
    /// in the name becomes a free number. The device goes when its last queue is closed.
    ///
    /// No other process can open a queue of a device with one queue. A device with several gives queues only to its
    /// [`owner`] and to processes with `CAP_NET_ADMIN`. It has no owner until this call returns, so a device for an
    /// untrusted place is created elsewhere and moved.
    ///
    /// The caller sets addresses, MTU, the length of the transmission queue (500 packets by default) and `up`.
    ///
    /// Errors: `ResourceBusy` when an interface has this name; `PermissionDenied` when only root may open
    /// `/dev/net/tun` or the caller lacks `CAP_NET_ADMIN` in the namespace, `NotFound` without the device node, `E2BIG`
    /// beyond the kernel's 256 queues.
    pub fn open(name: &str, queues: usize) -> io::Result<Vec<Self>> {
        let mut name = name.to_owned();
        let mut opened = Vec::with_capacity(queues.max(1));
        let several = if queues > 1 { libc::IFF_MULTI_QUEUE } else { 0 };
        for number in 0..queues.max(1) {
            // If the device exists already it may belong to another program, so it must refuse the first queue.
            let exclusive = if number == 0 { libc::IFF_TUN_EXCL } else { 0 };
            let queue = OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
                .open(DEVICE)?;
            name = sys::tun::set_interface(queue.as_fd(), &name, FLAGS | several | exclusive)?;
            opened.push(Self::prepare(queue, name.clone())?);
        }
        Ok(opened)
    }

    /// Makes a port of a queue that another process opened, in any namespace.
    ///
    /// Errors: `InvalidInput` when it is no TUN queue of the shape that [`Tun::open`] makes (layer 3, virtio header, no
    /// packet information); the kernel's error when it is detached.
    pub fn from_fd(queue: OwnedFd) -> io::Result<Self> {
        let interface = sys::tun::interface(queue.as_fd())?;
        let needed = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        if interface.flags & needed != needed {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the queue is not a TUN queue with virtio headers and without packet information",
            ));
        }
        sys::set_nonblocking(queue.as_fd())?;
        Self::prepare(File::from(queue), interface.name)
    }

    /// Sets up the whole device; a second queue sets the same again.
    fn prepare(queue: File, name: String) -> io::Result<Self> {
        let udp_segmentation = settings::set(queue.as_fd())?;
        let capabilities = Capabilities { udp_segmentation, ..Capabilities::ALL };
        Ok(Self { queue, name, capabilities, many: Many::Untried })
    }

    /// Whether the device may have several queues. The kernel's error when the queue is detached.
    pub fn has_several_queues(&self) -> io::Result<bool> {
        let interface = sys::tun::interface(self.queue.as_fd())?;
        Ok(interface.flags & libc::IFF_MULTI_QUEUE != 0)
    }

    /// The network namespace in which the interface lies now. Errors: those of [`sys::tun::namespace`].
    pub fn namespace(&self) -> io::Result<OwnedFd> {
        sys::tun::namespace(self.queue.as_fd())
    }

    /// A handle by which the settings of the device can be restored.
    pub fn settings(&self) -> io::Result<Settings> {
        Settings::of(&self.queue)
    }

    /// The interface's name, in the namespace in which it was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes the packets that the capabilities allow, and counts them. Errors: the device is gone.
    fn write(&mut self, packets: &[Packet], transmitted: &mut Transmitted) -> io::Result<()> {
        if packets.len() >= MANY
            && let Some(ring) = self.many.ring()
        {
            if let Ok(results) = ring.write(self.queue.as_fd(), packets, header) {
                let detached = |result: &i32| *result == -libc::EBADFD;
                if results.iter().any(detached) {
                    return Err(io::Error::from_raw_os_error(libc::EBADFD));
                }
                for (packet, result) in packets.iter().zip(results) {
                    transmitted.count(packet, *result >= 0);
                }
                return Ok(());
            }
            self.many = Many::OneByOne;
        }
        for packet in packets {
            match self.write_one(packet) {
                // The queue is detached or the device deleted. All other errors concern this packet alone (EIO: down).
                Err(error) if error.raw_os_error() == Some(libc::EBADFD) => return Err(error),
                written => transmitted.count(packet, written.is_ok()),
            }
        }
        Ok(())
    }

    fn write_one(&self, packet: &Packet) -> io::Result<usize> {
        let header = header(packet);
        retry(|| {
            (&self.queue).write_vectored(&[IoSlice::new(&header), IoSlice::new(packet.bytes())])
        })
    }
}

fn header(packet: &Packet) -> virtio::Header {
    virtio::encode(packet.offload, packet.bytes(), 0)
}

impl From<Tun> for OwnedFd {
    /// The queue's descriptor, to pass it on.
    fn from(tun: Tun) -> Self {
        tun.queue.into()
    }
}

impl PacketIo for Tun {
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
            match read(&self.queue, &mut packet) {
                Ok(is_packet) => {
                    intake.add(&packet);
                    if is_packet {
                        into.push(packet);
                    } else {
                        received.malformed += 1;
                        pool.put(packet);
                    }
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

/// Reads one packet. False: no packet came, or its header is impossible. The latter also happens when a process has
/// changed the header's length for all queues ([`Settings::restore`]).
#[inline]
fn read(mut queue: impl Read, packet: &mut Packet) -> io::Result<bool> {
    let mut header = [0; HEADER_LEN];
    // If the device's header is longer than ours, its further bytes lie where the packet should begin. Newer kernels
    // fill them with zeros; kernels before 6.15 leave what the buffer held before. Either way no IP version starts
    // there.
    packet.room_mut()[0] = 0;
    let mut room = [IoSliceMut::new(&mut header), IoSliceMut::new(packet.room_mut())];
    let len = match retry(|| queue.read_vectored(&mut room)) {
        Ok(len) => len,
        // The kernel had no room for its header, or no header for its packet, and has dropped the packet.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => return Ok(false),
        Err(e) => return Err(e),
    };
    packet.set_len(len.saturating_sub(HEADER_LEN));
    let is_ip = packet.bytes().first().is_some_and(|first| matches!(first >> 4, 4 | 6));
    Ok(is_ip && virtio::mark(packet, &header, 0).is_ok())
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

    /// A queue of a kernel before 6.15 with a header of this many bytes: it does not write the bytes beyond ours.
    struct OldKernel<'a> {
        header_len: usize,
        packet: &'a [u8],
    }

    impl Read for OldKernel<'_> {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            unreachable!("packets are read in one piece")
        }

        fn read_vectored(&mut self, room: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
            let [head, rest] = room else { unreachable!("a header and a packet") };
            head.fill(0);
            let beyond = self.header_len - head.len();
            let Some(rest) = rest.get_mut(beyond..) else {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            };
            rest[..self.packet.len()].copy_from_slice(self.packet);
            Ok(self.header_len + self.packet.len())
        }
    }

    #[test]
    fn a_longer_header_brings_no_byte_of_the_buffers_former_user() {
        let mut pool = Pool::new(1);
        let packet = [&[0x45][..], &[7; 99]].concat();
        for header_len in [10, 11, 12, 70, 60_000, 70_000, 10] {
            // An earlier packet, which would be accepted.
            let mut buffer = pool.take_filled(&vec![0x45; 65_535]).unwrap();
            let read = read(OldKernel { header_len, packet: &packet }, &mut buffer).unwrap();
            assert_eq!(read, header_len == HEADER_LEN, "a header of {header_len} bytes");
            assert!(!read || buffer.bytes() == packet);
            pool.put(buffer);
        }
    }
}
