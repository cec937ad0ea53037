//! `manx capture`: a wrapper around a port copies its packets, and the copies become a pcapng file. The wrapper is removed
//! when the reader ends.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam::channel::RecvTimeoutError;
use manx_dataplane::port::PacketIo;
use manx_dataplane::port::capture::{Captured, CopyBudget, Direction, Tap, capture};
use manx_dataplane::tables::PortId;
use manx_dataplane::worker::{Command, Commands};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};
use tokio::sync::mpsc;

use super::server::Outcome;
use manx_api::{ErrorKind, Failure};

/// The most bytes of a packet that are kept: the whole packet.
const SNAPLEN: usize = 65_535;
/// The most copies of a capture that wait for its writer; further copies are lost. The file contains the number of lost
/// copies before its next packet, and the log contains the total.
const WAITING: usize = 4096;
/// The most bytes of a capture's copies that wait for its writer: 256 super-packets.
const WAITING_BYTES: usize = 16 << 20;
/// The most bytes of all captures' copies. Four captures whose clients do not read use all of it; then other captures lose
/// packets.
const ALL_WAITING_BYTES: usize = 64 << 20;
/// The most pieces of a file that wait for its client. A piece is 64 KiB or one packet.
const PIECES: usize = 4;
/// The time that the workers may take to begin.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(2);
/// The interval at which an idle capture checks whether its client is still there.
const LOOK: Duration = Duration::from_millis(250);
/// pcapng's direction bits in `epb_flags` (pcapng, section 4.3).
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// The port to capture.
pub(super) struct Source {
    pub(super) port: PortId,
    /// The port's name, for the file.
    pub(super) name: String,
    /// The length in bytes of the link header of packets that it transmits. The file leaves it out.
    pub(super) framing: usize,
}

/// The limit of memory for waiting copies, shared by all captures of an agent.
pub(super) fn copy_budget() -> Arc<CopyBudget> {
    CopyBudget::new(ALL_WAITING_BYTES)
}

/// Starts a capture of a port. It covers the port's queues of all workers. A port may have several captures at once.
/// The capture's own thread waits for the workers; this function does not.
pub(super) fn start(workers: Vec<Commands>, source: Source, budget: &Arc<CopyBudget>) -> Outcome {
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (copier, tap) = capture(SNAPLEN, WAITING, budget.part(WAITING_BYTES), clock);
    let (done, begun) = crossbeam::channel::bounded(workers.len());
    for worker in &workers {
        let (copier, done) = (copier.clone(), done.clone());
        let wrap = move |port: Box<dyn PacketIo>| -> Box<dyn PacketIo> {
            // This fails if the capture's thread has ended. Then there is no reader, and the wrapper copies no packets.
            let _ = done.send(());
            Box::new(copier.wrap(port))
        };
        if !worker.send(Command::Wrap(source.port, Box::new(wrap))) {
            return refused("a worker has ended");
        }
    }
    drop((copier, done));
    let (file, pieces) = mpsc::channel(PIECES);
    std::thread::spawn(move || {
        // The file begins when all workers have wrapped their queues. So the capture has every packet that comes after
        // a client has received the file's first bytes.
        let deadline = Instant::now() + BEGIN_TIMEOUT;
        match workers.iter().try_for_each(|_| begun.recv_deadline(deadline)) {
            Ok(()) => {
                if let Err(error) = write(&tap, &source, &file) {
                    tracing::warn!(port = source.name, %error, "the capture ended early");
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                let waited_s = BEGIN_TIMEOUT.as_secs();
                tracing::warn!(
                    port = source.name,
                    waited_s,
                    "the workers did not take the capture up"
                );
            }
            Err(RecvTimeoutError::Disconnected) => {
                tracing::warn!(port = source.name, "the port went before the capture began");
            }
        }
        if tap.lost() > 0 {
            tracing::warn!(
                port = source.name,
                lost = tap.lost(),
                "the capture's reader was slow: packets are missing"
            );
        }
        // The workers remove only wrappers whose reader has ended, and keep the port's other wrappers.
        drop(tap);
        for worker in workers {
            worker.send(Command::Wrap(source.port, Box::new(<dyn PacketIo>::unwrapped)));
        }
    });
    Outcome::Stream(pieces)
}

fn refused(why: &str) -> Outcome {
    Outcome::Reply(Err(Failure {
        kind: ErrorKind::Internal,
        message: format!("no capture: {why}"),
    }))
}

/// A writer that sends each block to the client.
struct Client<'a>(&'a mpsc::Sender<Vec<u8>>);

