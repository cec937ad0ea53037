//! The receive ring of a packet socket: the kernel fills slots of shared memory, and this program reads them without a
//! system call (Linux, `packet_mmap.rst`; `TPACKET_V2`).

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use super::check;
use super::socket::set_option;

/// The size of a slot in bytes: 76 bytes of the kernel, which end with the virtio header of ten bytes, and a frame of
/// up to 180.
const SLOT: usize = 256;
/// The number of slots of a ring: about as many packets as a device keeps for a busy reader.
pub const SLOTS: usize = 512;
/// The number of bytes that the kernel allocates in one piece: a multiple of every existing page size.
const BLOCK: usize = 64 << 10;
const BYTES: usize = SLOT * SLOTS;
/// The length of a virtio header in bytes (virtio 1.2, 5.1.6, without `num_buffers`).
const VIRTIO_LEN: usize = 10;
const TO_THE_KERNEL: u32 = 0;

/// The content of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot<'a> {
    /// A whole frame after its virtio header.
    Whole(&'a [u8]),
    /// The beginning of a frame that is too long for a slot. The socket delivers the whole frame next.
    Queued,
    /// The beginning of such a frame, for which the socket had no room.
    Cut,
}

/// A ring of [`SLOTS`] slots, and where the next frame will be.
#[derive(Debug)]
pub struct ReceiveRing {
    first: NonNull<u8>,
    next: usize,
}

// SAFETY: it owns its mapping alone, and reads only slots that the kernel has released.
unsafe impl Send for ReceiveRing {}

impl ReceiveRing {
    /// Gives a packet socket with virtio headers a ring. Frames that were queued on the socket before are lost. Returns
    /// `None` if the kernel provides no ring (no memory; before Linux 4.6). Then the socket queues everything as
    /// before.
    ///
    /// Returns an error if the socket has a ring that can be neither read nor detached, so that it queues nothing.
    pub fn attach(fd: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        if Self::ask_for(fd).is_err() {
            return Ok(None);
        }
        // SAFETY: a mapping at an address of the kernel's choice touches no memory of ours.
        let address = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), BYTES, access, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        match NonNull::new(address.cast()) {
            Some(first) if address != libc::MAP_FAILED => Ok(Some(Self { first, next: 0 })),
            _ => set_slots(fd, 0).map(|()| None),
        }
    }

    fn ask_for(fd: BorrowedFd<'_>) -> io::Result<()> {
        let version = libc::tpacket_versions::TPACKET_V2 as c_int;
        set_option(fd, libc::SOL_PACKET, libc::PACKET_VERSION, version)?;
        // With any number except 0, a frame that is too long for a slot is queued whole.
        set_option(fd, libc::SOL_PACKET, libc::PACKET_COPY_THRESH, 1)?;
        set_slots(fd, SLOTS)
    }

    /// Detaches the ring from its socket, which queues everything again.
    pub fn detach(self, fd: BorrowedFd<'_>) -> io::Result<()> {
        drop(self);
        set_slots(fd, 0)
    }

    /// The slot `ahead` places (less than [`SLOTS`]) after the next one, if the kernel has filled it.
    #[inline]
    pub fn peek(&self, ahead: usize) -> Option<Slot<'_>> {
        let status = self.status(ahead).load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        if status & libc::TP_STATUS_COPY != 0 {
            return Some(Slot::Queued);
        }
        let slot = self.slot(ahead);
        // SAFETY: the slot lies in the mapping, which lives as long as `self`, and is aligned to 16 bytes. The kernel
        // wrote it before it set the status that was read. It writes no more until `release`, which borrows `self`
        // mutably.
        let bytes = unsafe { std::slice::from_raw_parts(slot.as_ptr(), SLOT) };
        // SAFETY: as above; a `tpacket2_hdr` is integers, and shorter than a slot.
        let header = unsafe { slot.cast::<libc::tpacket2_hdr>().as_ref() };
        let start = usize::from(header.tp_mac).saturating_sub(VIRTIO_LEN);
        let end = usize::from(header.tp_mac) + header.tp_snaplen as usize;
        match bytes.get(start..end) {
            Some(frame) if header.tp_snaplen == header.tp_len => Some(Slot::Whole(frame)),
            Some(_) | None => Some(Slot::Cut),
        }
    }

    /// Returns the next `count` slots, which the kernel has filled, to the kernel.
    #[inline]
    pub fn release(&mut self, count: usize) {
        for _ in 0..count {
            self.status(0).store(TO_THE_KERNEL, Ordering::Release);
            self.next = (self.next + 1) % SLOTS;
        }
    }

    #[inline]
    fn slot(&self, ahead: usize) -> NonNull<u8> {
        // SAFETY: the remainder is below SLOTS, so the address lies in the mapping of BYTES.
        unsafe { self.first.add((self.next + ahead) % SLOTS * SLOT) }
    }

    #[inline]
    fn status(&self, ahead: usize) -> &AtomicU32 {
        // SAFETY: a slot begins with `tp_status`, four aligned bytes in a mapping that lives as long as `self`. The
        // kernel changes it atomically, too.
        unsafe { AtomicU32::from_ptr(self.slot(ahead).cast().as_ptr()) }
    }
}

impl Drop for ReceiveRing {
    fn drop(&mut self) {
        // SAFETY: this is exactly the range that `attach` mapped, and no borrow outlives `self`.
        unsafe { libc::munmap(self.first.as_ptr().cast(), BYTES) };
    }
}

/// The number of frames since the last call for which a packet socket had no room (`PACKET_STATISTICS`).
pub fn lost(fd: BorrowedFd<'_>) -> io::Result<u32> {
    // A `tpacket_stats`: the number of frames that arrived, and the number of those that were dropped.
    let mut counts = [0u32; 2];
    let mut len = size_of_val(&counts) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `counts` and the true length into `len`; both live until the
    // call returns.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut counts).cast(),
            &raw mut len,
        )
    })?;
    Ok(counts[1])
}

fn set_slots(fd: BorrowedFd<'_>, slots: usize) -> io::Result<()> {
    let request = libc::tpacket_req {
        tp_block_size: if slots == 0 { 0 } else { BLOCK as u32 },
        tp_block_nr: (slots * SLOT / BLOCK) as u32,
        tp_frame_size: if slots == 0 { 0 } else { SLOT as u32 },
        tp_frame_nr: slots as u32,
    };
    // SAFETY: the kernel reads one `tpacket_req`, which lives until the call returns.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_RX_RING,
            (&raw const request).cast(),
            size_of::<libc::tpacket_req>() as libc::socklen_t,
        )
    })?;
    Ok(())
}
