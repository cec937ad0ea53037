//! Packets from and to capture files: pcap and pcapng are read, pcap with nanoseconds is written.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, Cursor, Read, Write};
use std::os::fd::RawFd;
use std::path::Path;
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapReader, PcapWriter, RawPcapPacket};
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};

use super::capture::Captured;
use super::link::{ETHERNET_LEN, ethertype, packet_len};
use super::{PacketIo, Received, Transmitted};
use crate::packet::{Capabilities, MAX_PACKET, Packet, Pool};

/// The first four bytes of a pcapng file, in either byte order.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// The largest capture length that tcpdump and Wireshark take without complaint.
const SNAPLEN: u32 = 262_144;

type Source = Box<dyn Read + Send>;

enum Reader {
    Pcap(PcapReader<Source>),
    PcapNg(PcapNgReader<Source>),
}

/// A port that receives the packets of a capture file as fast as it is polled, and then nothing. It has no far side:
/// every transmitted packet is refused.
///
/// It understands the link types Ethernet (the header is removed), raw IP, IPv4 and IPv6. Frames of other types are not
/// ours. A packet is malformed if the file holds only its beginning.
pub struct Replay {
    reader: Reader,
    finished: bool,
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay").field("finished", &self.finished).finish_non_exhaustive()
    }
}

impl Replay {
    /// Replays a file. `InvalidData` if it is neither pcap nor pcapng.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::new(File::open(path)?)
    }

    /// Replays what `source` yields.
    pub fn new(mut source: impl Read + Send + 'static) -> io::Result<Self> {
        let mut magic = [0; 4];
        source.read_exact(&mut magic)?;
        let source: Source = Box::new(Cursor::new(magic).chain(source));
        let reader = if magic == PCAPNG {
            Reader::PcapNg(PcapNgReader::new(source).map_err(invalid)?)
        } else {
            Reader::Pcap(PcapReader::new(source).map_err(invalid)?)
        };
        Ok(Self { reader, finished: false })
    }

    /// Whether the end of the file has been reached.
    pub fn is_finished(&self) -> bool {
        self.finished
    }
}

/// A frame of a file: its link type, bytes, and length on the link.
type Entry<'a> = (DataLink, Cow<'a, [u8]>, u32);

impl Reader {
    /// The next frame, `None` at the end.
    fn next(&mut self) -> io::Result<Option<Entry<'_>>> {
        match self {
            Self::Pcap(reader) => {
                let link = reader.header().datalink;
                // The raw form: the parsed one refuses captures that were cut at their snapshot length.
                let next = reader.next_raw_packet().transpose().map_err(invalid)?;
                Ok(next.map(|packet| (link, packet.data, packet.orig_len)))
            }
            Self::PcapNg(reader) => next_of_blocks(reader),
        }
    }
}

fn next_of_blocks(reader: &mut PcapNgReader<Source>) -> io::Result<Option<Entry<'_>>> {
    loop {
        let (interface, bytes, len) = match reader.next_block().transpose().map_err(invalid)? {
            None => return Ok(None),
            Some(Block::EnhancedPacket(block)) => {
                (block.interface_id, block.data.into_owned(), block.original_len)
            }
            Some(Block::SimplePacket(block)) => {
                let mut bytes = block.data.into_owned();
                bytes.truncate(block.original_len as usize);
                (0, bytes, block.original_len)
            }
            Some(_) => continue,
        };
        let link = reader.interfaces().get(interface as usize).map(|i| i.linktype);
        let link = link.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "a packet of no interface")
        })?;
        return Ok(Some((link, Cow::Owned(bytes), len)));
    }
}

/// The result for a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filled {
    Packet,
    NotOurs,
    Malformed,
}

fn fill(packet: &mut Packet, (link, frame, original_len): &Entry<'_>) -> Filled {
    let bytes = match *link {
        DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 => {
            (frame.len() >= *original_len as usize).then_some(&frame[..])
        }
        DataLink::ETHERNET => {
            let Some((header, payload)) = frame.split_at_checked(ETHERNET_LEN) else {
                return Filled::Malformed;
            };
            let kind = u16::from_be_bytes([header[12], header[13]]);
            if kind != ethertype::IPV4 && kind != ethertype::IPV6 {
                return Filled::NotOurs;
            }
            packet_len(kind, payload).map(|len| &payload[..len])
        }
        _ => return Filled::NotOurs,
    };
    match bytes {
        Some(bytes) if bytes.len() <= MAX_PACKET => {
            packet.room_mut()[..bytes.len()].copy_from_slice(bytes);
            packet.set_len(bytes.len());
            Filled::Packet
        }
        _ => Filled::Malformed,
    }
}

