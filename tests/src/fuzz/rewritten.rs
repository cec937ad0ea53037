//! Packets with other addresses and ports, written without the dataplane's code. They are the
//! expected results of translations.

use std::net::IpAddr;

use etherparse::checksum::u64_16bit_word as sums;

use super::input::Input;
use super::read::{
    FlowTuple, Part, Read, TransportKey, checksum_offset, complement, read_about, sum,
};
use super::writer::fix_ipv4_checksum;
use crate::packet::{ICMP, SCTP, UDP};

/// The offset of SCTP's checksum in its header.
const SCTP_CHECKSUM: usize = 8;
/// The offset of an ICMP query's identifier in its header.
const IDENTIFIER: usize = 4;

impl Input {
    /// This input with the addresses and ports of another tuple. `like` is a packet that may be the
    /// result. Some checksums have two forms for one value; they get the form that is in `like`.
    pub fn with_ends(&self, tuple: &FlowTuple, like: &[u8]) -> Option<Self> {
        let read = self.read?;
        let mut sent = self.sent.clone();
        let end = self.start + read.total;
        let is_partial = self.offload.checksum.is_partial();
        let bytes = sent.bytes.get_mut(self.start..end)?;
        put_ends(bytes, &read, tuple, (is_partial, false), like)?;
        let read =
            Read { tuple: FlowTuple { transport: transport(&read, tuple), ..*tuple }, ..read };
        let mut input = Self { sent, read: Some(read), same: None, ..*self };
        input.is_honest = input.is_honest();
        Some(input)
    }
}

impl Input {
    /// This input, an ICMP error, with these addresses, about a packet with the ends of `quoted`.
    pub fn with_quoted(
        &self,
        (source, destination): (IpAddr, IpAddr),
        quoted: &FlowTuple,
        like: &[u8],
    ) -> Option<Self> {
        let (read, about) = (self.read?, read_about(self.packet(), &self.read?)?);
        let mut sent = self.sent.clone();
        let bytes = sent.bytes.get_mut(self.start..self.start + read.total)?;
        let message = bytes.get(read.at..)?.to_vec();
        let tuple = FlowTuple { source, destination, ..read.tuple };
        let quote = read.at + 8;
        put_ends(bytes.get_mut(quote..)?, &about, quoted, (false, true), like.get(quote..)?)?;
        let header = bytes.get(..20)?.to_vec();
        put_addresses(bytes, &tuple);
        if tuple.is_v4() {
            bytes[10..12].copy_from_slice(&header[10..12]);
            fix_ipv4_checksum(bytes);
        }
        let is_partial = self.offload.checksum.is_partial();
        let covers = |tuple: &FlowTuple, message: &[u8]| {
            let mut message = if is_partial { Vec::new() } else { message.to_vec() };
            if let Some(field) = message.get_mut(2..4) {
                field.fill(0);
            }
            sum(tuple.source, tuple.destination, tuple.upper, 0, &message)
        };
        let sums = [covers(&read.tuple, &message), covers(&tuple, bytes.get(read.at..)?)];
        let theirs = like.get(read.at + 2..).and_then(<[u8]>::first_chunk).copied();
        if !(is_partial && tuple.is_v4()) {
            let after = adjusted([message[2], message[3]], sums, is_partial, theirs);
            bytes.get_mut(read.at + 2..read.at + 4)?.copy_from_slice(&after);
        }
        let mut input = Self { sent, read: Some(Read { tuple, ..read }), same: None, ..*self };
        input.is_honest = input.is_honest();
        Some(input)
    }
}

/// The transport of a packet with these ends. Later fragments have none.
fn transport(read: &Read, tuple: &FlowTuple) -> TransportKey {
    if read.is_later() { read.tuple.transport } else { tuple.transport }
}

