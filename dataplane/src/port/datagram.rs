//! Receives and sends batches with one descriptor, for all ports that use sockets.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use super::{Disposition, Intake, Received, Transmitted};
use crate::packet::{Packet, Pool};
use crate::sys::batch::{Batch, Head};
use crate::sys::socket;

/// The number of datagrams per system call. With more, the cost of the call itself no longer matters.
const BATCH: usize = 64;
/// The number of buffers that are offered to a port that was quiet at the last receive.
const BATCH_MIN: usize = 4;
/// The number of times that a batch yields the processor because of a full queue before its packets are refused.
const RETRIES: usize = 2;

/// How the port puts a packet into a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// To the address that the socket is bound to.
    Bound,
    /// To this address.
    To(Ipv4Addr),
}

/// A socket, with the arrays for its system calls.
#[derive(Debug)]
pub(super) struct Datagrams {
    fd: OwnedFd,
    batch: Batch,
    scratch: Vec<Packet>,
    expected: usize,
    heads: HeadLen,
}

/// The number of bytes of a datagram that lie in the heads of the batch instead of in the packet.
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

    /// Reads up to `limit` datagrams and appends those for which `accept` returns [`Disposition::Ours`].
    ///
    /// It offers the kernel about as many buffers as the last receive returned datagrams. So a quiet port does not pay
    /// for a full batch, and a port with large packets or super-packets receives few at once.
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
                // A packet that is not accepted took time to receive, too.
                intake.add(&packet);
                let judged = if self.batch.is_whole(i, self.heads.receive) {
                    accept(self.batch.head(i), &mut packet, self.fd.as_fd())
                } else {
                    Disposition::Malformed
                };
                judged.account(packet, &mut received, pool, into);
            }
            match outcome {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                // The kernel has dropped a packet that no virtio header can describe.
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                    received.malformed += 1;
                    left -= 1;
                    continue;
                }
                // The kernel reports this error once when the interface goes down. The interface may come up again.
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
                // All buffers were filled, but fewer were offered than expected.
                self.expected
            };
            // A call also returns fewer datagrams than buffers if an error follows them. The next call reports that
            // error, and more packets may wait after it. The packets received so far are decided first.
            if got < offered {
                break;
            }
        }
        Ok(received)
    }

    /// Sends and empties `packets`. `prepare` fills a packet's head and returns its destination, or `None` to refuse
    /// the packet.
    ///
    /// If a queue is full, the call yields the processor, up to [`RETRIES`] times. If the socket is still full
    /// (`EAGAIN`), the rest of its batch is refused. If the device is full (`ENOBUFS`), one packet is refused, because
    /// the device may take the next one. Any other error refuses only its own packet, unless `fatal` says that the port
    /// has failed.
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

    /// The first packet after a silence is received alone, so it must not lead to the expectation of a full batch.
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
