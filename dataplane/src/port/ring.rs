//! Receives from a packet socket with a ring. Small packets are copied from its slots, and others are received from the
//! socket, in the order in which they arrived.
//!
//! A ring also costs the sender less: the kernel copies a small frame instead of cloning and queueing it, and wakes no
//! thread unless one sleeps on the socket.
//!
//! A frame that no virtio header can describe blocks a ring (a super-packet of SCTP; before Linux 6.2, also of UDP).
//! The kernel keeps the slot that it took for the frame, and drops all later frames. An empty ring that loses frames is
//! blocked in this way, and the port detaches it.

use std::io;
use std::os::fd::BorrowedFd;

use super::datagram::{Datagrams, is_interface_gone};
use super::{Disposition, Received};
use crate::packet::{Packet, Pool};
use crate::sys::batch::{HEAD_LEN, Head};
use crate::sys::clock::ticks;
use crate::sys::ring::{ReceiveRing, Slot, lost};
use crate::sys::socket;

/// The number of ticks (about a millisecond) between two checks of the socket of an empty ring.
const PATIENCE: u64 = 1 << 21;

/// A ring, and the state of the last check of its socket.
#[derive(Debug)]
pub(super) struct Ring {
    slots: ReceiveRing,
    /// When the socket was last checked, in [`ticks`].
    asked: u64,
    /// Whether nothing has arrived since the last check.
    silent: bool,
    stuck: bool,
}

impl Ring {
    /// Gives a packet socket a ring, if the kernel provides one. The errors are those of [`ReceiveRing::attach`].
    pub(super) fn attach(fd: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let ring = |slots| Self { slots, asked: ticks(), silent: false, stuck: false };
        Ok(ReceiveRing::attach(fd)?.map(ring))
    }

    /// Whether the ring receives nothing until it is detached.
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// Detaches the ring from its socket.
    pub(super) fn detach(self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.slots.detach(fd)
    }

    /// Receives like [`Datagrams::receive`]; `datagrams` belongs to the ring's own socket.
    pub(super) fn receive(
        &mut self,
        datagrams: &mut Datagrams,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
        limit: usize,
        mut accept: impl FnMut(&Head, &mut Packet, BorrowedFd<'_>) -> Disposition,
    ) -> io::Result<Received> {
        let mut received = Received::default();
        let mut left = limit;
        while left > 0 {
            let slot = self.slots.peek(0);
            self.silent &= slot.is_none();
            match slot {
                None => {
                    received.drained = true;
                    break;
                }
                // The socket had no room for this frame, so it was lost before it arrived here.
                Some(Slot::Cut) => self.slots.release(1),
                Some(Slot::Queued) => {
                    let follows = |ahead: &usize| self.slots.peek(*ahead) == Some(Slot::Queued);
                    let wanted = 1 + (1..left).take_while(follows).count();
                    let before = into.len();
                    let queued = datagrams.receive(pool, into, wanted, &mut accept)?;
                    let judged = queued.malformed + queued.not_ours + queued.answered;
                    let came = into.len() - before + judged;
                    received.malformed += queued.malformed;
                    received.not_ours += queued.not_ours;
                    received.answered += queued.answered;
                    // If the socket is empty, the frame of a remaining slot is lost, too.
                    self.slots.release(if queued.drained { wanted } else { came });
                    left -= came;
                    if came == 0 && !queued.drained {
                        break;
                    }
                }
                Some(Slot::Whole(frame)) => {
                    let Some(mut packet) = pool.take() else { break };
                    let judged = match frame.split_first_chunk::<HEAD_LEN>() {
                        Some((head, bytes)) => {
                            packet.room_mut()[..bytes.len()].copy_from_slice(bytes);
                            packet.set_len(bytes.len());
                            accept(head, &mut packet, datagrams.fd())
                        }
                        None => Disposition::Malformed,
                    };
                    self.slots.release(1);
                    left -= 1;
                    judged.account(packet, &mut received, pool, into);
                }
            }
        }
        if received.drained && left == limit && ticks().wrapping_sub(self.asked) > PATIENCE {
            self.check_socket(datagrams.fd())?;
        }
        Ok(received)
    }

    /// Checks the socket of an empty ring. Returns an error if its interface has been deleted.
    fn check_socket(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        is_there(fd)?;
        // A ring that was empty at the last check and ever since was never full, so it has no reason to lose frames.
        let loses = lost(fd)? > 0;
        self.stuck = self.silent && loses && self.slots.peek(0).is_none();
        self.silent = true;
        self.asked = ticks();
        Ok(())
    }
}

/// Returns an error if the socket's interface has been deleted. An interface that is down is no error. The socket
/// reports each of the two only once, so the interface is checked, too.
fn is_there(fd: BorrowedFd<'_>) -> io::Result<()> {
    match socket::option(fd, libc::SOL_SOCKET, libc::SO_ERROR)? {
        0 | libc::ENETDOWN if !is_interface_gone(fd) => Ok(()),
        0 => Err(io::Error::from_raw_os_error(libc::ENODEV)),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}
