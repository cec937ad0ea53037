//! Datagrams of an IPv6 socket with both their addresses: `recvmsg(2)` with `IPV6_PKTINFO` (RFC 3542, section 6.2).

use std::ffi::c_int;
use std::io;
use std::mem::size_of;
use std::net::Ipv6Addr;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::{check, socket};

/// A received datagram. Its bytes are in the caller's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addressed {
    /// The datagram's length, or that of the buffer if the datagram was longer.
    pub len: usize,
    /// The sender's address.
    pub source: Ipv6Addr,
    /// The address of this host that the datagram was sent to.
    pub destination: Ipv6Addr,
    /// Whether the buffer held the whole datagram.
    pub is_whole: bool,
}

/// Makes the kernel report the destination of each datagram; [`receive`] needs it.
pub fn ask_for_destinations(fd: BorrowedFd<'_>) -> io::Result<()> {
    socket::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)
}

/// Receives one datagram, without waiting.
///
/// Fails with `InvalidData` if the kernel reports no destination.
pub fn receive(fd: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<Addressed> {
    // SAFETY: a `sockaddr_in6` is integers, for which all zeroes are valid.
    let mut source: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    // Room for one message of `in6_pktinfo` and its header, aligned as the header is.
    let mut control = [0_u64; 8];
    let mut bytes = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: a msghdr of zeroes is valid: null pointers with lengths of zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut source).cast();
    message.msg_namelen = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
    message.msg_iov = &raw mut bytes;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: `message` points to an address, a buffer and a control buffer. All are borrowed until the call returns,
    // and are as long as stated.
    let received = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let len = check(received as c_int)?.cast_unsigned() as usize;
    // SAFETY: the kernel has set the control buffer's length to the number of bytes that it has written there.
    let first = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: it is null, or points to a whole header in `control`, which is aligned for it.
    let destination = unsafe { first.as_ref() }
        .filter(|it| (it.cmsg_level, it.cmsg_type) == (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO))
        .map(|_| {
            // SAFETY: a message of this type holds one `in6_pktinfo`, which the kernel writes whole or not at all.
            let told =
                unsafe { libc::CMSG_DATA(first).cast::<libc::in6_pktinfo>().read_unaligned() };
            Ipv6Addr::from(told.ipi6_addr.s6_addr)
        });
    let none = || io::Error::new(io::ErrorKind::InvalidData, "the kernel tells no destination");
    Ok(Addressed {
        len,
        source: Ipv6Addr::from(source.sin6_addr.s6_addr),
        destination: destination.ok_or_else(none)?,
        is_whole: message.msg_flags & libc::MSG_TRUNC == 0,
    })
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn both_addresses_come_with_a_datagram() {
        let Ok(socket) = UdpSocket::bind("[::1]:0") else { return };
        let mut buffer = [0; 4];
        socket.set_nonblocking(true).unwrap();
        let nothing = receive(socket.as_fd(), &mut buffer).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        let own = Ipv6Addr::LOCALHOST;
        socket.send_to(b"untold", socket.local_addr().unwrap()).unwrap();
        let untold = receive(socket.as_fd(), &mut buffer).unwrap_err();
        assert_eq!(untold.kind(), io::ErrorKind::InvalidData);
        ask_for_destinations(socket.as_fd()).unwrap();
        for (sent, len, is_whole) in [(&b"ab"[..], 2, true), (b"abcdef", 4, false)] {
            socket.send_to(sent, socket.local_addr().unwrap()).unwrap();
            let told = receive(socket.as_fd(), &mut buffer).unwrap();
            assert_eq!(told, Addressed { len, source: own, destination: own, is_whole });
        }
    }
}