impl PacketIo for Replay {
    /// An error (`InvalidData`, or the source's own) is the end: nothing behind it can be found.
    fn receive(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
        limit: usize,
    ) -> io::Result<Received> {
        let mut received = Received { drained: self.finished, ..Received::default() };
        let mut left = limit;
        while left > 0 && !received.drained {
            let Some(mut packet) = pool.take() else { break };
            left -= 1;
            let outcome =
                self.reader.next().map(|entry| entry.map(|entry| fill(&mut packet, &entry)));
            if let Ok(Some(Filled::Packet)) = outcome {
                into.push(packet);
                continue;
            }
            pool.put(packet);
            match outcome {
                Ok(Some(Filled::NotOurs)) => received.not_ours += 1,
                Ok(Some(Filled::Malformed | Filled::Packet)) => received.malformed += 1,
                Ok(None) | Err(_) => {
                    self.finished = true;
                    received.drained = true;
                    outcome?;
                }
            }
        }
        Ok(received)
    }

    fn transmit(&mut self, pool: &mut Pool, packets: &mut Vec<Packet>) -> io::Result<Transmitted> {
        let refused = packets.len();
        for packet in packets.drain(..) {
            pool.put(packet);
        }
        Ok(Transmitted { sent: 0, refused })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn descriptor(&self) -> Option<RawFd> {
        None
    }

    fn unwrapped(self: Box<Self>) -> Box<dyn PacketIo> {
        self
    }
}

/// Writes a pcap file of link type raw IP, with nanoseconds.
#[derive(Debug)]
pub struct Recorder<W: Write> {
    writer: PcapWriter<W>,
}

impl<W: Write> Recorder<W> {
    /// Starts a file: the header is written at once.
    pub fn new(writer: W) -> io::Result<Self> {
        let header = PcapHeader {
            version_major: 2,
            version_minor: 4,
            ts_correction: 0,
            ts_accuracy: 0,
            snaplen: SNAPLEN,
            datalink: DataLink::RAW,
            ts_resolution: TsResolution::NanoSecond,
            endianness: Endianness::native(),
        };
        Ok(Self { writer: PcapWriter::with_header(writer, header).map_err(invalid)? })
    }

    /// Writes one packet.
    pub fn write(&mut self, packet: &Captured) -> io::Result<()> {
        self.write_bytes(packet.at, packet.original_len, &packet.bytes)
    }

    /// Writes the first `bytes` of a packet that was `original_len` long. `at` is the time since 1970; the format's
    /// field wraps in 2106.
    pub fn write_bytes(&mut self, at: Duration, original_len: u32, bytes: &[u8]) -> io::Result<()> {
        let bytes = &bytes[..bytes.len().min(SNAPLEN as usize)];
        let packet = RawPcapPacket {
            ts_sec: at.as_secs() as u32,
            ts_frac: at.subsec_nanos(),
            incl_len: bytes.len() as u32,
            orig_len: original_len.max(bytes.len() as u32),
            data: Cow::Borrowed(bytes),
        };
        self.writer.write_raw_packet(&packet).map(drop).map_err(invalid)
    }

    /// Ends the file and returns the writer, not flushed.
    pub fn into_inner(self) -> W {
        self.writer.into_writer()
    }
}

fn invalid(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        error => io::Error::new(io::ErrorKind::InvalidData, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use pcap_file::pcapng::PcapNgWriter;
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
    use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock;
    use proptest::prelude::*;

    use super::*;

    fn replayed(file: Vec<u8>) -> (Vec<Vec<u8>>, Received) {
        let mut replay = Replay::new(Cursor::new(file)).unwrap();
        let mut pool = Pool::new(64);
        let mut packets = Vec::new();
        let received = replay.receive(&mut pool, &mut packets, 1000).unwrap();
        assert!(received.drained && replay.is_finished());
        (packets.iter().map(|p| p.bytes().to_vec()).collect(), received)
    }

    fn ethernet(ethertype: u16, payload: &[u8]) -> Vec<u8> {
        [&[0; 12][..], &ethertype.to_be_bytes(), payload].concat()
    }

    fn ipv4(payload: usize) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 20 + payload as u8];
        packet.resize(20 + payload, 7);
        packet
    }

