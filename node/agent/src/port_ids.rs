//! Port numbers. A number is used again when nothing can refer to its old port any more.
//!
//! Two things may still refer to a detached port: tables that a worker uses, and a worker's report of the port's failure,
//! which the control loop has not read yet. (Flow entries refer to attachments, not to ports.) So after its
//! [`Detach`](manx_dataplane::worker::Command::Detach) a number rests until every worker has handed back the tables that
//! were the last ones then. A worker hands these back only after it has detached the port, and the control loop has read
//! its earlier reports by then. (If one worker has handed off packets of the old port to another, they are dropped before
//! that worker attaches the new port.)

use std::collections::{BTreeSet, VecDeque};

use manx_dataplane::tables::PortId;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct PortIds {
    /// The lowest number that was never used; 65,536 if all were.
    next: u32,
    free: BTreeSet<PortId>,
    /// Detached ports, each with the version of the last tables at that time, ascending.
    resting: VecDeque<(PortId, u64)>,
}

impl PortIds {
    /// Takes a free number. Returns `None` if all 65,536 are in use or rest.
    pub(super) fn take(&mut self) -> Option<PortId> {
        self.free.pop_first().or_else(|| {
            let id = u16::try_from(self.next).ok()?;
            self.next += 1;
            Some(PortId(id))
        })
    }

    /// Records that a port was detached after tables of this version, which do not name it, were published.
    pub(super) fn rest(&mut self, id: PortId, version: u64) {
        self.resting.push_back((id, version));
    }

    /// Records that no worker uses tables of this version any more.
    pub(super) fn retired(&mut self, version: u64) {
        let rested = self.resting.partition_point(|(_, last)| *last <= version);
        self.free.extend(self.resting.drain(..rested).map(|(id, _)| id));
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::fd::RawFd;
    use std::sync::Arc;
    use std::time::Duration;

    use manx_dataplane::counters::{PortCounters, WorkerCounters};
    use manx_dataplane::packet::Capabilities;
    use manx_dataplane::packet::{Packet, Pool};
    use manx_dataplane::pipeline::Sizes;
    use manx_dataplane::port::{PacketIo, Received, Transmitted};
    use manx_dataplane::report::Report;
    use manx_dataplane::tables::Tables;
    use manx_dataplane::worker::{Command, Polling, Settings, SharedState, Worker};

    use super::*;

    /// A device that fails at once.
    struct Broken;

    impl PacketIo for Broken {
        fn receive(&mut self, _: &mut Pool, _: &mut Vec<Packet>, _: usize) -> io::Result<Received> {
            Err(io::Error::other("broken"))
        }

        fn transmit(&mut self, _: &mut Pool, _: &mut Vec<Packet>) -> io::Result<Transmitted> {
            Ok(Transmitted::default())
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities::ALL
        }

        fn descriptor(&self) -> Option<RawFd> {
            None
        }

        fn unwrapped(self: Box<Self>) -> Box<dyn PacketIo> {
            self
        }
    }

    #[test]
    fn more_attachments_than_numbers_and_none_is_taken_for_another() {
        let (commands, obeyed) = crossbeam::channel::unbounded();
        let (sender, reports) = crossbeam::channel::unbounded();
        let settings = Settings {
            sizes: Sizes { flows: 64, translates: false, buffers: 4, fragments: 4 },
            polling: Polling::Busy,
            core: None,
        };
        let counters = Arc::new(WorkerCounters::default());
        let mut worker =
            Worker::new(settings, SharedState::alone().unwrap(), obeyed, sender, counters).unwrap();
        let mut ids = PortIds::default();
        let mut version = 0;
        let closed = Tables::closed();
        let mut publish = || {
            version += 1;
            let tables = Tables { version, ..closed.clone() };
            commands.send(Command::Publish(Arc::new(tables))).unwrap();
            version
        };
        // The ports whose failure the worker may have reported, but whose report the control loop has not read.
        let mut meant = BTreeSet::new();
        let mut highest = PortId(0);
        for round in 0..70_000_u32 {
            let id = ids.take().unwrap();
            assert!(!meant.contains(&id), "round {round}: {id:?} may be taken for the failed one");
            highest = highest.max(id);
            let attach = Command::Attach(id, Box::new(Broken), Arc::new(PortCounters::default()));
            commands.send(attach).unwrap();
            publish();
            if round % 3 == 0 {
                assert!(worker.run_commands(Duration::ZERO));
                worker.turn(Duration::from_secs(1));
            }
            // Commands that are not executed yet are reported later.
            meant.insert(id);
            let last = publish();
            commands.send(Command::Detach(id, None)).unwrap();
            ids.rest(id, last);
            if round % 100 == 0 {
                assert!(worker.run_commands(Duration::ZERO));
                for report in reports.try_iter() {
                    match report {
                        Report::PortLost(id, _) => assert!(meant.contains(&id)),
                        Report::Retired(tables, _) => ids.retired(tables.version),
                        other => panic!("{other:?}"),
                    }
                }
                // All ports except the last one, after whose detachment nothing was published.
                meant = BTreeSet::from([id]);
            }
        }
        assert!(highest < PortId(500), "{highest:?}");
    }

    #[test]
    fn without_tables_handed_back_numbers_run_out_and_none_is_given_twice() {
        let mut ids = PortIds::default();
        let mut given = BTreeSet::new();
        while let Some(id) = ids.take() {
            assert!(given.insert(id));
            ids.rest(id, 7);
        }
        assert_eq!(given.len(), 1 << 16);
        ids.retired(6);
        assert_eq!(ids.take(), None);
        ids.retired(7);
        assert_eq!(ids.take(), Some(PortId(0)));
    }
}
