//! The results of the parse pass for a packet: enough for [`fast_path`](super::fast_path()), and small enough that
//! those of a batch stay in the cache.

use super::entrance::Entrance;
use super::key::flow_key;
use crate::encapsulation::is_tunnel_port;
use crate::flow::{FlowKey, FlowTable, Guess, Orientation, TcpFlags};
use crate::packet::Packet;
use crate::parse::{Fragment, Parsed};
use crate::tables::PortId;
use crate::wire::address::Address;

/// The way by which a packet came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// The entrance by which it came.
    pub entrance: Entrance,
    /// The port that brought it, to this worker or another one.
    pub port: PortId,
    /// The number of workers that have had it before.
    pub handoffs: u8,
}

/// The key and hash of a packet's flow, formed once for all lookups.
#[derive(Debug, Clone, Copy)]
pub struct FlowLookup {
    /// The [`flow_key`].
    pub key: FlowKey,
    /// The key's hash in the worker's flow table.
    pub hash: u64,
    /// The slot at which the flow probably is.
    pub guess: Guess,
    /// The packet's direction in the flow.
    pub orientation: Orientation,
}

impl FlowLookup {
    /// The packet's source and destination.
    #[inline]
    pub fn addresses(&self) -> [Address; 2] {
        [self.key.source(self.orientation).0, self.key.destination(self.orientation).0]
    }
}

/// The metadata of one packet.
#[derive(Debug, Clone, Copy)]
pub struct PacketMetadata {
    /// The key and hash of its flow.
    pub flow: FlowLookup,
    /// The entrance by which it came.
    pub entrance: Entrance,
    /// The port that brought it, to this worker or another one.
    pub port: PortId,
    /// The number of workers that have had it before.
    pub handoffs: u8,
    /// The number of packets that a wire would carry for it; 0: it cannot be parsed.
    pub segments: u32,
    /// The length on a wire: of the packet, or of a super-packet's largest segment.
    pub unit: u32,
    /// The packet's length by its IP header.
    pub total_len: u16,
    /// The end of the upper layer's header: each segment of a super-packet repeats the bytes before it.
    pub header_len: u16,
    /// TTL or hop limit.
    pub ttl: u8,
    /// TCP's flags, else none.
    pub tcp_flags: TcpFlags,
    /// Whether its flow alone decides it: it is no fragment, has ports, and does not carry a tunnel.
    pub is_plain: bool,
    /// Whether a wire could carry it ([`is_finished`](crate::packet::Body::is_finished)).
    pub is_finished: bool,
}

impl PacketMetadata {
    /// A placeholder, until the packet is parsed.
    pub const EMPTY: Self = Self {
        flow: FlowLookup {
            key: FlowKey::EMPTY,
            hash: 0,
            guess: Guess::NONE,
            orientation: Orientation::LowToHigh,
        },
        entrance: Entrance::NOWHERE,
        port: PortId(u16::MAX),
        handoffs: 0,
        segments: 0,
        unit: 0,
        total_len: 0,
        header_len: 0,
        ttl: 0,
        tcp_flags: TcpFlags(0),
        is_plain: false,
        is_finished: false,
    };

    /// Whether it may be of a connection that is there: of the protocols that say so, it does not open one.
    #[inline]
    pub(super) fn is_under_way(&self) -> bool {
        !self.tcp_flags.opens()
    }

    /// The metadata of a packet, given the number of its packets [on a wire](crate::packet::Body::on_a_wire) and
    /// whether a wire could carry it unchanged. `flows` is the table in which its flow will be looked up.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "most of it is known beforehand of a plain packet")]
    pub fn new(
        parsed: &Parsed,
        (segments, unit): (u32, u32),
        is_finished: bool,
        arrival: &Arrival,
        flows: &FlowTable,
    ) -> Self {
        let (key, orientation) = flow_key(parsed);
        Self {
            flow: FlowLookup { key, hash: flows.hash(&key), guess: Guess::NONE, orientation },
            entrance: arrival.entrance,
            port: arrival.port,
            handoffs: arrival.handoffs,
            segments,
            unit,
            total_len: parsed.total_len,
            header_len: parsed.header_len,
            ttl: parsed.ttl,
            tcp_flags: TcpFlags(parsed.tcp_flags),
            // The protocol is not asked for here; the slow path asks for it.
            is_plain: parsed.has_ports
                && parsed.fragment == Fragment::Whole
                && !is_tunnel_port(parsed.destination_port),
            is_finished,
        }
    }
}

/// One packet with its metadata.
#[derive(Debug, Clone, Copy)]
pub struct PacketRef<'a> {
    /// The packet: its headers are parsed again where its flow alone does not decide it.
    pub packet: &'a Packet,
    /// Its metadata.
    pub metadata: &'a PacketMetadata,
}