/// Writes ends into a packet from its IP header on. `None`: the packet's form does not fit these
/// ends.
pub fn put_ends(
    bytes: &mut [u8],
    read: &Read,
    tuple: &FlowTuple,
    (is_partial, is_quoted): (bool, bool),
    like: &[u8],
) -> Option<()> {
    if read.tuple.is_v4() != tuple.is_v4() || tuple.is_v4() != tuple.destination.is_ipv4() {
        return None;
    }
    let carried = bytes.get(read.at..)?.to_vec();
    let header = bytes.get(..20)?.to_vec();
    put_addresses(bytes, tuple);
    if tuple.is_v4() {
        let sums = [&header, &bytes[..20]]
            .map(|it| sums::add_slice(sums::add_slice(0, &it[..10]), &it[12..]));
        let theirs = like.get(10..).and_then(<[u8]>::first_chunk).copied();
        let after = adjusted([header[10], header[11]], sums, false, theirs);
        bytes[10..12].copy_from_slice(&after);
    }
    if read.is_later() {
        return Some(());
    }
    let segment = bytes.get_mut(read.at..)?;
    match (read.tuple.transport, tuple.transport) {
        (TransportKey::Ports(..), TransportKey::Ports(from, to)) => {
            segment.get_mut(..2)?.copy_from_slice(&from.to_be_bytes());
            segment.get_mut(2..4)?.copy_from_slice(&to.to_be_bytes());
        }
        (TransportKey::Query { kind, asks, .. }, TransportKey::Query { kind: k, asks: a, id })
            if (kind, asks) == (k, a) =>
        {
            segment.get_mut(IDENTIFIER..IDENTIFIER + 2)?.copy_from_slice(&id.to_be_bytes());
        }
        (TransportKey::Nothing, TransportKey::Nothing) => return Some(()),
        (one, other) if one == other => {}
        _ => return None,
    }
    let upper = read.tuple.upper;
    let ports = (carried.get(..4)?, segment.get(..4)?.to_vec());
    if upper == SCTP {
        if ports.0 != ports.1 && read.part == Part::Whole && !is_quoted {
            let field = SCTP_CHECKSUM..SCTP_CHECKSUM + 4;
            segment.get_mut(field.clone())?.fill(0);
            let checksum = crc32c(segment).to_le_bytes();
            segment.get_mut(field)?.copy_from_slice(&checksum);
        }
        return Some(());
    }
    let Some(offset) = checksum_offset(upper, tuple.is_v4()) else { return Some(()) };
    let field = offset..offset + 2;
    // An ICMP error quotes only a part of a packet.
    let Some(before) = carried.get(offset..).and_then(<[u8]>::first_chunk).copied() else {
        return is_quoted.then_some(());
    };
    if upper == UDP && before == [0; 2] && !is_partial {
        return Some(());
    }
    if is_partial && upper == ICMP {
        return Some(());
    }
    // The changed bytes: the addresses, and, if the checksum is not partial, also the first 8 bytes
    // of the transport header.
    let covers = |tuple: &FlowTuple, bytes: &[u8]| {
        let bytes = if is_partial { &[] } else { &bytes[..bytes.len().min(8)] };
        let mut bytes = bytes.to_vec();
        if let Some(field) = bytes.get_mut(field.clone()) {
            field.fill(0);
        }
        sum(tuple.source, tuple.destination, upper, 0, &bytes)
    };
    let sums = [covers(&read.tuple, &carried), covers(tuple, segment)];
    let theirs = like.get(read.at + offset..).and_then(<[u8]>::first_chunk).copied();
    let theirs = theirs.filter(|it| upper != UDP || is_partial || *it != [0; 2]);
    let mut after = adjusted(before, sums, is_partial, theirs);
    if upper == UDP && !is_partial && after == [0; 2] {
        after = [0xff; 2];
    }
    segment.get_mut(field)?.copy_from_slice(&after);
    Some(())
}

/// A checksum after the bytes that it covers have changed, from their sums before and after (RFC
/// 1624). A partial checksum is a sum itself. A value may have two forms; if `theirs` has the
/// value, its form is used.
fn adjusted(
    before: [u8; 2],
    [old, new]: [u64; 2],
    is_partial: bool,
    theirs: Option<[u8; 2]>,
) -> [u8; 2] {
    let [not_old, not_new] = [old, new].map(|it| u16::from_be_bytes(complement(it)));
    let before = u16::from_be_bytes(before);
    let sum = if is_partial { before } else { !before };
    let folded = fold(u32::from(sum) + u32::from(not_old) + u32::from(!not_new));
    let after = if is_partial { folded } else { !folded };
    let is_same = |it: &[u8; 2]| u16::from_be_bytes(*it) % 0xffff == after % 0xffff;
    theirs.filter(is_same).unwrap_or(after.to_be_bytes())
}

fn put_addresses(bytes: &mut [u8], tuple: &FlowTuple) {
    match (tuple.source, tuple.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            bytes[12..16].copy_from_slice(&source.octets());
            bytes[16..20].copy_from_slice(&destination.octets());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            bytes[8..24].copy_from_slice(&source.octets());
            bytes[24..40].copy_from_slice(&destination.octets());
        }
        _ => {}
    }
}

fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// SCTP's checksum (RFC 9260, appendix A), bit by bit.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}
