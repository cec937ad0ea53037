//! The system calls of the packet path that the standard library lacks, and all unsafe code of this crate.
//!
//! Functions here take and return plain values and borrowed descriptors; [`crate::port`] gives them their meaning.
#![expect(
    unsafe_code,
    reason = "the one place where this crate talks to the kernel without the standard library"
)]

pub mod addressed;
pub mod batch;
pub mod capabilities;
pub mod clock;
pub mod lanes;
pub mod memory;
pub mod ring;
pub mod shared_file;
pub mod socket;
pub mod tun;
pub mod udp_gso;
pub mod uring;

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Makes reads and writes of `fd` return `WouldBlock` instead of waiting.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: F_GETFL takes and returns plain integers.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: F_SETFL takes and returns plain integers.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) })?;
    Ok(())
}

/// The running kernel's version, major and minor, as in its release (`uname(2)`); (0, 0) if the release has none.
pub fn kernel() -> (u32, u32) {
    // SAFETY: a `utsname` is arrays of bytes, for which all zeroes are valid.
    let mut names: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `utsname`, which lives until the call returns.
    if unsafe { libc::uname(&raw mut names) } < 0 {
        return (0, 0);
    }
    version(&names.release.map(|it| it.to_ne_bytes()[0]))
}

fn version(release: &[u8]) -> (u32, u32) {
    let mut numbers = release.split(|it| !it.is_ascii_digit()).map(|digits| {
        std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).unwrap_or(0)
    });
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_begins_with_the_version() {
        let releases =
            [b"6.18.5-cloud-amd64\0\0" as &[u8], b"5.15.0", b"7.0-rc1", b"6", b"", b"x.y"];
        assert_eq!(releases.map(version), [(6, 18), (5, 15), (7, 0), (6, 0), (0, 0), (0, 0)]);
        assert!(kernel() > (2, 6));
    }
}
