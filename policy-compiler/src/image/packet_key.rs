//! The fields of a packet that a row reads: the table of its protocol, the key in that table, and the source port.

use super::target::{NO_KEY, SOURCE, Target};
use crate::model::{ICMP, ICMPV6, L4Header, Transport};

/// The protocols whose packets have a key: a destination port, or an ICMP type and code as one number.
pub(crate) const KEYED: [u8; 5] = [6, 17, 132, ICMP, ICMPV6];

/// The table of a protocol: its index in [`KEYED`]. All other protocols share one more table, in which the key is the
/// protocol number.
pub(crate) const fn table_of(protocol: u8) -> usize {
    match protocol {
        6 => 0,
        17 => 1,
        132 => 2,
        ICMP => 3,
        ICMPV6 => 4,
        _ => OTHERS,
    }
}

/// The table of the protocols without a key of their own.
pub(crate) const OTHERS: usize = KEYED.len();

/// The key of an ICMP packet.
pub(crate) const fn icmp_key(kind: u8, code: u8) -> u16 {
    (kind as u16) << 8 | code as u16
}

/// The fields of a packet that a row reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PacketKey {
    pub(crate) table: u8,
    /// The key in the lower half, and the source port in the upper half.
    pub(super) key_and_source: u64,
}

/// The table of each protocol.
const TABLE: [u8; 256] = {
    let mut tables = [0; 256];
    let mut protocol = 0;
    while protocol < 256 {
        tables[protocol] = table_of(protocol as u8) as u8;
        protocol += 1;
    }
    tables
};

impl PacketKey {
    #[inline]
    pub(crate) const fn new(table: u8, key: u32, source: u32) -> Self {
        Self { table, key_and_source: key as u64 | (source as u64) << u32::BITS }
    }

    /// The value that a line divides: the key, or the source port.
    #[inline]
    pub(super) const fn key(self, line: Target) -> u32 {
        // For a line by source port, this shifts the upper half down.
        (self.key_and_source >> ((line.0 & SOURCE) / (SOURCE / u32::BITS))) as u32
    }
}

/// The table of a protocol.
#[inline]
pub(crate) const fn table(protocol: u8) -> u8 {
    TABLE[protocol as usize]
}

impl From<Transport> for PacketKey {
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a caller that knows that there are ports needs no branch"
    )]
    fn from(transport: Transport) -> Self {
        let table = table(transport.protocol);
        let source = match transport.l4 {
            L4Header::Ports { source, .. } if table < 3 => source,
            _ => 0,
        };
        Self::new(table, key_of(table, transport), source.into())
    }
}

/// The key of a packet in this table, or [`NO_KEY`].
#[inline(always)]
#[expect(clippy::inline_always, reason = "part of the conversion above")]
pub(super) fn key_of(table: u8, Transport { protocol, l4 }: Transport) -> u32 {
    match l4 {
        L4Header::Ports { destination, .. } if table < 3 => destination.into(),
        _ if usize::from(table) == OTHERS => protocol.into(),
        L4Header::Icmp { kind, code } if table >= 3 => icmp_key(kind, code).into(),
        _ => NO_KEY,
    }
}
