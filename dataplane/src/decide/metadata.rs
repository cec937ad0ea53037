//! The results of the parse pass for one packet. They suffice for [`fast_path`](super::fast_path()), and are small
//! enough that those of a whole batch stay in the cache.

use super::entrance::Entrance;
use super::key::flow_key;
use crate::encapsulation::is_tunnel_port;
use crate::flow::{FlowKey, FlowTable, Guess, Orientation, TcpFlags};
use crate::packet::Packet;
use crate::parse::{Fragment, Parsed};
use crate::tables::PortId;
use crate::wire::address::Address;

/// How a packet arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// The entrance by which it came.
    pub entrance: Entrance,
    /// The port at which it arrived, which may be another worker's.
    pub port: PortId,
    /// The number of workers that have handed it off.
    pub handoffs: u8,
}

/// The key and hash of a packet's flow, computed once for all lookups.
#[derive(Debug, Clone, Copy)]
pub struct FlowLookup {
    /// The [`flow_key`].
    pub key: FlowKey,
    /// The key's hash in the worker's flow table.
    pub hash: u64,
    /// The slot where the flow probably is.
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
    /// The port at which it arrived, which may be another worker's.
    pub port: PortId,
    /// The number of workers that have handed it off.
    pub handoffs: u8,
    /// The number of packets on a wire that it stands for. 0 means that it cannot be parsed.
    pub segments: u32,
    /// The length on a wire: that of the packet, or of the largest segment of a super-packet.
    pub unit: u32,
    /// The packet's length as its IP header gives it.
    pub total_len: u16,
    /// The end of the layer-4 header. Each segment of a super-packet repeats the bytes before it.
    pub header_len: u16,
    /// TTL or hop limit.
    pub ttl: u8,
    /// The flags of TCP; none for other protocols.
    pub tcp_flags: TcpFlags,
    /// Whether its flow alone decides it: it has ports, is no fragment, and does not carry a tunnel.
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

    /// Whether the packet may belong to a connection that exists. False if its protocol shows that it opens one.
    #[inline]
    pub(super) fn is_under_way(&self) -> bool {
        !self.tcp_flags.opens()
    }

    /// The metadata of a packet, from the number of packets that it is [on a wire](crate::packet::Body::on_a_wire) and
    /// from whether a wire could carry it unchanged. `flows` is the table in which its flow will be looked up.
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
            // The fast path does not check the protocol; the slow path does.
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
    /// The packet. Its headers are parsed again if its flow alone does not decide it.
    pub packet: &'a Packet,
    /// Its metadata.
    pub metadata: &'a PacketMetadata,
}