    proptest! {
        #[test]
        fn what_is_recorded_is_replayed(packets in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..20)) {
            let mut recorder = Recorder::new(Vec::new()).unwrap();
            for packet in &packets {
                recorder.write_bytes(Duration::new(1_700_000_000, 999_999_999), packet.len() as u32, packet).unwrap();
            }
            let (again, received) = replayed(recorder.into_inner());
            prop_assert_eq!(again, packets);
            prop_assert_eq!(received, Received { drained: true, ..Received::default() });
        }

        #[test]
        fn a_damaged_file_ends_in_an_error_or_in_packets_but_never_in_a_panic(
            at in 0usize..200, with: u8, cut in 0usize..200,
        ) {
            let mut recorder = Recorder::new(Vec::new()).unwrap();
            for _ in 0..3 {
                recorder.write_bytes(Duration::ZERO, 40, &ipv4(20)).unwrap();
            }
            let mut file = recorder.into_inner();
            if let Some(byte) = file.get_mut(at) {
                *byte = with;
            }
            file.truncate(cut);
            let mut pool = Pool::new(8);
            let mut packets = Vec::new();
            if let Ok(mut replay) = Replay::new(Cursor::new(file)) {
                drop(replay.receive(&mut pool, &mut packets, 8));
            }
            prop_assert_eq!(pool.available() + packets.len(), 8);
        }
    }

    #[test]
    fn ethernet_headers_are_removed_and_frames_without_a_packet_are_counted() {
        let header =
            PcapHeader { datalink: DataLink::ETHERNET, snaplen: 60, ..PcapHeader::default() };
        let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
        let mut padded = ethernet(ethertype::IPV4, &ipv4(10));
        padded.resize(60, 0);
        for (frame, original) in [
            (padded, 60),
            (ethernet(ethertype::ARP, &[0; 28]), 42),
            (ethernet(ethertype::IPV6, &ipv4(10)), 44),
            (ethernet(ethertype::IPV4, &ipv4(60)[..46]), 94),
            (vec![1, 2, 3], 3),
        ] {
            let raw = RawPcapPacket {
                ts_sec: 0,
                ts_frac: 0,
                incl_len: frame.len() as u32,
                orig_len: original,
                data: Cow::Owned(frame),
            };
            writer.write_raw_packet(&raw).unwrap();
        }
        let (packets, received) = replayed(writer.into_writer());
        assert_eq!(packets, [ipv4(10)]);
        assert_eq!((received.not_ours, received.malformed), (1, 3));
    }

    #[test]
    fn pcapng_interfaces_each_have_their_link_type() {
        let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
        for link in [DataLink::RAW, DataLink::ETHERNET, DataLink::USB_LINUX] {
            writer.write_pcapng_block(InterfaceDescriptionBlock::new(link, 0)).unwrap();
        }
        for (interface_id, data) in
            [(1, ethernet(ethertype::IPV4, &ipv4(3))), (0, ipv4(5)), (2, vec![0; 64])]
        {
            let block = EnhancedPacketBlock {
                interface_id,
                timestamp: Duration::ZERO,
                original_len: data.len() as u32,
                data: Cow::Owned(data),
                options: Vec::new(),
            };
            writer.write_pcapng_block(block).unwrap();
        }
        let (packets, received) = replayed(writer.into_inner());
        assert_eq!(packets, [ipv4(3), ipv4(5)]);
        assert_eq!((received.not_ours, received.malformed), (1, 0));
    }

    #[test]
    fn a_replay_takes_no_packets() {
        let file = Recorder::new(Vec::new()).unwrap().into_inner();
        let mut replay = Replay::new(Cursor::new(file)).unwrap();
        let mut pool = Pool::new(1);
        let mut packets = vec![pool.take_filled(&ipv4(1)).unwrap()];
        assert_eq!(
            replay.transmit(&mut pool, &mut packets).unwrap(),
            Transmitted { sent: 0, refused: 1 }
        );
        assert_eq!((packets.len(), pool.available()), (0, 1));
        assert!(Replay::new(Cursor::new(b"not a capture, not at all".to_vec())).is_err());
    }
}
