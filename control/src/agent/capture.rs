//! `manx capture`: a port is wrapped, its copies become a pcapng file, and the wrapper goes when nobody reads any more.

use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam::channel::RecvTimeoutError;
use manx_dataplane::port::PacketIo;
use manx_dataplane::port::capture::{Captured, Direction, Tap, capture};
use manx_dataplane::tables::PortId;
use manx_dataplane::worker::{Command, Commands};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};
use tokio::sync::mpsc;

use super::server::Answer;
use crate::api::{ErrorKind, Failure};

/// Bytes of a packet that are kept: all of it.
const SNAPLEN: usize = 65_535;
/// Copies that wait for the writer; more are lost and counted in the log.
const WAITING: usize = 4096;
/// How often an idle capture looks whether its client is still there.
const LOOK: Duration = Duration::from_millis(250);
/// pcapng's direction bits in `epb_flags` (pcapng, section 4.3).
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// What to capture.
pub(super) struct Source {
    /// The port.
    pub(super) port: PortId,
    /// Its name, for the file.
    pub(super) name: String,
    /// Bytes of link framing on what it transmits, which the file leaves out.
    pub(super) framing: usize,
}

/// Starts a capture.
pub(super) fn start(worker: &Commands, source: Source) -> Answer {
    let (tapped, taps) = crossbeam::channel::bounded(1);
    let wrap = move |port: Box<dyn PacketIo>| -> Box<dyn PacketIo> {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (wrapped, tap) = capture(port, SNAPLEN, WAITING, clock);
        // Without a taker the wrapper finds its reader gone and copies nothing.
        let _ = tapped.send(tap);
        Box::new(wrapped)
    };
    if !worker.tell(Command::Wrap(source.port, Box::new(wrap))) {
        return refused("the worker has ended");
    }
    let Ok(tap) = taps.recv_timeout(Duration::from_secs(2)) else {
        return refused("the worker did not take the capture up within 2 s");
    };
    let (file, pieces) = mpsc::channel(64);
    let worker = worker.clone();
    std::thread::spawn(move || {
        if let Err(error) = write(&tap, &source, &file) {
            tracing::warn!(port = source.name, %error, "the capture ended early");
        }
        if tap.lost() > 0 {
            tracing::warn!(
                port = source.name,
                lost = tap.lost(),
                "the capture's reader was slow: packets are missing"
            );
        }
        drop(tap);
        worker.tell(Command::Wrap(source.port, Box::new(<dyn PacketIo>::unwrapped)));
    });
    Answer::Stream(pieces)
}

fn refused(why: &str) -> Answer {
    Answer::Reply(Err(Failure { kind: ErrorKind::Internal, message: format!("no capture: {why}") }))
}

/// Hands what is written to the client, a block at a time.
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

/// Writes until the client or the port is gone.
fn write(tap: &Tap, source: &Source, client: &mpsc::Sender<Vec<u8>>) -> Result<(), PcapError> {
    let mut buffered = std::io::BufWriter::with_capacity(1 << 16, Client(client));
    let mut file = PcapNgWriter::new(&mut buffered)?;
    file.write_pcapng_block(InterfaceDescriptionBlock {
        linktype: DataLink::RAW,
        snaplen: 0,
        // Nanoseconds: what the writer's timestamps are in.
        options: vec![
            InterfaceDescriptionOption::IfName(Cow::Borrowed(&source.name)),
            InterfaceDescriptionOption::IfTsResol(9),
        ],
    })?;
    loop {
        std::io::Write::flush(file.get_mut()).map_err(PcapError::IoError)?;
        match tap.copies().recv_timeout(LOOK) {
            Ok(copy) => {
                for copy in std::iter::once(copy).chain(tap.copies().try_iter().take(WAITING)) {
                    block(&mut file, &copy, source.framing)?;
                }
            }
            Err(RecvTimeoutError::Timeout) if client.is_closed() => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

fn block<W: std::io::Write>(
    file: &mut PcapNgWriter<W>,
    copy: &Captured,
    framing: usize,
) -> Result<(), PcapError> {
    let (skip, flags) = match copy.direction {
        Direction::Received => (0, INBOUND),
        Direction::Transmitted => (framing.min(copy.bytes.len()), OUTBOUND),
    };
    file.write_pcapng_block(EnhancedPacketBlock {
        interface_id: 0,
        timestamp: copy.at,
        original_len: copy.original_len.saturating_sub(skip as u32),
        data: Cow::Borrowed(&copy.bytes[skip..]),
        options: vec![EnhancedPacketOption::Flags(flags)],
    })?;
    Ok(())
}
