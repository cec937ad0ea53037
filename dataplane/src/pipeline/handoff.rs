//! Handoff: a packet that one worker has read goes to the worker that has its flow.
//!
//! Each worker has a mailbox of fixed size. A packet takes its buffer along. The receiver gives the sender an empty
//! buffer in exchange, so that each worker keeps its number of buffers. A full mailbox, or a sender with few buffers
//! left, means that the other worker does not keep up. Then the worker that has read the packet drops it.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};

use crossbeam::queue::ArrayQueue;
use mio::Waker;

use crate::encapsulation::Encapsulation;
use crate::flow::WorkerId;
use crate::packet::{Packet, Pool};
use crate::tables::PortId;

/// A packet on its way to the worker that has its flow. It holds no index into tables, because the two workers may have
/// different tables.
pub(crate) struct Handoff {
    pub(crate) packet: Packet,
    /// The number of packets on a wire that it stands for.
    pub(crate) segments: u32,
    /// The port at which it arrived.
    pub(crate) port: PortId,
    /// The remote end of the tunnel by which it arrived, if any.
    pub(crate) peer: Option<(Ipv4Addr, Encapsulation)>,
    /// The number of handoffs so far.
    pub(crate) handoffs: u8,
}

struct Mailbox {
    packets: ArrayQueue<(WorkerId, Handoff)>,
    /// Empty buffers in exchange for the buffers of packets that were handed off, each with the port at which its
    /// packet arrived.
    returned: ArrayQueue<(PortId, Packet)>,
    /// Whether the worker sleeps or is about to sleep.
    sleeps: AtomicBool,
    waker: OnceLock<Arc<Waker>>,
}

/// The workers of a node, from the view of one of them.
pub(crate) struct WorkerMesh {
    own: WorkerId,
    /// The mailboxes, one for each worker. Empty if there is only one worker.
    mailboxes: Arc<[Mailbox]>,
}

impl WorkerMesh {
    /// Creates the views of `workers` workers, in the order of their numbers. Each worker has `buffers` buffers, at
    /// least one.
    pub(crate) fn new(workers: usize, buffers: usize) -> Vec<Self> {
        let mailbox = |_| Mailbox {
            // There is room for all packets that eight other workers can hand off.
            packets: ArrayQueue::new((buffers * (workers - 1).min(8)).max(1)),
            // There is room for a buffer for each packet that this worker can hand off.
            returned: ArrayQueue::new(buffers.max(1)),
            sleeps: AtomicBool::new(false),
            waker: OnceLock::new(),
        };
        let mailboxes: Arc<[Mailbox]> = (0..workers).map(mailbox).collect();
        let numbers = (0..workers).map(|number| WorkerId(number as u8));
        numbers.map(|own| Self { own, mailboxes: Arc::clone(&mailboxes) }).collect()
    }

    /// The view of the only worker.
    pub(crate) fn alone() -> Self {
        Self { own: WorkerId(0), mailboxes: Arc::new([]) }
    }

    /// This worker's number.
    pub(crate) fn own(&self) -> WorkerId {
        self.own
    }

    /// The worker after this one, and the number of other workers.
    pub(crate) fn next_worker(&self) -> (WorkerId, u8) {
        let others = self.mailboxes.len().saturating_sub(1) as u8;
        let last = self.own.0 == others;
        (WorkerId(if last { 0 } else { self.own.0 + 1 }), others)
    }

    /// Sets the waker with which other workers wake this worker.
    pub(crate) fn set_waker(&self, waker: Arc<Waker>) {
        if let Some(own) = self.mailbox(self.own) {
            // The waker is set once.
            let _ = own.waker.set(waker);
        }
    }

    /// Puts a packet into a mailbox; a call of [`WorkerMesh::wake`] must follow. Returns the packet if the mailbox
    /// is full.
    #[must_use]
    pub(crate) fn send(&self, to: WorkerId, packet: Handoff) -> Option<Packet> {
        let refused = match self.mailbox(to) {
            Some(mailbox) => mailbox.packets.push((self.own, packet)).err()?.1,
            None => packet,
        };
        Some(refused.packet)
    }

    /// Wakes the workers that sleep although a packet waits in their mailboxes.
    pub(crate) fn wake(&self) {
        // Either the sleeping worker sees the packet before it sleeps, or this worker sees that it sleeps.
        fence(Ordering::SeqCst);
        for mailbox in &*self.mailboxes {
            if mailbox.sleeps.load(Ordering::Relaxed)
                && !mailbox.packets.is_empty()
                && mailbox.sleeps.swap(false, Ordering::Relaxed)
                && let Some(waker) = mailbox.waker.get()
            {
                // This fails if the other worker has ended, and then the process is ending, too.
                let _ = waker.wake();
            }
        }
    }

    /// Takes the next packet from the mailbox of this worker, and gives its sender an empty buffer. `None`: there is no
    /// packet or no buffer.
    #[inline]
    pub(crate) fn receive(&self, pool: &mut Pool) -> Option<Handoff> {
        let own = self.mailbox(self.own)?;
        if own.packets.is_empty() {
            return None;
        }
        self.receive_from(own, pool)
    }

    #[inline(never)]
    fn receive_from(&self, own: &Mailbox, pool: &mut Pool) -> Option<Handoff> {
        let empty = pool.take()?;
        let Some((from, packet)) = own.packets.pop() else {
            pool.put(empty);
            return None;
        };
        if let Some(sender) = self.mailbox(from) {
            // There is room for a buffer for each packet that the sender handed off.
            let _ = sender.returned.push((packet.port, empty));
        }
        Some(packet)
    }

