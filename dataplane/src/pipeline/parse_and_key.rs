//! The parse pass for one packet: reads its headers and forms the key of its flow.

use super::input;
use crate::decide::{Arrival, PacketMetadata};
use crate::drop_reason::DropReason;
use crate::flow::FlowTable;
use crate::packet::Packet;
use crate::parse::{self, parse};

/// Parses a packet and forms the key of its flow.
#[inline(always)]
#[expect(
    clippy::inline_always,
    reason = "as PacketMetadata::new, so that its fields are written in place"
)]
pub(super) fn parse_and_key_packet(
    packet: &mut Packet,
    arrival: &Arrival,
    flows: &FlowTable,
    metadata: &mut PacketMetadata,
) -> Result<(), DropReason> {
    let plain = parse::parse_plain(packet.bytes()).filter(|_| packet.is_finished());
    match plain {
        Some(plain) => {
            packet.truncate(plain.total_len.into());
            *metadata =
                PacketMetadata::new(&plain, (1, plain.total_len.into()), true, arrival, flows);
            Ok(())
        }
        None => parse_and_key_any(packet, arrival, flows, metadata),
    }
}

/// The general case of [`parse_and_key_packet`]: the packet is not plain, lacks a checksum, or is a super-packet.
#[inline(never)]
fn parse_and_key_any(
    packet: &mut Packet,
    arrival: &Arrival,
    flows: &FlowTable,
    metadata: &mut PacketMetadata,
) -> Result<(), DropReason> {
    let parsed = parse(packet.bytes())?;
    let on_a_wire = input::check_offload(packet, &parsed)?;
    *metadata = PacketMetadata::new(&parsed, on_a_wire, packet.is_finished(), arrival, flows);
    Ok(())
}
