//! Super-datagrams: many datagrams of one length to one address in one system call. The kernel cuts them
//! (`UDP_SEGMENT`) and coalesces them (`UDP_GRO`) (udp(7)).

use std::ffi::{c_int, c_uint};
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use super::check;

/// The largest number of datagrams in a super-datagram (`UDP_MAX_SEGMENTS` of the kernels that this program supports).
pub const SEGMENTS: usize = 64;

/// A received super-datagram, as the kernel describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SuperDatagram {
    /// The sender's address.
    pub source: Ipv4Addr,
    /// The sender's port.
    pub source_port: u16,
    /// Its length in bytes.
    pub len: usize,
    /// The length of each datagram except the last, which may be shorter, in bytes. It equals `len` if there is only
    /// one.
    pub segment: usize,
    /// DSCP and ECN of the outer header.
    pub tos: u8,
}

/// Room for control messages: two integers, with headers and alignment.
#[repr(align(8))]
struct Control([MaybeUninit<u8>; 64]);

impl Control {
    const fn new() -> Self {
        Self([MaybeUninit::uninit(); 64])
    }
}

/// The largest number of pieces of a super-datagram: the headers and the payload of each datagram, which may lie apart,
/// and one piece for the rest of a super-datagram that is longer than expected.
const PIECES: usize = 2 * SEGMENTS + 1;

/// The arrays for sending and receiving; they are allocated once.
pub struct Vectors([libc::iovec; PIECES]);

// SAFETY: the pointers are written before each system call, and the kernel follows them during it. Between calls they
// are not followed.
unsafe impl Send for Vectors {}

impl Default for Vectors {
    fn default() -> Self {
        Self([libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; PIECES])
    }
}

impl Vectors {
    /// Receives a super-datagram into `pieces` (at most two for each of [`SEGMENTS`] datagrams, and one more), one
    /// after the other. It must fit into all pieces together. The call never waits. The socket must have `UDP_GRO` and
    /// `IP_RECVTOS` set.
    ///
    /// Fails with `WouldBlock` if there is none, and with `InvalidData` if it was longer or its sender has no IPv4
    /// address.
    pub fn receive<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        pieces: impl Iterator<Item = &'a mut [u8]>,
    ) -> io::Result<SuperDatagram> {
        let mut count = 0;
        for (vector, piece) in self.0.iter_mut().zip(pieces) {
            *vector = libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() };
            count += 1;
        }
        let mut source = libc::sockaddr_in {
            sin_family: 0,
            sin_port: 0,
            sin_addr: libc::in_addr { s_addr: 0 },
            sin_zero: [0; 8],
        };
        let mut control = Control::new();
        // SAFETY: a msghdr of zeros is valid: null pointers with lengths of zero.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = ptr::from_mut(&mut source).cast();
        message.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        message.msg_iov = self.0.as_mut_ptr();
        message.msg_iovlen = count;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = size_of::<Control>() as _;
        // SAFETY: the message points to an address, to `count` vectors over borrowed bytes that do not overlap, and to
        // the control room, with true lengths. All live until the call returns.
        let len = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        let Ok(len) = usize::try_from(len) else { return Err(io::Error::last_os_error()) };
        let mut super_datagram = SuperDatagram {
            source: Ipv4Addr::from(u32::from_be(source.sin_addr.s_addr)),
            source_port: u16::from_be(source.sin_port),
            len,
            segment: len,
            tos: 0,
        };
        // SAFETY: the kernel has written whole control messages, and their length into `msg_controllen`. Each is read
        // within that length, and its data only as far as its own length goes.
        unsafe {
            let mut at = libc::CMSG_FIRSTHDR(&raw const message);
            while let Some(header) = at.as_ref() {
                let data = libc::CMSG_DATA(at);
                let room = header.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                match (header.cmsg_level, header.cmsg_type) {
                    (libc::SOL_UDP, libc::UDP_GRO) if room >= size_of::<c_int>() => {
                        let size: c_int = ptr::read_unaligned(data.cast());
                        super_datagram.segment = usize::try_from(size).unwrap_or(0);
                    }
                    (libc::IPPROTO_IP, libc::IP_TOS) if room >= 1 => super_datagram.tos = *data,
                    _ => {}
                }
                at = libc::CMSG_NXTHDR(&raw const message, at);
            }
        }
        let cut = message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
        if cut
            || c_int::from(source.sin_family) != libc::AF_INET
            || (super_datagram.segment == 0 && len > 0)
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(super_datagram)
    }

    /// Sends the bytes of `pieces` (at most two for each of [`SEGMENTS`] datagrams), one after the other, to `to`. They
    /// form datagrams of `segment` bytes; only the last may be shorter. `tos` holds DSCP and ECN of each datagram. The
    /// call never waits.
    ///
    /// Fails with `WouldBlock` or `ENOBUFS` if there is no room, with `EMSGSIZE` if a datagram exceeds the link's MTU,
    /// and with `EIO` or `EINVAL` if the kernel cannot cut.
    pub fn send<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        (to, tos): (Ipv4Addr, u8),
        port: u16,
        segment: usize,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) -> io::Result<()> {
        let (mut count, mut len) = (0, 0);
        for (vector, piece) in self.0.iter_mut().zip(pieces) {
            let iov_base = piece.as_ptr().cast_mut().cast();
            *vector = libc::iovec { iov_base, iov_len: piece.len() };
            count += 1;
            len += piece.len();
        }
        let mut destination = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: port.to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from(to).to_be() },
            sin_zero: [0; 8],
        };
        let mut control = Control::new();
        // SAFETY: as in `receive`.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = ptr::from_mut(&mut destination).cast();
        message.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        message.msg_iov = self.0.as_mut_ptr();
        message.msg_iovlen = count;
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE and CMSG_LEN compute from lengths. Both messages fit the control room, which is aligned
        // for their headers. The data is written unaligned, within the space of its message. The first header exists
        // because `msg_controllen` is at least the length of one header.
        unsafe {
            let room_of = |len: usize| libc::CMSG_SPACE(len as c_uint) as usize;
            let mark = room_of(size_of::<c_int>());
            message.msg_controllen = mark as _;
            let first = libc::CMSG_FIRSTHDR(&raw const message);
            (*first).cmsg_level = libc::IPPROTO_IP;
            (*first).cmsg_type = libc::IP_TOS;
            (*first).cmsg_len = libc::CMSG_LEN(size_of::<c_int>() as c_uint) as _;
            ptr::write_unaligned(libc::CMSG_DATA(first).cast(), c_int::from(tos));
            if len > segment {
                message.msg_controllen = (mark + room_of(size_of::<u16>())) as _;
                let second: *mut libc::cmsghdr = first.cast::<u8>().add(mark).cast();
                (*second).cmsg_level = libc::SOL_UDP;
                (*second).cmsg_type = libc::UDP_SEGMENT;
                (*second).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as c_uint) as _;
                ptr::write_unaligned(libc::CMSG_DATA(second).cast(), segment as u16);
            }
        }
        // SAFETY: the message points to an address, `count` vectors over borrowed bytes and two control messages; all
        // live until the call returns, and the kernel only reads.
        let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Binds an IPv4 socket.
pub fn bind(fd: BorrowedFd<'_>, address: Ipv4Addr, port: u16) -> io::Result<()> {
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(address).to_be() },
        sin_zero: [0; 8],
    };
    // SAFETY: the kernel reads one sockaddr_in, which lives until the call returns.
    check(unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_in>() as libc::socklen_t,
        )
    })?;
    Ok(())
}
