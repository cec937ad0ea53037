//! TCP's reset: the answer to a segment for which there is no connection (RFC 9293, section 3.10.7.1).

use zerocopy::IntoBytes;

use crate::checksum;
use crate::packet::{Packet, Pool};
use crate::parse::Parsed;
use crate::wire::address::pseudo;
use crate::wire::tcp::flag;
use crate::wire::{ipv4, ipv6, protocol, tcp};

const TTL: u8 = 64;

/// Builds the reset that answers a segment. Its source is the destination address and port of the segment. `None`: the
/// packet is not a whole TCP segment, it is a reset itself, or there is no buffer.
pub fn build_reset(offending: &[u8], parsed: &Parsed, pool: &mut Pool) -> Option<Packet> {
    if parsed.protocol != protocol::TCP || !parsed.has_ports {
        return None;
    }
    let end = offending.len().min(parsed.total_len.into());
    let segment =
        tcp::View::new_checked(offending.get(parsed.transport_offset.into()..end)?).ok()?;
    if segment.flags & flag::RST != 0 {
        return None;
    }
    // SYN and FIN each take one sequence number.
    let has = |bit| u32::from(segment.flags & bit != 0);
    let len = segment.payload().len() as u32 + has(flag::SYN) + has(flag::FIN);
    let (flags, sequence, acknowledgment) = if segment.flags & flag::ACK != 0 {
        (flag::RST, segment.acknowledgment.get(), 0)
    } else {
        (flag::RST | flag::ACK, 0, segment.sequence.get().wrapping_add(len))
    };
    let (from, to) = (parsed.destination, parsed.source);
    let mut reset = tcp::Header {
        source_port: segment.destination_port,
        destination_port: segment.source_port,
        sequence: sequence.into(),
        acknowledgment: acknowledgment.into(),
        data_offset: (tcp::HEADER_LEN as u8 / 4) << 4,
        flags,
        ..tcp::Header::default()
    };
    let sum =
        pseudo(from, to, protocol::TCP, tcp::HEADER_LEN as u32) + checksum::sum(reset.as_bytes());
    reset.checksum = checksum::finish(sum).into();
    let (Some(v4_from), Some(v4_to)) = (from.to_v4(), to.to_v4()) else {
        let [from, to] = [from, to].map(|it| it.to_bits().to_be_bytes());
        let ip = ipv6::header(from, to, protocol::TCP, TTL, tcp::HEADER_LEN as u16);
        return pool.concatenate(&[&ip, reset.as_bytes()]);
    };
    let ip = ipv4::Header {
        version_ihl: ipv4::VERSION_IHL,
        total_len: ((ipv4::HEADER_LEN + tcp::HEADER_LEN) as u16).into(),
        // The reset fits every MTU, so it needs no identification of its own (RFC 6864, section 4.1).
        flags_offset: ipv4::DONT_FRAGMENT.into(),
        ttl: TTL,
        protocol: protocol::TCP,
        source: v4_from.octets(),
        destination: v4_to.octets(),
        ..ipv4::Header::default()
    };
    pool.concatenate(&[ip.with_checksum().as_bytes(), reset.as_bytes()])
}

#[cfg(test)]
mod tests {
    use etherparse::TcpSlice;
    use proptest::prelude::*;

    use super::*;
    use crate::parse::parse;
    use crate::wire::arbitrary::{self, Transport};

    proptest! {
        /// The receiver accepts it, because its number follows from the receiver's own segment (RFC 9293, section
        /// 3.10.7.1).
        #[test]
        fn a_reset_answers_the_segment_and_no_reset((_, transport, bytes) in arbitrary::described()) {
            let parsed = parse(&bytes).unwrap();
            let reset = build_reset(&bytes, &parsed, &mut Pool::new(1));
            let Transport::Tcp(header) = transport else {
                prop_assert!(reset.is_none());
                return Ok(());
            };
            prop_assert_eq!(reset.is_some(), !header.rst);
            let Some(reset) = reset else { return Ok(()) };
            let read = parse(reset.bytes()).unwrap();
            prop_assert_eq!((read.source, read.destination), (parsed.destination, parsed.source));
            prop_assert_eq!(usize::from(read.total_len), reset.len());
            let segment = &reset.bytes()[usize::from(read.transport_offset)..];
            prop_assert!(checksum::tests::transport_is_right(read.source, read.destination, protocol::TCP, segment));
            let found = TcpSlice::from_slice(segment).unwrap();
            prop_assert_eq!((found.source_port(), found.destination_port()), (header.destination_port, header.source_port));
            prop_assert!(found.rst() && !found.syn() && !found.fin());
            let payload = bytes.len() - usize::from(parsed.header_len);
            let len = payload as u32 + u32::from(header.syn) + u32::from(header.fin);
            if header.ack {
                prop_assert!(!found.ack());
                prop_assert_eq!(found.sequence_number(), header.acknowledgment_number);
            } else {
                prop_assert!(found.ack());
                prop_assert_eq!(found.sequence_number(), 0);
                prop_assert_eq!(found.acknowledgment_number(), header.sequence_number.wrapping_add(len));
            }
        }
    }
}