    /// The number of packets that wait for this worker.
    #[inline]
    pub(crate) fn pending(&self) -> usize {
        self.mailbox(self.own).map_or(0, |own| own.packets.len())
    }

    /// Takes the empty buffers that other workers returned in exchange. Calls `back` with the port at which each packet
    /// arrived.
    #[inline]
    pub(crate) fn reclaim_buffers(&self, pool: &mut Pool, mut back: impl FnMut(PortId)) {
        let Some(own) = self.mailbox(self.own) else { return };
        // A test for emptiness costs less than a pop that finds nothing.
        while !own.returned.is_empty()
            && let Some((port, empty)) = own.returned.pop()
        {
            pool.put(empty);
            back(port);
        }
    }

    /// Marks this worker as about to sleep. Returns false if a packet waits for it; then it must not sleep.
    pub(crate) fn prepare_sleep(&self) -> bool {
        let Some(own) = self.mailbox(self.own) else { return true };
        own.sleeps.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let may = own.packets.is_empty();
        if !may {
            own.sleeps.store(false, Ordering::Relaxed);
        }
        may
    }

    /// Marks this worker as awake.
    pub(crate) fn end_sleep(&self) {
        if let Some(own) = self.mailbox(self.own) {
            own.sleeps.store(false, Ordering::Relaxed);
        }
    }

    #[inline]
    fn mailbox(&self, worker: WorkerId) -> Option<&Mailbox> {
        self.mailboxes.get(usize::from(worker.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUFFERS: usize = 8;

    fn handoff(pool: &mut Pool, mark: u8) -> Handoff {
        Handoff {
            packet: pool.take_filled(&[mark]).unwrap(),
            segments: 1,
            port: PortId(u16::from(mark)),
            peer: None,
            handoffs: 1,
        }
    }

    #[test]
    fn packets_arrive_in_order_and_no_worker_runs_out_of_buffers() {
        let [one, other] = <[WorkerMesh; 2]>::try_from(WorkerMesh::new(2, BUFFERS)).ok().unwrap();
        assert_eq!((one.next_worker(), other.next_worker()), ((WorkerId(1), 1), (WorkerId(0), 1)));
        let (mut ours, mut theirs) = (Pool::new(4), Pool::new(4));
        for round in 0..100 {
            for mark in 0..4 {
                let packet = handoff(&mut ours, mark);
                assert!(one.send(WorkerId(1), packet).is_none());
            }
            assert_eq!((ours.available(), theirs.available()), (0, 4), "round {round}");
            for mark in 0..4 {
                let taken = other.receive(&mut theirs).unwrap();
                assert_eq!((taken.packet.bytes(), taken.port), (&[mark][..], PortId(mark.into())));
                theirs.put(taken.packet);
            }
            assert!(other.receive(&mut theirs).is_none());
            let mut back = Vec::new();
            one.reclaim_buffers(&mut ours, |port| back.push(port.0));
            assert_eq!(back, [0, 1, 2, 3]);
            assert_eq!((ours.available(), theirs.available()), (4, 4), "round {round}");
        }
    }

    #[test]
    fn without_a_buffer_to_give_nothing_is_taken_and_a_full_mailbox_refuses() {
        let [one, other] = <[WorkerMesh; 2]>::try_from(WorkerMesh::new(2, BUFFERS)).ok().unwrap();
        let mut ours = Pool::new(BUFFERS + 1);
        for _ in 0..BUFFERS {
            assert!(one.send(WorkerId(1), handoff(&mut ours, 7)).is_none());
        }
        let back = one.send(WorkerId(1), handoff(&mut ours, 8)).unwrap();
        assert_eq!(back.bytes(), [8]);
        assert!(other.receive(&mut Pool::new(0)).is_none());
        assert!(other.receive(&mut Pool::new(1)).is_some(), "it waited");
    }

    #[test]
    fn a_worker_with_packets_does_not_sleep_and_a_sleeping_worker_is_woken() {
        let [one, other] = <[WorkerMesh; 2]>::try_from(WorkerMesh::new(2, BUFFERS)).ok().unwrap();
        let mut pool = Pool::new(4);
        let mut poll = mio::Poll::new().unwrap();
        let mut events = mio::Events::with_capacity(4);
        other.set_waker(Arc::new(Waker::new(poll.registry(), mio::Token(0)).unwrap()));
        assert!(other.prepare_sleep());
        one.wake();
        let nothing = Some(std::time::Duration::ZERO);
        poll.poll(&mut events, nothing).unwrap();
        assert!(events.is_empty(), "no packet waits for this worker");
        assert!(one.send(WorkerId(1), handoff(&mut pool, 1)).is_none());
        one.wake();
        poll.poll(&mut events, nothing).unwrap();
        assert_eq!(events.iter().count(), 1);
        other.end_sleep();
        assert!(!other.prepare_sleep());
        one.wake();
        poll.poll(&mut events, nothing).unwrap();
        assert!(events.is_empty(), "the worker is awake");
    }

    #[test]
    fn a_single_worker_has_no_mailbox() {
        let alone = WorkerMesh::alone();
        let mut pool = Pool::new(1);
        assert_eq!(alone.next_worker(), (WorkerId(0), 0));
        assert!(alone.send(WorkerId(0), handoff(&mut pool, 1)).is_some());
        assert!(alone.receive(&mut pool).is_none() && alone.prepare_sleep());
    }
}
