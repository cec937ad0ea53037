//! Packets of a packet socket with a ring: small ones are copied out of its slots, the others received from the socket, in the order in
//! which they came.
//!
//! A ring costs its port's sender less, too: the kernel copies a small frame instead of cloning and queueing it, and where nobody
//! sleeps on the socket it wakes nobody.

use std::io;
use std::os::fd::BorrowedFd;

use super::Received;
use super::datagram::{Datagrams, Judged, gone};
use crate::packet::{Packet, Pool};
use crate::sys::batch::{HEAD_LEN, Head};
use crate::sys::ring::{ReceiveRing, Slot};
use crate::sys::socket;

/// How often in a row a ring is found empty before the socket is asked whether its interface is still there.
const EMPTY: u32 = 1 << 10;

/// A ring, and how often in a row it was empty.
#[derive(Debug)]
pub(super) struct Ring {
    slots: ReceiveRing,
    empty: u32,
}

impl Ring {
    /// Gives a packet socket a ring. Errors: [`ReceiveRing::attach`].
    pub(super) fn attach(fd: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self { slots: ReceiveRing::attach(fd)?, empty: 0 })
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
        mut judge: impl FnMut(&Head, &mut Packet, BorrowedFd<'_>) -> Judged,
    ) -> io::Result<Received> {
        let mut received = Received::default();
        let mut left = limit;
        while left > 0 {
            match self.slots.look(0) {
                None => {
                    received.drained = true;
                    break;
                }
                // As a frame for which a queue has no room: lost before it came here.
                Some(Slot::Cut) => self.slots.release(1),
                Some(Slot::Queued) => {
                    let follows = |ahead: &usize| self.slots.look(*ahead) == Some(Slot::Queued);
                    let wanted = 1 + (1..left).take_while(follows).count();
                    let before = into.len();
                    let queued = datagrams.receive(pool, into, wanted, &mut judge)?;
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
                            judge(head, &mut packet, datagrams.fd())
                        }
                        None => Judged::Malformed,
                    };
                    self.slots.release(1);
                    left -= 1;
                    match judged {
                        Judged::Ours => {
                            into.push(packet);
                            continue;
                        }
                        Judged::Malformed => received.malformed += 1,
                        Judged::NotOurs => received.not_ours += 1,
                        Judged::Answered => received.answered += 1,
                    }
                    pool.put(packet);
                }
            }
        }
        self.empty = if received.drained && left == limit { self.empty + 1 } else { 0 };
        if self.empty == EMPTY {
            self.empty = 0;
            is_there(datagrams.fd())?;
        }
        Ok(received)
    }
}

/// An error if the socket's interface has been deleted; that it is down is none.
fn is_there(fd: BorrowedFd<'_>) -> io::Result<()> {
    match socket::option(fd, libc::SOL_SOCKET, libc::SO_ERROR)? {
        0 => Ok(()),
        error if error == libc::ENETDOWN && !gone(fd) => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}
