//! Sockets of families that the standard library lacks, their options and filters.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::check;

/// One instruction of a classic BPF program (Linux, Documentation/networking/filter.rst).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    /// The operation.
    pub code: u16,
    /// The number of instructions to skip if a comparison holds.
    pub jump_true: u8,
    /// The number of instructions to skip if it does not hold.
    pub jump_false: u8,
    /// The operand.
    pub operand: u32,
}

/// Opens a nonblocking socket that is closed on exec.
pub fn open(family: c_int, kind: c_int, protocol: c_int) -> io::Result<OwnedFd> {
    // SAFETY: takes and returns plain integers.
    let fd = check(unsafe {
        libc::socket(family, kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, protocol)
    })?;
    // SAFETY: the kernel has just made this descriptor, and nothing else uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets an option whose value is an int.
pub fn set_option(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the kernel reads one int, which lives until the call returns.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast::<c_void>(),
            size_of::<c_int>() as libc::socklen_t,
        )
    })?;
    Ok(())
}

/// Reads an option whose value is an int.
pub fn option(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `value` and the true length into `len`; both live until the
    // call returns.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw mut value).cast::<c_void>(),
            &raw mut len,
        )
    })?;
    Ok(value)
}

/// Puts `program` in front of the socket's receive queue, in place of an earlier one.
pub fn attach_filter(fd: BorrowedFd<'_>, program: &[Instruction]) -> io::Result<()> {
    let mut code: Vec<libc::sock_filter> = program
        .iter()
        .map(|i| libc::sock_filter {
            code: i.code,
            jt: i.jump_true,
            jf: i.jump_false,
            k: i.operand,
        })
        .collect();
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
    // SAFETY: `program` points to `len` instructions in `code`; both live until the call returns, and the kernel
    // copies.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast::<c_void>(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    })?;
    Ok(())
}

/// Binds a packet socket to the interface `index` and receives frames of `ethertype` (host byte order).
pub fn bind_link(fd: BorrowedFd<'_>, index: u32, ethertype: u16) -> io::Result<()> {
    let mut address = link_address();
    address.sll_protocol = ethertype.to_be();
    address.sll_ifindex =
        c_int::try_from(index).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: the kernel reads one sockaddr_ll, which lives until the call returns.
    check(unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw const address).cast::<libc::sockaddr>(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    })?;
    Ok(())
}

/// The interface that a packet socket is bound to. `None` if there is none, or if it has been deleted.
pub fn bound_link(fd: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let mut address = link_address();
    let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `address` and the true length into `len`; both live until the
    // call returns.
    check(unsafe {
        libc::getsockname(fd.as_raw_fd(), (&raw mut address).cast::<libc::sockaddr>(), &raw mut len)
    })?;
    let ours = c_int::from(address.sll_family) == libc::AF_PACKET;
    Ok(u32::try_from(address.sll_ifindex).ok().filter(|&index| ours && index > 0))
}

/// Sends one datagram to the address that the socket is bound to, without waiting.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel reads `bytes.len()` bytes, which live until the call returns.
    let sent = unsafe {
        libc::send(fd.as_raw_fd(), bytes.as_ptr().cast::<c_void>(), bytes.len(), libc::MSG_DONTWAIT)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Requests buffers of `bytes` for each direction. A privileged caller may exceed the system's limit; another gets at
/// most the limit.
pub fn enlarge_buffers(fd: BorrowedFd<'_>, bytes: c_int) -> io::Result<()> {
    for (force, plain) in
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        if set_option(fd, libc::SOL_SOCKET, force, bytes).is_err() {
            set_option(fd, libc::SOL_SOCKET, plain, bytes)?;
        }
    }
    Ok(())
}

fn link_address() -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: 0,
        sll_ifindex: 0,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}
