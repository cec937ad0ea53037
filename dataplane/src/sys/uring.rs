//! `io_uring(7)`: whether a process can have a ring, and many writes to one descriptor in one system call.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use io_uring::{EnterFlags, IoUring, opcode, types};

use crate::packet::Packet;

/// Tests whether the kernel gives this process a ring. It calls the kernel with arguments that cannot be accepted, and
/// the error gives the answer.
///
/// Fails with `ENOSYS` if the kernel or the seccomp filter has no `io_uring`, and with `EPERM` if
/// `kernel.io_uring_disabled` or a security module forbids it.
pub fn available() -> io::Result<()> {
    // SAFETY: the parameters are a null pointer. The kernel reads them only after it has checked that the caller may
    // have a ring. Then the call fails with EFAULT and has no other effect.
    let result =
        unsafe { libc::syscall(libc::SYS_io_uring_setup, 1_u32, ptr::null_mut::<libc::c_void>()) };
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EFAULT | libc::EINVAL) if result < 0 => Ok(()),
        _ => Err(error),
    }
}

/// The largest number of writes in a call: as many packets as a worker queues on a port before it sends.
pub const WRITES: usize = 64;

/// A ring for writing packets, each after a header of `H` bytes.
///
/// A call returns only after all of its writes are complete, so the kernel holds no packet afterwards. The writes are
/// done in order, and none of them waits. With `O_NONBLOCK` alone, the ring would wait until the descriptor is
/// writable. On some devices another process can prevent that forever. With `RWF_NOWAIT` the write fails with `EAGAIN`
/// instead.
pub struct Writes<const H: usize> {
    /// `None` after an error. After an error, entries that the kernel has not taken point to packets that are in use
    /// elsewhere. Only closing the ring removes these entries: the ring holds them, and nothing else can submit them.
    ring: Option<IoUring>,
    headers: Box<[[u8; H]; WRITES]>,
    vectors: Box<[[libc::iovec; 2]; WRITES]>,
    results: Box<[i32; WRITES]>,
}

// SAFETY: the pointers in `vectors` are written before each system call, and the kernel reads them during it. Between
// calls nothing follows them, so it does not matter which thread holds them.
unsafe impl<const H: usize> Send for Writes<H> {}

impl<const H: usize> fmt::Debug for Writes<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writes").finish_non_exhaustive()
    }
}

impl<const H: usize> Writes<H> {
    /// Creates a ring.
    ///
    /// The errors are those of [`available`], and `ENOMEM` beyond the locked memory that kernels before 5.12 allow.
    pub fn new() -> io::Result<Self> {
        let vector = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        Ok(Self {
            ring: Some(IoUring::new(WRITES as u32)?),
            headers: Box::new([[0; H]; WRITES]),
            vectors: Box::new([[vector; 2]; WRITES]),
            results: Box::new([0; WRITES]),
        })
    }

    /// Writes `packets` (at most [`WRITES`]) in order, each in one piece after the header that `header` builds for it.
    /// Returns for each packet the number of bytes written, or a negative error number (`ECANCELED`: the kernel did not
    /// take it).
    ///
    /// An error means that the ring has failed. Then none of the packets was written, and every later call fails, too.
    pub fn write(
        &mut self,
        fd: BorrowedFd<'_>,
        packets: &[Packet],
        header: impl Fn(&Packet) -> [u8; H],
    ) -> io::Result<&[i32]> {
        let packets = &packets[..packets.len().min(WRITES)];
        // This runs before anything is queued, so that the caller's function leaves no entry in the queue even if it
        // panics.
        for (head, packet) in self.headers.iter_mut().zip(packets) {
            *head = header(packet);
        }
        let Some(ring) = &mut self.ring else { return Err(io::ErrorKind::NotConnected.into()) };
        let target = types::Fd(fd.as_raw_fd());
        let room = self.headers.iter_mut().zip(self.vectors.iter_mut());
        let mut queue = ring.submission();
        for (index, (packet, (head, vectors))) in packets.iter().zip(room).enumerate() {
            let bytes = packet.bytes();
            vectors[0] = libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: H };
            vectors[1] =
                libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            let entry =
                opcode::Writev::new(target, vectors.as_ptr(), 2).rw_flags(libc::RWF_NOWAIT).build();
            // SAFETY: the entry points to two vectors in `self.vectors`. These point to a header in `self.headers` and
            // to a packet's bytes. All are borrowed until this function returns. Before that, the kernel has completed
            // each entry that it took (`complete`, which runs in any case), and the others have gone with the ring.
            // There is room: the queue has WRITES entries and is empty when a call begins, because the last call left
            // either no entry or no ring.
            if unsafe { queue.push(&entry.user_data(index as u64)) }.is_err() {
                break;
            }
        }
        drop(queue);
        let results = &mut self.results[..packets.len()];
        results.fill(-libc::ECANCELED);
        match complete(ring, results) {
            Ok(()) => {}
            Err(Refusal { error, taken }) => {
                self.ring = None;
                if taken == 0 {
                    return Err(error);
                }
            }
        }
        Ok(&self.results[..packets.len()])
    }
}

