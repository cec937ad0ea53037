//! The queues of a device, before they are used as ports.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use super::framing::{Ethernet, Ip};
use super::port::Port;
use super::settings::{self, Settings};
use crate::packet::Capabilities;
use crate::port::PacketIo;
use crate::port::link::Link;
use crate::sys;

const DEVICE: &str = "/dev/net/tun";
/// No packet information (four bytes), and virtio headers.
const SHAPE: i32 = libc::IFF_NO_PI | libc::IFF_VNET_HDR;

/// The network layer of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// IP packets: layer 3.
    Tun,
    /// Ethernet frames: layer 2.
    Tap,
}

impl Kind {
    /// The kernel's flag for this kind. Every device has one of the two.
    const fn flag(self) -> i32 {
        match self {
            Self::Tun => libc::IFF_TUN,
            Self::Tap => libc::IFF_TAP,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tun => "TUN",
            Self::Tap => "TAP",
        })
    }
}

/// A queue of a device.
#[derive(Debug)]
pub struct Queue {
    file: File,
    name: String,
    kind: Kind,
    /// Whether the device may have several queues.
    has_several: bool,
    capabilities: Capabilities,
}

impl Queue {
    /// Creates the device `name` in the caller's network namespace and opens `queues` queues of it (at least one). `%d`
    /// in the name is replaced by a free number. The device is deleted when its last queue is closed.
    ///
    /// No other process can open a queue of a device that has one queue. For a device with several queues, only its
    /// [`owner`](settings::owner) and processes with `CAP_NET_ADMIN` can open queues. The device has no owner until
    /// this call returns. So a device for an untrusted namespace is created elsewhere and then moved.
    ///
    /// The caller sets addresses, the MTU, the length of the transmission queue (500 packets by default) and `up`. For
    /// a TAP device it also sets the hardware address, which the kernel chooses at random.
    ///
    /// Fails with `ResourceBusy` if an interface has this name, with `NotFound` if there is no device node, and with
    /// `E2BIG` beyond the kernel's 256 queues. Fails with `PermissionDenied` if only root may open `/dev/net/tun`, or
    /// if the caller lacks `CAP_NET_ADMIN` in the namespace.
    pub fn create(kind: Kind, name: &str, queues: usize) -> io::Result<Vec<Self>> {
        let mut name = name.to_owned();
        let mut opened = Vec::with_capacity(queues.max(1));
        let several = if queues > 1 { libc::IFF_MULTI_QUEUE } else { 0 };
        for number in 0..queues.max(1) {
            // If the device already exists, it may belong to another program, so opening the first queue must fail.
            let exclusive = if number == 0 { libc::IFF_TUN_EXCL } else { 0 };
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
                .open(DEVICE)?;
            let flags = kind.flag() | SHAPE | several | exclusive;
            name = sys::tun::set_interface(file.as_fd(), &name, flags)?;
            opened.push(Self::prepare(file, name.clone(), kind, queues > 1)?);
        }
        Ok(opened)
    }

    /// Takes a queue that another process opened in any namespace.
    ///
    /// Fails with `InvalidInput` unless it is a queue of the form that [`Queue::create`] makes (virtio header, no
    /// packet information), and with the kernel's error if it is detached.
    pub fn from_fd(queue: OwnedFd) -> io::Result<Self> {
        let sys::tun::Interface { name, flags } = sys::tun::interface(queue.as_fd())?;
        let kind = [Kind::Tun, Kind::Tap].into_iter().find(|kind| flags & kind.flag() != 0);
        let Some(kind) = kind.filter(|_| flags & SHAPE == SHAPE) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the queue is not a TUN or TAP queue with virtio headers and without packet information",
            ));
        };
        sys::set_nonblocking(queue.as_fd())?;
        Self::prepare(File::from(queue), name, kind, flags & libc::IFF_MULTI_QUEUE != 0)
    }

    /// Sets up the whole device; a second queue sets the same values again.
    fn prepare(file: File, name: String, kind: Kind, has_several: bool) -> io::Result<Self> {
        let udp_segmentation = settings::set(file.as_fd())?;
        let capabilities = Capabilities { udp_segmentation, ..Capabilities::ALL };
        Ok(Self { file, name, kind, has_several, capabilities })
    }

    /// Turns the queue into a port. `link` is called only for a TAP device, whose frames have hardware addresses. The
    /// link's own address must not begin with a zero byte.
    pub fn into_port(self, link: impl FnOnce() -> Link) -> Box<dyn PacketIo> {
        let Self { file, kind, capabilities, .. } = self;
        match kind {
            Kind::Tun => Box::new(Port::new(file, capabilities, Ip)),
            Kind::Tap => Box::new(Port::new(file, capabilities, Ethernet::new(link()))),
        }
    }

    /// The layer that the device carries.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether the device may have several queues.
    pub const fn has_several(&self) -> bool {
        self.has_several
    }

    /// The packets that a port of it accepts unchanged.
    pub const fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// The interface's name in the namespace in which it was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A handle by which the settings of the device can be restored.
    pub fn settings(&self) -> io::Result<Settings> {
        Settings::of(&self.file)
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl From<Queue> for OwnedFd {
    /// Returns the queue's descriptor, to pass it on.
    fn from(queue: Queue) -> Self {
        queue.file.into()
    }
}
