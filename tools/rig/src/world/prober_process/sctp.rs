//! The part of SCTP that probes need (RFC 9260): INIT, INIT ACK, ABORT. It is enough to see whether a packet arrives
//! and an answer comes back, on kernels without SCTP.

/// Bytes of the common header (section 3.1).
const COMMON: usize = 12;
/// Bytes of an INIT or INIT ACK chunk's fixed part with its header (section 3.3.2).
const INIT: usize = 20;
/// Parameter type of the State Cookie (section 3.3.3.1); here it is the name of the prober that answers.
const STATE_COOKIE: u16 = 7;

/// The first chunk of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Chunk {
    /// Opens an association: chunk type 1.
    Init,
    /// Accepts an association: chunk type 2, with its State Cookie.
    InitAck(Vec<u8>),
    /// Refuses an association: chunk type 6.
    Abort,
}

/// A packet with one chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) source: u16,
    pub(super) destination: u16,
    /// The verification tag: 0 in an INIT, otherwise the initiate tag of the INIT that is answered (section 8.5.1).
    pub(super) verification: u32,
    /// The initiate tag of an INIT or INIT ACK; not used in an ABORT.
    pub(super) initiate: u32,
    pub(super) chunk: Chunk,
}

impl Packet {
    /// The packet as bytes, with the checksum.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend(self.source.to_be_bytes());
        bytes.extend(self.destination.to_be_bytes());
        bytes.extend(self.verification.to_be_bytes());
        bytes.extend([0; 4]);
        match &self.chunk {
            Chunk::Init => self.push_init(&mut bytes, 1, &[]),
            Chunk::InitAck(cookie) => {
                let mut parameter = STATE_COOKIE.to_be_bytes().to_vec();
                parameter.extend((4 + cookie.len() as u16).to_be_bytes());
                parameter.extend(cookie);
                self.push_init(&mut bytes, 2, &parameter);
            }
            Chunk::Abort => bytes.extend([6, 0, 0, 4]),
        }
        // Chunks are padded to four bytes; their length does not count the padding (section 3.2).
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let checksum = crc32c(&bytes);
        // The least significant byte comes first (appendix A).
        bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn push_init(&self, bytes: &mut Vec<u8>, kind: u8, parameters: &[u8]) {
        bytes.extend([kind, 0]);
        bytes.extend(((INIT + parameters.len()) as u16).to_be_bytes());
        bytes.extend(self.initiate.to_be_bytes());
        bytes.extend(65_536_u32.to_be_bytes()); // receiver window
        bytes.extend(1_u16.to_be_bytes()); // outbound streams
        bytes.extend(1_u16.to_be_bytes()); // inbound streams
        bytes.extend(self.initiate.to_be_bytes()); // initial TSN: any
        bytes.extend(parameters);
    }

    /// Parses a packet with a correct checksum whose first chunk is of one of these kinds.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut zeroed = bytes.to_vec();
        zeroed.get_mut(8..COMMON)?.fill(0);
        if u32::from_le_bytes(bytes.get(8..COMMON)?.try_into().ok()?) != crc32c(&zeroed) {
            return None;
        }
        let short = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let long = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let (chunk, initiate) = match bytes.get(COMMON)? {
            1 => (Chunk::Init, long(COMMON + 4)?),
            2 => {
                let at = COMMON + INIT;
                let end = at + usize::from(short(at + 2)?);
                let ours = short(at)? == STATE_COOKIE;
                let cookie = if ours { bytes.get(at + 4..end)?.to_vec() } else { Vec::new() };
                (Chunk::InitAck(cookie), long(COMMON + 4)?)
            }
            6 => (Chunk::Abort, 0),
            _ => return None,
        };
        let (source, destination) = (short(0)?, short(2)?);
        Some(Self { source, destination, verification: long(4)?, initiate, chunk })
    }

    /// The answer to an INIT: INIT ACK with `name` if the host listens, otherwise ABORT. Other chunks get no answer.
    pub(super) fn reply(&self, listens: bool, name: &str, tag: u32) -> Option<Self> {
        (self.chunk == Chunk::Init).then(|| Self {
            source: self.destination,
            destination: self.source,
            verification: self.initiate,
            initiate: if listens { tag } else { 0 },
            chunk: if listens { Chunk::InitAck(name.as_bytes().to_vec()) } else { Chunk::Abort },
        })
    }
}

/// `CRC32c` (RFC 9260, appendix A), bit by bit: fast enough, because a probe has few bytes.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            let polynomial = if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
            crc = (crc >> 1) ^ polynomial;
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn init(source: u16, destination: u16, tag: u32) -> Packet {
        Packet { source, destination, verification: 0, initiate: tag, chunk: Chunk::Init }
    }

    #[test]
    fn the_checksum_is_the_castagnoli_polynomials() {
        // RFC 3720, appendix B.4: 32 bytes of zeroes and of ones.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }

    #[test]
    fn an_open_port_accepts_with_its_name_and_a_closed_one_aborts() {
        let init = init(40_000, 132, 7);
        let accept = init.reply(true, "shop/web", 9).unwrap();
        assert_eq!((accept.verification, accept.source), (7, 132));
        assert_eq!(accept.chunk, Chunk::InitAck(b"shop/web".to_vec()));
        assert_eq!(init.reply(false, "shop/web", 9).unwrap().chunk, Chunk::Abort);
        assert_eq!(accept.reply(true, "x", 1), None, "only an INIT is answered");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(source: u16, destination: u16, tag: u32, name in "[a-z/]{0,40}") {
            let sent = init(source, destination, tag);
            prop_assert_eq!(Packet::parse(&sent.bytes()), Some(sent.clone()));
            for listens in [true, false] {
                let answer = sent.reply(listens, &name, 5).unwrap();
                prop_assert_eq!(Packet::parse(&answer.bytes()), Some(answer));
            }
        }

        #[test]
        fn a_changed_byte_is_not_read(at in 0_usize..32, flip in 1_u8..) {
            let mut bytes = init(1, 2, 3).bytes();
            bytes[at] ^= flip;
            prop_assert_eq!(Packet::parse(&bytes), None);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = Packet::parse(&bytes);
        }
    }
}
