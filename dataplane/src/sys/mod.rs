//! Every system call of the packet path that the standard library lacks, and all of this crate's unsafe code.
//!
//! Functions here take and return plain values and borrowed descriptors; what they mean is decided in [`crate::port`].
#![expect(
    unsafe_code,
    reason = "the one place where this crate talks to the kernel without the standard library"
)]

pub mod batch;
pub mod clock;
pub mod lanes;
pub mod memory;
pub mod ring;
pub mod socket;
pub mod tun;
pub mod udp_gso;
pub mod uring;

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Makes reads and writes of `fd` return `WouldBlock` rather than wait.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: F_GETFL takes and returns plain integers.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: F_SETFL takes and returns plain integers.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) })?;
    Ok(())
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