impl std::io::Write for Client<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let gone = |_| std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        self.0.blocking_send(bytes.to_vec()).map_err(gone)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Writes the file until the client or the port is gone.
fn write(tap: &Tap, source: &Source, client: &mpsc::Sender<Vec<u8>>) -> Result<(), PcapError> {
    let mut buffered = std::io::BufWriter::with_capacity(1 << 16, Client(client));
    let mut file = PcapNgWriter::new(&mut buffered)?;
    file.write_pcapng_block(InterfaceDescriptionBlock {
        linktype: DataLink::RAW,
        snaplen: 0,
        // The writer's timestamps are in nanoseconds.
        options: vec![
            InterfaceDescriptionOption::IfName(Cow::Borrowed(&source.name)),
            InterfaceDescriptionOption::IfTsResol(9),
        ],
    })?;
    let mut lost = 0;
    loop {
        std::io::Write::flush(file.get_mut()).map_err(PcapError::IoError)?;
        match tap.next(LOOK) {
            Ok(copy) => {
                for copy in std::iter::once(copy).chain(tap.waiting().take(WAITING)) {
                    write_packet(&mut file, &copy, source.framing, &mut lost)?;
                }
            }
            Err(RecvTimeoutError::Timeout) if client.is_closed() => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Writes a packet, and the number of packets that were lost before it. `counted` is the number that the file already
/// has.
fn write_packet<W: std::io::Write>(
    file: &mut PcapNgWriter<W>,
    copy: &Captured,
    framing: usize,
    counted: &mut u64,
) -> Result<(), PcapError> {
    let (skip, flags) = match copy.direction {
        Direction::Received => (0, INBOUND),
        Direction::Transmitted => (framing.min(copy.bytes.len()), OUTBOUND),
    };
    let mut options = vec![EnhancedPacketOption::Flags(flags)];
    if copy.lost > *counted {
        options.push(EnhancedPacketOption::DropCount(copy.lost - *counted));
        *counted = copy.lost;
    }
    file.write_pcapng_block(EnhancedPacketBlock {
        interface_id: 0,
        timestamp: copy.at,
        original_len: copy.original_len.saturating_sub(skip as u32),
        data: Cow::Borrowed(&copy.bytes[skip..]),
        options,
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use manx_dataplane::counters::PortCounters;
    use manx_dataplane::packet::Capabilities;
    use manx_dataplane::packet::Offload;
    use manx_dataplane::pipeline::Sizes;
    use manx_dataplane::port::memory::{self, FarSide};
    use manx_dataplane::worker::{self, Handle, Polling, SharedState};
    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::*;

    const PORT: PortId = PortId(0);
    const LONG: Duration = Duration::from_secs(10);

    fn worker() -> (Handle, FarSide) {
        let settings = worker::Settings {
            sizes: Sizes { flows: 64, translates: false, buffers: 64, fragments: 4 },
            polling: Polling::Adaptive,
            core: None,
        };
        let (reports, _) = crossbeam::channel::unbounded();
        let mut worker =
            worker::spawn("capture-test", settings, SharedState::alone().unwrap(), reports)
                .unwrap();
        worker.begin();
        let (port, far) = memory::pair(Capabilities::ALL, 64);
        let attach = Command::Attach(PORT, Box::new(port), Arc::new(PortCounters::default()));
        assert!(worker.commands().send(attach));
        (worker, far)
    }

    /// A capture's file as it grows.
    struct Growing {
        pieces: mpsc::Receiver<Vec<u8>>,
        bytes: Vec<u8>,
    }

    impl Growing {
        fn start(worker: &Handle) -> Self {
            let source = Source { port: PORT, name: "host".to_owned(), framing: 0 };
            let Outcome::Stream(pieces) =
                start(vec![worker.commands().clone()], source, &copy_budget())
            else {
                panic!()
            };
            Self { pieces, bytes: Vec::new() }
        }

        /// Waits until the file contains `marker`.
        fn read_until(&mut self, marker: &[u8]) {
            let start = Instant::now();
            let holds = |bytes: &[u8]| bytes.windows(marker.len()).any(|window| window == marker);
            while !holds(&self.bytes) {
                assert!(start.elapsed() < LONG, "{marker:?}");
                match self.pieces.try_recv() {
                    Ok(piece) => self.bytes.extend(piece),
                    Err(error) => {
                        assert_eq!(error, mpsc::error::TryRecvError::Empty);
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            }
        }
    }

    #[test]
    fn the_end_of_one_capture_of_a_port_leaves_the_others_on() {
        let (worker, far) = worker();
        let mut all = [0, 1, 2].map(|_| Growing::start(&worker)).map(Some);
        for growing in all.iter_mut().flatten() {
            growing.read_until(b"host");
        }
        // First the inner wrapper goes, then the outer one, then the last.
        for (round, gone) in [(1_u8, 0_usize), (2, 2), (3, 1)] {
            assert!(far.inject(&[round; 40], Offload::default()));
            for growing in all.iter_mut().flatten() {
                growing.read_until(&[round; 40]);
            }
            drop(all[gone].take());
            // The capture checks for its client four times a second.
            std::thread::sleep(LOOK * 2);
        }
    }

    #[test]
    fn the_file_tells_how_many_packets_were_lost_before_each() {
        let mut file = PcapNgWriter::new(Vec::new()).unwrap();
        file.write_pcapng_block(InterfaceDescriptionBlock::new(DataLink::RAW, 0)).unwrap();
        let mut told = 0;
        for lost in [0, 5, 5, 7] {
            let direction = Direction::Received;
            let bytes = vec![0; 20];
            let copy = Captured { at: Duration::ZERO, direction, original_len: 20, bytes, lost };
            write_packet(&mut file, &copy, 0, &mut told).unwrap();
        }
        let file = file.into_inner();
        let mut reader = PcapNgReader::new(&file[..]).unwrap();
        let mut drops = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(packet) = block.unwrap() {
                drops.push(packet.options.iter().find_map(|option| match option {
                    EnhancedPacketOption::DropCount(count) => Some(*count),
                    _ => None,
                }));
            }
        }
        assert_eq!(drops, [None, Some(5), None, Some(2)]);
    }

    #[test]
    fn a_worker_that_is_busy_holds_nobody_up_and_a_port_that_is_gone_ends_the_file() {
        let (worker, _far) = worker();
        let (go_on, wait) = crossbeam::channel::bounded::<()>(0);
        let hold = Box::new(move |port: Box<dyn PacketIo>| {
            let _ = wait.recv();
            port
        });
        assert!(worker.commands().send(Command::Wrap(PORT, hold)));
        let start = Instant::now();
        let mut held = Growing::start(&worker);
        assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(held.pieces.try_recv().unwrap_err(), mpsc::error::TryRecvError::Empty);
        drop(go_on);
        held.read_until(b"host");

        assert!(worker.commands().send(Command::Detach(PORT, None)));
        let mut late = Growing::start(&worker);
        assert_eq!(late.pieces.blocking_recv(), None);
        // The port that had begun also ends its capture.
        while held.pieces.blocking_recv().is_some() {}
    }
}
