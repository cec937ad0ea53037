//! `io_uring(7)`: whether it is to be had, and many writes to one descriptor in a single system call.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use io_uring::{IoUring, opcode, types};

use crate::packet::Packet;

/// Asks the kernel for a ring with arguments that it cannot accept, and reads off its refusal whether it would give one
/// to this process.
///
/// Errors: `ENOSYS` without `io_uring` in the kernel or the seccomp filter; `EPERM` when `kernel.io_uring_disabled` or a
/// security module forbids it.
pub fn available() -> io::Result<()> {
    // SAFETY: a null pointer for the parameters, which the kernel reads only after it has checked that the caller may
    // have a ring; the call then fails with EFAULT and has no other effect.
    let result =
        unsafe { libc::syscall(libc::SYS_io_uring_setup, 1_u32, ptr::null_mut::<libc::c_void>()) };
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EFAULT | libc::EINVAL) if result < 0 => Ok(()),
        _ => Err(error),
    }
}

/// Writes a call: what a worker queues on a port before it sends.
pub const WRITES: usize = 64;

/// A ring for writes of packets, each behind a header of `H` bytes.
///
/// A call returns when all of its writes are over, so that no packet is lent to the kernel beyond it. They are done in order
/// within the call, and none of them waits: where `O_NONBLOCK` alone would have the ring wait until the descriptor is writable,
/// which in a device somebody else may prevent for good, `RWF_NOWAIT` has the write fail with `EAGAIN`.
pub struct Writes<const H: usize> {
    ring: IoUring,
    headers: Box<[[u8; H]; WRITES]>,
    vectors: Box<[[libc::iovec; 2]; WRITES]>,
    results: Box<[i32; WRITES]>,
}

// SAFETY: the pointers in `vectors` are written before each system call and read by the kernel during it; between calls
// nobody follows them, so it does not matter which thread holds them.
unsafe impl<const H: usize> Send for Writes<H> {}

impl<const H: usize> fmt::Debug for Writes<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writes").finish_non_exhaustive()
    }
}

impl<const H: usize> Writes<H> {
    /// A ring of its own.
    ///
    /// Errors: as [`available`]; `ENOMEM` beyond the locked memory that kernels before 5.12 allow.
    pub fn new() -> io::Result<Self> {
        let vector = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        Ok(Self {
            ring: IoUring::new(WRITES as u32)?,
            headers: Box::new([[0; H]; WRITES]),
            vectors: Box::new([[vector; 2]; WRITES]),
            results: Box::new([0; WRITES]),
        })
    }

    /// Writes `packets` (at most [`WRITES`]) in their order, each in one piece behind the header that `header` makes of it.
    /// What became of each: bytes written, or a negative error number.
    ///
    /// Errors: the ring is of no use any more; none of the packets was written.
    pub fn write(
        &mut self,
        fd: BorrowedFd<'_>,
        packets: &[Packet],
        header: impl Fn(&Packet) -> [u8; H],
    ) -> io::Result<&[i32]> {
        let count = packets.len().min(WRITES);
        let target = types::Fd(fd.as_raw_fd());
        let room = self.headers.iter_mut().zip(self.vectors.iter_mut());
        let mut queue = self.ring.submission();
        for (index, (packet, (head, vectors))) in packets.iter().zip(room).enumerate() {
            *head = header(packet);
            let bytes = packet.bytes();
            vectors[0] = libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: H };
            vectors[1] =
                libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            let entry =
                opcode::Writev::new(target, vectors.as_ptr(), 2).rw_flags(libc::RWF_NOWAIT).build();
            // SAFETY: the entry points to two vectors in `self.vectors`, these to a header in `self.headers` and to the
            // bytes of a packet; all are borrowed until this function returns, which is after the kernel has completed the
            // entry (the loop below). The queue has room: it is empty when a call begins, and has WRITES entries.
            let pushed = unsafe { queue.push(&entry.user_data(index as u64)) };
            if pushed.is_err() {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        drop(queue);
        let mut completed = 0;
        while completed < count {
            match self.ring.submit_and_wait(count - completed) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Nothing of this call is with the kernel: it takes an entry only to complete it.
                Err(error) if self.ring.submission().len() == count => return Err(error),
                // Some are: they have to be waited for.
                Ok(_) | Err(_) => {}
            }
            for entry in self.ring.completion() {
                if let Some(result) = self.results.get_mut(entry.user_data() as usize) {
                    *result = entry.result();
                }
                completed += 1;
            }
        }
        Ok(&self.results[..count])
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_answer_is_one_of_the_documented_ones() {
        if let Err(error) = super::available() {
            assert!(
                matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EACCES)),
                "{error}"
            );
        }
    }
}
