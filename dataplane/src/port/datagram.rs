//! What the ports over sockets share: batches in and out of one descriptor.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use super::{Intake, Received, Transmitted};
use crate::packet::{Packet, Pool};
use crate::sys::batch::{Batch, Head};
use crate::sys::socket;

/// Datagrams a system call: beyond this the call's own cost no longer shows.
const BATCH: usize = 64;
/// Buffers offered to a port that was quiet the last time.
const BATCH_MIN: usize = 4;
/// How often a whole batch yields to a full queue before its packets are refused.
const RETRIES: usize = 2;

/// What a port makes of a received datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Disposition {
    /// Handed up.
    Ours,
    /// See [`Received::malformed`].
    Malformed,
    /// See [`Received::not_ours`].
    NotOurs,
    /// See [`Received::answered`].
    Answered,
}

impl Disposition {
    /// Hands the packet up, or counts it and gives its buffer back.
    #[inline]
    pub(super) fn settle(
        self,
        packet: Packet,
        received: &mut Received,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
    ) {
        match self {
            Self::Ours => {
                into.push(packet);
                return;
            }
            Self::Malformed => received.malformed += 1,
            Self::NotOurs => received.not_ours += 1,
            Self::Answered => received.answered += 1,
        }
        pool.put(packet);
    }
}

/// How the port puts a packet into a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// To where the socket is bound.
    Bound,
    /// To this address.
    To(Ipv4Addr),
}

/// A socket with its arrays.
#[derive(Debug)]
pub(super) struct Datagrams {
    fd: OwnedFd,
    batch: Batch,
    scratch: Vec<Packet>,
    expected: usize,
    heads: HeadLen,
}

/// Bytes of a datagram that lie in the batch's heads instead of the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeadLen {
    pub(super) receive: usize,
    pub(super) transmit: usize,
}

