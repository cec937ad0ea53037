//! Packets of a packet socket with a ring: small ones are copied out of its slots, the others received from the socket, in the order in
//! which they came.
//!
//! A ring costs its port's sender less, too: the kernel copies a small frame instead of cloning and queueing it, and where nobody
//! sleeps on the socket it wakes nobody.
//!
//! A frame that no virtio header can describe (a super-packet of SCTP; before Linux 6.2, of UDP) stops a ring: the kernel keeps the slot
//! that it had taken for it, and drops whatever comes after it. An empty ring that loses frames is stuck in this way, and its owner takes
//! it away.

use std::io;
use std::os::fd::BorrowedFd;

use super::Received;
use super::datagram::{Datagrams, Disposition, is_interface_gone};
use crate::packet::{Packet, Pool};
use crate::sys::batch::{HEAD_LEN, Head};
use crate::sys::clock::ticks;
use crate::sys::ring::{ReceiveRing, Slot, lost};
use crate::sys::socket;

/// Ticks (about a millisecond) between two questions to the socket of a ring that is found empty.
const PATIENCE: u64 = 1 << 21;

/// A ring, and what its socket was asked last.
#[derive(Debug)]
pub(super) struct Ring {
    slots: ReceiveRing,
    /// When, in [`ticks`].
    asked: u64,
    /// Nothing has come since.
    silent: bool,
    stuck: bool,
}

impl Ring {
    /// Gives a packet socket a ring, if the kernel has one. Errors: [`ReceiveRing::attach`].
    pub(super) fn attach(fd: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let ring = |slots| Self { slots, asked: ticks(), silent: false, stuck: false };
        Ok(ReceiveRing::attach(fd)?.map(ring))
    }

    /// Whether nothing will come any more unless the ring is taken away.
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// Takes it away again.
    pub(super) fn detach(self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.slots.detach(fd)
    }

    /// As [`Datagrams::receive`], whose socket's ring this is.
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
                // As a frame for which a queue has no room: lost before it came here.
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
                    // A slot whose frame is not in the queue either is none to wait for.
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
                    judged.settle(packet, &mut received, pool, into);
                }
            }
        }
        if received.drained && left == limit && ticks().wrapping_sub(self.asked) > PATIENCE {
            self.check_socket(datagrams.fd())?;
        }
        Ok(received)
    }

    /// Asks the socket of an empty ring how it is. Errors: its interface has been deleted.
    fn check_socket(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        is_there(fd)?;
        // A ring that has been empty ever since the last question and still is has never been full.
        let loses = lost(fd)? > 0;
        self.stuck = self.silent && loses && self.slots.peek(0).is_none();
        self.silent = true;
        self.asked = ticks();
        Ok(())
    }
}

/// An error if the socket's interface has been deleted; that it is down is none, and the socket may have told that already.
fn is_there(fd: BorrowedFd<'_>) -> io::Result<()> {
    match socket::option(fd, libc::SOL_SOCKET, libc::SO_ERROR)? {
        0 | libc::ENETDOWN if !is_interface_gone(fd) => Ok(()),
        0 => Err(io::Error::from_raw_os_error(libc::ENODEV)),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}