/// The error that the kernel does not take the queued entries.
struct Refusal {
    error: io::Error,
    /// The number of entries of the call that the kernel took before.
    taken: usize,
}

/// Submits the queued entries and waits until the kernel has completed all entries that it took. Writes their results
/// into `results`. A [`Refusal`] leaves entries in the queue.
fn complete(ring: &mut IoUring, results: &mut [i32]) -> Result<(), Refusal> {
    let queued = ring.submission().len();
    let mut completed = 0;
    let mut refused = None;
    loop {
        for entry in ring.completion() {
            if let Some(result) = results.get_mut(entry.user_data() as usize) {
                *result = entry.result();
            }
            completed += 1;
        }
        let taken = queued - ring.submission().len();
        if completed == taken && (taken == queued || refused.is_some()) {
            return match refused {
                Some(error) if taken < queued => Err(Refusal { error, taken }),
                _ => Ok(()),
            };
        }
        let entered = if refused.is_none() {
            ring.submit_and_wait(queued - completed)
        } else {
            let wait = EnterFlags::GETEVENTS.bits();
            // SAFETY: nothing is submitted and no argument is given: the call only waits for a completion.
            unsafe { ring.submitter().enter::<libc::sigset_t>(0, 1, wait, None) }
        };
        match entered {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => refused = Some(error),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::packet::Pool;
    use manx_fixtures::skip::{Need, skip};

    #[test]
    fn the_answer_is_one_of_the_documented_ones() {
        if let Err(error) = available() {
            assert!(
                matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EACCES)),
                "{error}"
            );
        }
    }

    /// A ring, a pipe for it to write to, and packets of one byte each. `None` if the kernel provides no ring.
    fn ring() -> Option<(Writes<1>, io::PipeReader, io::PipeWriter, Vec<Packet>)> {
        let ring = match Writes::new() {
            Ok(ring) => ring,
            Err(error) => {
                assert!(available().is_err(), "{error}");
                skip(Need::Ring, "a ring", &error.to_string());
                return None;
            }
        };
        let (reader, writer) = io::pipe().unwrap();
        let mut pool = Pool::new(8);
        let packets = (1..=8).map(|n| pool.take_filled(&[n]).unwrap()).collect();
        Some((ring, reader, writer, packets))
    }

    fn written(mut reader: impl Read, writer: io::PipeWriter) -> Vec<u8> {
        drop(writer);
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn packets_are_written_in_order_and_a_bad_descriptor_is_each_ones_result() {
        let Some((mut ring, reader, writer, packets)) = ring() else { return };
        let read_only = File::open("/dev/null").unwrap();
        let results = ring.write(read_only.as_fd(), &packets, |_| [0]).unwrap();
        assert_eq!(results, [-libc::EBADF; 8]);
        assert_eq!(ring.write(writer.as_fd(), &packets[..3], |_| [9]).unwrap(), [2; 3]);
        assert_eq!(written(reader, writer), [9, 1, 9, 2, 9, 3]);
    }

    #[test]
    fn a_header_that_panics_leaves_nothing_in_the_ring() {
        let Some((mut ring, reader, writer, packets)) = ring() else { return };
        let broken = catch_unwind(AssertUnwindSafe(|| {
            let header = |packet: &Packet| if packet.bytes() == [3] { panic!() } else { [0] };
            ring.write(writer.as_fd(), &packets, header).map(drop)
        }));
        assert!(broken.is_err());
        assert_eq!(ring.write(writer.as_fd(), &packets[6..], |_| [9]).unwrap(), [2; 2]);
        assert_eq!(written(reader, writer), [9, 7, 9, 8]);
    }

    #[test]
    fn a_packet_that_the_kernel_did_not_take_is_never_written() {
        let Some((mut writes, reader, writer, packets)) = ring() else { return };
        // A ring that is not enabled yet takes no entries (io_uring_setup(2), IORING_SETUP_R_DISABLED).
        writes.ring = Some(IoUring::builder().setup_r_disabled().build(WRITES as u32).unwrap());
        let error = writes.write(writer.as_fd(), &packets[..4], |_| [0]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADFD));
        drop(packets);
        if let Some(ring) = &writes.ring {
            ring.submitter().register_enable_rings().unwrap();
        }
        let more = [Pool::new(1).take_filled(&[8]).unwrap()];
        let again = writes.write(writer.as_fd(), &more, |_| [9]).map(<[i32]>::to_vec);
        assert_eq!(written(reader, writer), []);
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::NotConnected);
    }
}
