//! `manx capture`: a port's packets as a pcapng file.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::Error;
use super::socket::Socket;
use manx_linux::private;
use manx_rig::world::setup::{NodeState, State};

/// The block type of a packet (pcapng, section 4.3, "Enhanced Packet Block").
const PACKET_BLOCK: u32 = 6;
/// The smallest length of a block: its type, its length, and its length again (pcapng, section
/// 3.1).
const BLOCK_MIN: usize = 12;
/// The largest length of a block from an agent: a packet of 64 KiB with its options.
const BLOCK_MAX: usize = 1 << 20;

/// The settings of `manx capture`.
#[derive(Debug, Clone, Args)]
pub struct Capture {
    /// A pod (NAMESPACE/NAME) or a port (host, forwarded, uplink-raw, uplink-packet, uplink-vxlan)
    #[arg(value_name = "POD|PORT")]
    pub port: String,
    /// The file to write; - is standard output
    #[arg(long, short, value_name = "FILE")]
    pub write: PathBuf,
    /// End after this many packets
    #[arg(long, short, value_name = "COUNT")]
    pub count: Option<u64>,
    /// End after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub duration: Option<Duration>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub socket: Socket,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .trim_end_matches('s')
        .parse()
        .map_err(|_| format!("{text:?} is not a number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// Records until the count, the duration, Ctrl-C or the agent ends it. The file always ends with a whole packet.
pub fn run(capture: &Capture) -> Result<(), Error> {
    // From here on signals are read from a descriptor, so that no signal interrupts the writing of
    // a packet.
    let signals =
        signals().map_err(|errno| Error::Failed(format!("signals cannot be taken: {errno}")))?;
    let stream =
        capture.socket.connect(|rig| node_of(rig, &capture.port))?.capture(capture.port.clone())?;
    let mut out: Box<dyn Write> = if capture.write.as_os_str() == "-" {
        Box::new(io::stdout().lock())
    } else {
        Box::new(private::replace(&capture.write).map_err(|error| {
            let path = capture.write.display();
            Error::Invalid(format!(
                "{path} cannot be written: {error}; remove it or name another file by -w (- is standard output)"
            ))
        })?)
    };
    let source = Source {
        stream,
        signals: Some(signals),
        end: capture.duration.map(|duration| Instant::now() + duration),
    };
    let packets = record(source, &mut out, capture.count.unwrap_or(u64::MAX))?;
    // This fails if standard error is closed, and then there is no reader.
    let _ = writeln!(io::stderr(), "{packets} packets captured");
    Ok(())
}

/// The node of a rig's pod.
fn node_of<'s>(rig: &'s State, pod: &str) -> Option<&'s NodeState> {
    let pod = rig.pods.iter().find(|known| known.name.to_string() == pod)?;
    rig.nodes.iter().find(|node| node.name == pod.node)
}

fn signals() -> Result<SignalFd, Errno> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        set.add(signal);
    }
    set.thread_block()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

/// The agent's stream, which also ends on a signal or when time is up.
struct Source {
    stream: UnixStream,
    signals: Option<SignalFd>,
    end: Option<Instant>,
}

impl Read for Source {
    /// Reads from the stream. After a signal, or when time is up, it returns 0, the end of the stream.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let left = self.end.map(|end| end.saturating_duration_since(Instant::now()));
            let timeout = match left {
                Some(Duration::ZERO) => return Ok(0),
                // The time is rounded up, because a last poll of 0 ms would spin.
                Some(left) => PollTimeout::try_from(left + Duration::from_millis(1))
                    .unwrap_or(PollTimeout::MAX),
                None => PollTimeout::NONE,
            };
            let mut fds = vec![PollFd::new(self.stream.as_fd(), PollFlags::POLLIN)];
            fds.extend(
                self.signals
                    .as_ref()
                    .map(|signals| PollFd::new(signals.as_fd(), PollFlags::POLLIN)),
            );
            match poll(&mut fds, timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let ready = |index: usize| fds.get(index).and_then(PollFd::any).unwrap_or(false);
            let (has_bytes, has_signal) = (ready(0), ready(1));
            drop(fds);
            if has_signal {
                return Ok(0);
            }
            if has_bytes {
                return self.stream.read(into);
            }
        }
    }
}

