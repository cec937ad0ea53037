//! Which datagrams count as segments of a super-packet.

use manx_dataplane::tables::PortId;

use super::super::coverage::Kind;
use super::super::input::Injected;
use super::*;
use crate::packet::{Tuple, super_packet};

fn tuple() -> Tuple {
    Tuple::new("fd00::1", "fd00::2", UDP, 53)
}

fn sent(payload: &[u8], size: u16) -> Input {
    let (bytes, offload) = super_packet(tuple(), payload, size);
    let (kind, port) = (Kind::SuperPacket, PortId(5));
    let sent = Injected { node: 0, port, worker: 0, bytes, offload, kind, is_clean: true };
    Input::new(sent, manx_calculation::overlay::Overlay::Ipip, 1480)
}

/// The bytes of `input` that a datagram with this payload contains.
fn piece(payload: &[u8], input: &Input) -> Option<usize> {
    let bytes = tuple().data(payload);
    Wire::new(&bytes, Checksum::Unverified).unwrap().is_piece(input)
}

/// A datagram with only a part of a segment's bytes does not count as this segment.
#[test]
fn a_segment_has_the_bytes_and_the_length_of_its_place() {
    let payload: Vec<u8> = (1..=20).collect();
    let input = sent(&payload, 8);
    for (range, found) in
        [(0..8, Some(8)), (8..16, Some(8)), (16..20, Some(4)), (0..1, None), (8..20, None)]
    {
        assert_eq!(piece(&payload[range.clone()], &input), found, "{range:?}");
    }
}

#[test]
fn a_super_packet_without_payload_is_one_empty_segment() {
    assert_eq!(piece(&[], &sent(&[], 100)), Some(0));
    assert_eq!(piece(&[], &sent(&[1, 2, 3], 100)), None);
}