impl Datagrams {
    pub(super) fn new(fd: OwnedFd, heads: HeadLen) -> Self {
        Self {
            fd,
            batch: Batch::new(BATCH),
            scratch: Vec::with_capacity(BATCH),
            expected: BATCH_MIN,
            heads,
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(super) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Reads up to `limit` datagrams and appends those that `judge` finds ours.
    ///
    /// How many buffers are offered follows what came the last time, so that a quiet port does not pay for a full batch, and
    /// one whose packets are large or many in one brings few of them.
    pub(super) fn receive(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
        limit: usize,
        mut accept: impl FnMut(&Head, &mut Packet, BorrowedFd<'_>) -> Disposition,
    ) -> io::Result<Received> {
        let mut received = Received::default();
        let mut intake = Intake::default();
        let mut left = limit;
        while left > 0 && !received.drained && !intake.is_enough() {
            let wanted = left.min(self.expected);
            while self.scratch.len() < wanted
                && let Some(packet) = pool.take()
            {
                self.scratch.push(packet);
            }
            if self.scratch.is_empty() {
                break;
            }
            let offered = self.scratch.len();
            let outcome =
                self.batch.receive(self.fd.as_fd(), self.heads.receive, &mut self.scratch);
            let got = outcome.as_ref().map_or(0, |&got| got);
            for (i, mut packet) in self.scratch.drain(..).enumerate() {
                if i >= got {
                    pool.put(packet);
                    continue;
                }
                // Whoever it is for: to receive it took its time.
                intake.add(&packet);
                let judged = if self.batch.is_whole(i, self.heads.receive) {
                    accept(self.batch.head(i), &mut packet, self.fd.as_fd())
                } else {
                    Disposition::Malformed
                };
                judged.settle(packet, &mut received, pool, into);
            }
            match outcome {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                // The kernel has dropped a packet that no virtio header can describe.
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                    received.malformed += 1;
                    left -= 1;
                    continue;
                }
                // Reported once when the interface goes down; it may come up again.
                Err(e)
                    if e.raw_os_error() == Some(libc::ENETDOWN)
                        && !is_interface_gone(self.fd.as_fd()) =>
                {
                    continue;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    received.drained = true;
                    break;
                }
                Err(e) => return Err(e),
                Ok(_) => {}
            }
            left -= got;
            self.expected = if intake.is_enough() {
                BATCH_MIN
            } else if got < offered {
                (2 * got).clamp(BATCH_MIN, BATCH)
            } else if offered >= self.expected {
                BATCH
            } else {
                // All that was asked for came, and that was less than is expected.
                self.expected
            };
            // A call comes back short also when it has met an error behind what it took: that is told by the next one,
            // and more may wait behind it. What came is worth deciding before anybody asks.
            if got < offered {
                break;
            }
        }
        Ok(received)
    }

    /// Sends and empties `packets`. `prepare` fills a packet's head and says where it goes, or refuses it with `None`.
    ///
    /// To a full queue the processor is yielded [`RETRIES`] times a call. Then a full socket (`EAGAIN`) refuses what is left of
    /// its batch, and a full device (`ENOBUFS`) one packet, because it may take the next. Any other error concerns its packet
    /// alone, unless `fatal` says that it is the port's end.
    pub(super) fn transmit(
        &mut self,
        pool: &mut Pool,
        packets: &mut Vec<Packet>,
        mut prepare: impl FnMut(&mut Packet, &mut Head) -> Option<Route>,
        fatal: impl Fn(&io::Error) -> bool,
    ) -> io::Result<Transmitted> {
        let mut transmitted = Transmitted::default();
        let mut failure = None;
        let mut retries = RETRIES;
        let mut queue = packets.drain(..);
        loop {
            let mut addressed = false;
            while self.scratch.len() < BATCH
                && let Some(mut packet) = queue.next()
            {
                let i = self.scratch.len();
                match prepare(&mut packet, self.batch.head_mut(i)) {
                    Some(route) if failure.is_none() => {
                        if let Route::To(address) = route {
                            self.batch.set_destination(i, address);
                            addressed = true;
                        }
                        self.scratch.push(packet);
                    }
                    _ => {
                        transmitted.count(&packet, false);
                        pool.put(packet);
                    }
                }
            }
            if self.scratch.is_empty() {
                break;
            }
            let mut done = 0;
            while done < self.scratch.len() {
                let fd = self.fd.as_fd();
                let outcome = if addressed {
                    self.batch.send_to(fd, self.heads.transmit, &self.scratch, done)
                } else {
                    self.batch.send(fd, self.heads.transmit, &self.scratch, done)
                };
                match outcome {
                    Ok(sent) if sent > 0 => {
                        done += sent;
                        transmitted.sent += sent;
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) if retries > 0 && is_full(&e) => {
                        retries -= 1;
                        std::thread::yield_now();
                    }
                    Err(e) if fatal(&e) || e.kind() == io::ErrorKind::WouldBlock => {
                        for packet in &self.scratch[done..] {
                            transmitted.count(packet, false);
                        }
                        done = self.scratch.len();
                        failure = fatal(&e).then_some(e);
                    }
                    Ok(_) | Err(_) => {
                        transmitted.count(&self.scratch[done], false);
                        done += 1;
                    }
                }
            }
            for packet in self.scratch.drain(..) {
                pool.put(packet);
            }
        }
        failure.map_or(Ok(transmitted), Err)
    }
}

/// Whether the interface that a packet socket was bound to has been deleted.
pub(super) fn is_interface_gone(fd: BorrowedFd<'_>) -> bool {
    !matches!(socket::bound_link(fd), Ok(Some(_)))
}

fn is_full(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn a_short_batch_is_not_the_end_of_the_queue() {
        let (near, far) = UnixDatagram::pair().unwrap();
        let mut port = Datagrams::new(near.into(), HeadLen { receive: 0, transmit: 0 });
        let (mut pool, mut packets) = (Pool::new(16), Vec::new());
        let mut receive = |packets: &mut Vec<Packet>| {
            let received =
                port.receive(&mut pool, packets, 8, |_, _, _| Disposition::Ours).unwrap();
            (packets.len(), received.drained)
        };
        assert_eq!(receive(&mut packets), (0, true), "only the kernel's word is the end");
        far.send(&[1]).unwrap();
        far.send(&[2]).unwrap();
        assert_eq!(receive(&mut packets), (2, false), "an error may hide more");
        far.send(&[3]).unwrap();
        assert_eq!(receive(&mut packets), (3, false));
        assert_eq!(receive(&mut packets), (3, true));
    }

    /// What comes first after a silence is asked for alone.
    #[test]
    fn one_packet_alone_does_not_have_a_full_batch_expected() {
        let (near, far) = UnixDatagram::pair().unwrap();
        let mut port = Datagrams::new(near.into(), HeadLen { receive: 0, transmit: 0 });
        let (mut pool, mut packets) = (Pool::new(64), Vec::new());
        for limit in [BATCH, 1, BATCH] {
            far.send(&[1]).unwrap();
            let _ =
                port.receive(&mut pool, &mut packets, limit, |_, _, _| Disposition::Ours).unwrap();
            assert_eq!(port.expected, BATCH_MIN, "asked for {limit}");
        }
    }
}