/// Copies whole blocks and returns the number of packets in them.
fn record(mut source: impl Read, out: &mut impl Write, count: u64) -> Result<u64, Error> {
    let mut packets = 0;
    let mut block = Vec::new();
    while packets < count {
        match next_block(&mut source, &mut block) {
            Ok(Some(PACKET_BLOCK)) => packets += 1,
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(error) => {
                return Err(Error::Failed(format!("the agent's capture ended early: {error}")));
            }
        }
        match out.write_all(&block).and_then(|()| out.flush()) {
            // The reader has closed the pipe.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            other => other.map_err(|error| {
                Error::Failed(format!("the capture cannot be written: {error}"))
            })?,
        }
    }
    Ok(packets)
}

/// Reads one block, in this machine's byte order, into `block` and returns its type; `None` at the end, even inside a
/// block.
fn next_block(source: &mut impl Read, block: &mut Vec<u8>) -> io::Result<Option<u32>> {
    block.resize(8, 0);
    if !fill(source, block)? {
        return Ok(None);
    }
    let word = |at: usize| block[at..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    let (kind, len) = (word(0), word(4) as usize);
    if !(BLOCK_MIN..=BLOCK_MAX).contains(&len) || len % 4 != 0 {
        let message = format!("a block of type {kind:#x} and {len} bytes is no pcapng");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    block.resize(len, 0);
    Ok(fill(source, &mut block[8..])?.then_some(kind))
}

fn fill(source: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match source.read_exact(bytes) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        other => other.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(kind: u32, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..8].copy_from_slice(&len.to_ne_bytes());
        bytes
    }

    fn file() -> Vec<u8> {
        [block(0x0a0d_0d0a, 28), block(1, 20), block(6, 40), block(5, 24), block(6, 12)].concat()
    }

    #[test]
    fn a_file_is_whole_whenever_it_ends() {
        let file = file();
        let whole = [28, 48, 88, 112, 124];
        for end in 0..=file.len() {
            let mut out = Vec::new();
            let packets = record(&file[..end], &mut out, u64::MAX).unwrap();
            assert_eq!(out.len(), whole.into_iter().rfind(|len| *len <= end).unwrap_or(0));
            assert_eq!(out, file[..out.len()]);
            assert_eq!(packets, [88, 124].into_iter().filter(|len| *len <= end).count() as u64);
        }
    }

    #[test]
    fn counting_stops_after_the_last_packet_asked_for() {
        let mut out = Vec::new();
        assert_eq!(record(file().as_slice(), &mut out, 1).unwrap(), 1);
        assert_eq!(out.len(), 88);
        out.clear();
        assert_eq!(record(file().as_slice(), &mut out, 0).unwrap(), 0);
        assert!(out.is_empty());
    }

    #[test]
    fn what_is_no_pcapng_is_not_written() {
        for len in [0, 8, 13, 1 << 30] {
            let mut bytes = block(6, 16);
            bytes[4..8].copy_from_slice(&u32::to_ne_bytes(len));
            assert!(record(bytes.as_slice(), &mut Vec::new(), 9).is_err(), "{len}");
        }
    }

    #[test]
    fn time_ends_a_stream_that_is_silent() {
        let (stream, _agent) = UnixStream::pair().unwrap();
        let started = Instant::now();
        let end = Some(started + Duration::from_millis(30));
        let mut source = Source { stream, signals: None, end };
        assert_eq!(source.read(&mut [0; 8]).unwrap(), 0);
        assert!(started.elapsed() >= Duration::from_millis(30));
    }
}
