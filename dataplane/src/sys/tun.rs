//! The ioctls of TUN and TAP (Linux, Documentation/networking/tuntap.rst).

use std::ffi::{c_int, c_short, c_uint};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::check;

/// A queue's properties and its interface (`TUNGETIFF`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// The interface's name.
    pub name: String,
    /// The flags as the kernel stores them: `IFF_TUN`, `IFF_VNET_HDR` and others.
    pub flags: c_int,
}

/// Turns `fd`, a fresh descriptor of `/dev/net/tun`, into a queue of the interface `name` in the caller's network
/// namespace. The interface is created if it does not exist. Returns the name, which the kernel completes if it ends in
/// `%d`.
///
/// Fails with `InvalidInput` for a name longer than 15 bytes, with `EPERM` without `CAP_NET_ADMIN` over the namespace,
/// and with `EBUSY` or `EINVAL` if the interface exists in another form.
pub fn set_interface(fd: BorrowedFd<'_>, name: &str, flags: c_int) -> io::Result<String> {
    let mut request = empty_request();
    if name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "an interface name has at most 15 bytes",
        ));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request.ifr_ifru.ifru_flags = flags as c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which lives until the call returns.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    Ok(name_of(&request))
}

/// The interface of the queue `fd`. Returns an error if `fd` is not a TUN or TAP queue, or is detached.
pub fn interface(fd: BorrowedFd<'_>) -> io::Result<Interface> {
    let mut request = empty_request();
    // SAFETY: TUNGETIFF writes one ifreq, which lives until the call returns.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETIFF, &raw mut request) })?;
    // SAFETY: the request was zeroed and TUNGETIFF fills this member of the union; any bits are a valid c_short.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(Interface {
        name: name_of(&request),
        flags: c_int::from(u16::from_ne_bytes(flags.to_ne_bytes())),
    })
}

/// `TUNGETDEVNETNS` (`linux/if_tun.h`), which libc does not name.
const GET_NAMESPACE: libc::Ioctl = libc::_IO(b'T' as u32, 227);

/// The network namespace in which the interface of the queue `fd` lies now.
///
/// Returns an error if `fd` is detached. Fails with `EPERM` without `CAP_NET_ADMIN` over the namespace, and with
/// `EINVAL` before Linux 5.2.
pub fn namespace(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: TUNGETDEVNETNS takes no argument and returns a new descriptor.
    let opened = check(unsafe { libc::ioctl(fd.as_raw_fd(), GET_NAMESPACE, 0) })?;
    // SAFETY: the kernel has just opened it for this process, and nothing else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(opened) })
}

/// Sets the length of the virtio-net header in front of each packet.
pub fn set_vnet_header_len(fd: BorrowedFd<'_>, len: c_int) -> io::Result<()> {
    // SAFETY: TUNSETVNETHDRSZ reads one int, which lives until the call returns.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const len) })?;
    Ok(())
}

/// The header length that any process has set last.
pub fn vnet_header_len(fd: BorrowedFd<'_>) -> io::Result<c_int> {
    let mut len: c_int = 0;
    // SAFETY: TUNGETVNETHDRSZ writes one int, which lives until the call returns.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETVNETHDRSZ, &raw mut len) })?;
    Ok(len)
}

/// Sets whether the header's fields are little-endian. If not, they have the machine's own order, or big-endian order
/// if a process has set that (`TUNSETVNETBE`). Little-endian overrides both.
pub fn set_little_endian(fd: BorrowedFd<'_>, little: bool) -> io::Result<()> {
    let little = c_int::from(little);
    // SAFETY: TUNSETVNETLE reads one int, which lives until the call returns.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETLE, &raw const little) })?;
    Ok(())
}

/// Whether the header's fields have been set to be little-endian.
pub fn is_little_endian(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut little: c_int = 0;
    // SAFETY: TUNGETVNETLE writes one int, which lives until the call returns.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETVNETLE, &raw mut little) })?;
    Ok(little != 0)
}

/// Sets the user and the group that may open further queues without `CAP_NET_ADMIN` over the device's namespace. A
/// process needs to match both. While neither is set, every process may open queues.
///
/// Fails with `EINVAL` for an id that the caller's user namespace does not map.
pub fn set_owner(fd: BorrowedFd<'_>, user: u32, group: u32) -> io::Result<()> {
    // SAFETY: TUNSETOWNER takes its argument by value.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOWNER, libc::c_ulong::from(user)) })?;
    // SAFETY: TUNSETGROUP takes its argument by value.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETGROUP, libc::c_ulong::from(group)) })?;
    Ok(())
}

/// Tells the kernel which offloads the reader of this device's queues handles: `TUN_F_*`. Fails with `EINVAL` for a
/// flag that the kernel does not know.
pub fn set_offload(fd: BorrowedFd<'_>, flags: c_uint) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(flags)) })?;
    Ok(())
}

fn empty_request() -> libc::ifreq {
    libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_map: libc::__c_anonymous_ifru_map {
                mem_start: 0,
                mem_end: 0,
                base_addr: 0,
                irq: 0,
                dma: 0,
                port: 0,
            },
        },
    }
}

fn name_of(request: &libc::ifreq) -> String {
    let name: Vec<u8> =
        request.ifr_name.iter().map(|c| c.to_ne_bytes()[0]).take_while(|&c| c != 0).collect();
    String::from_utf8_lossy(&name).into_owned()
}
