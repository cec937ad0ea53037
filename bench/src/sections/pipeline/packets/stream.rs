//! Packets of many flows, generated as cheaply as possible: each packet is a copy of a template, into which the
//! addresses and ports of a flow are written.

use std::net::Ipv4Addr;
use std::sync::Arc;

use manx_dataplane::checksum;
use manx_dataplane::packet::{Checksum, Offload, SegmentKind, Segmentation};
use manx_dataplane::wire::{protocol, tcp};

use super::addresses::{CLIENT, NODE};
use super::peers::{Peer, Peers, scatter};

/// The length of a packet without an outer header, starting at the IP header, in bytes.
pub(crate) const LEN: usize = 64;
const IP: usize = 20;
const SOURCE: usize = 12;
const DESTINATION: usize = 16;
const CHECKSUM: usize = 10;

/// The direction of the packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the client to its peers.
    Request,
    /// The replies of the peers.
    Reply,
    /// The replies of the peers, in the tunnels of their nodes.
    TunnelledReply,
    /// From peers that open flows to the client.
    Unsolicited,
}

/// The order of the flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// For each packet, a random flow, all equally likely. The sequence is the same in each run.
    Random,
    /// One flow after the other.
    InTurn,
    /// A new flow for each packet, in an order that no cache can predict. Flows repeat after as many packets as there
    /// are flows, and at the latest after 2^30 packets.
    Scattered,
}

/// An endless stream of packets of `flows` flows between the client and its peers.
#[derive(Clone)]
pub(crate) struct Stream {
    peers: Arc<Peers>,
    direction: Direction,
    order: Order,
    template: Vec<u8>,
    /// The checksum sums of the template's inner and outer IP headers, without the address that differs between flows.
    sums: [u32; 2],
    offload: Offload,
    /// The offset of the (outer) IP header in the template.
    start: usize,
    first: u32,
    flows: u32,
    next: u32,
    random: Random,
}

/// A linear congruential generator. Its numbers are the same in each run.
#[derive(Clone, Default)]
pub(crate) struct Random(u64);

impl Random {
    /// A random number below `limit`. All numbers are equally likely.
    #[inline]
    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        // These are the constants of Knuth's MMIX. The upper bits have the best quality.
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (((self.0 >> 32) * u64::from(limit)) >> 32) as u32
    }
}

impl Stream {
    /// UDP packets of the flows `first..first + flows`.
    pub(crate) fn udp(peers: &Arc<Peers>, direction: Direction, first: u32, flows: u32) -> Self {
        let mut transport = [0; LEN - IP];
        transport[4..6].copy_from_slice(&((LEN - IP) as u16).to_be_bytes());
        Self::new(peers, direction, first, flows, protocol::UDP, &transport)
    }

    /// TCP packets with these flags.
    pub(crate) fn tcp(
        peers: &Arc<Peers>,
        direction: Direction,
        first: u32,
        flows: u32,
        flags: u8,
    ) -> Self {
        let mut transport = [0; LEN - IP];
        (transport[12], transport[13]) = (5 << 4, flags);
        Self::new(peers, direction, first, flows, protocol::TCP, &transport)
    }

    /// TCP super-packets from the client, with this many payload bytes and segments of this size.
    pub(crate) fn super_packets(peers: &Arc<Peers>, flows: u32, payload: usize, size: u16) -> Self {
        let mut transport = vec![0; tcp::HEADER_LEN + payload];
        (transport[12], transport[13]) = (5 << 4, tcp::flag::ACK);
        let mut stream = Self::new(peers, Direction::Request, 0, flows, protocol::TCP, &transport);
        stream.offload = Offload {
            checksum: Checksum::Partial { start: IP as u16, offset: 16 },
            segmentation: Some(Segmentation { kind: SegmentKind::Tcp4, size, ecn: false }),
        };
        stream
    }

    fn new(
        peers: &Arc<Peers>,
        direction: Direction,
        first: u32,
        flows: u32,
        protocol: u8,
        transport: &[u8],
    ) -> Self {
        let unset = Ipv4Addr::UNSPECIFIED;
        let (source, destination) = match direction {
            Direction::Request => (CLIENT, unset),
            Direction::Reply | Direction::TunnelledReply | Direction::Unsolicited => {
                (unset, CLIENT)
            }
        };
        let len = IP + transport.len();
        let inner = ip_header(len, protocol, source, destination);
        let mut template = Vec::new();
        let mut sums = [checksum::sum(&inner), 0];
        if direction == Direction::TunnelledReply {
            let outer = ip_header(len + IP, protocol::IPIP, unset, NODE);
            sums[1] = checksum::sum(&outer);
            template.extend(outer);
        }
        template.extend(inner);
        template.extend(transport);
        let (peers, order) = (Arc::clone(peers), Order::Random);
        Self {
            peers,
            direction,
            order,
            template,
            sums,
            offload: Offload::default(),
            start: 0,
            first,
            flows,
            next: 0,
            random: Random::default(),
        }
    }

    /// The number of flows.
    pub(crate) fn flows(&self) -> u32 {
        self.flows
    }

    /// The offload metadata that a device would report with each packet.
    #[inline]
    pub(crate) fn offload(&self) -> Offload {
        self.offload
    }

    /// The same packets in another order.
    pub(crate) fn in_order(self, order: Order) -> Self {
        Self { order, ..self }
    }

    /// The template of a packet.
    pub(crate) fn template(&self) -> &[u8] {
        &self.template[self.start..]
    }

    /// The same packets, each after this link header, which replaces an earlier one.
    pub(crate) fn with_link_header(mut self, header: &[u8]) -> Self {
        self.template.splice(..self.start, header.iter().copied());
        self.start = header.len();
        self
    }

    #[inline]
    fn next_flow(&mut self) -> u32 {
        let at = match self.order {
            Order::Random => self.random.below(self.flows),
            Order::InTurn | Order::Scattered => {
                let at = self.next;
                self.next = if at + 1 == self.flows { 0 } else { at + 1 };
                if self.order == Order::Scattered { scatter(at) } else { at }
            }
        };
        self.first.wrapping_add(at)
    }

    /// Writes the next packet. Returns its length.
    #[inline]
    pub(crate) fn write_next(&mut self, room: &mut [u8]) -> usize {
        let flow = self.next_flow();
        let len = self.template.len();
        room[..len].copy_from_slice(&self.template);
        let bytes = &mut room[self.start..len];
        let Peer { address: peer, node, ports: [client_port, peer_port] } = self.peers.peer(flow);
        let inner = if self.direction == Direction::TunnelledReply {
            set_address(bytes, SOURCE, node, self.sums[1]);
            &mut bytes[IP..]
        } else {
            bytes
        };
        let (at, ports) = match self.direction {
            Direction::Request => (DESTINATION, [client_port, peer_port]),
            Direction::Reply | Direction::TunnelledReply => (SOURCE, [peer_port, client_port]),
            Direction::Unsolicited => (SOURCE, [client_port, peer_port]),
        };
        set_address(inner, at, peer, self.sums[0]);
        inner[IP..IP + 2].copy_from_slice(&ports[0].to_be_bytes());
        inner[IP + 2..IP + 4].copy_from_slice(&ports[1].to_be_bytes());
        len
    }
}

/// Writes an address and the checksum into a header. `sum` is the sum of the header without the address.
#[inline]
fn set_address(header: &mut [u8], at: usize, address: u32, sum: u32) {
    header[at..at + 4].copy_from_slice(&address.to_be_bytes());
    let checksum = checksum::finish(sum + (address >> 16) + (address & 0xffff));
    header[CHECKSUM..CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// An IPv4 header without its checksum.
fn ip_header(len: usize, protocol: u8, source: Ipv4Addr, destination: Ipv4Addr) -> [u8; IP] {
    let mut header = [0; IP];
    (header[0], header[6], header[8], header[9]) = (0x45, 0x40, 64, protocol);
    header[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    header[SOURCE..SOURCE + 4].copy_from_slice(&source.octets());
    header[DESTINATION..DESTINATION + 4].copy_from_slice(&destination.octets());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOWS: u32 = 1000;

    fn drawn(order: Order, count: usize) -> Vec<u32> {
        let peers = Peers::far(1, false);
        let mut stream = Stream::udp(&peers, Direction::Request, 0, FLOWS).in_order(order);
        (0..count).map(|_| stream.next_flow()).collect()
    }

    #[test]
    fn random_flows_come_in_no_order_that_repeats_and_each_as_often() {
        let drawn = drawn(Order::Random, 100_000);
        let (first, others) = drawn.split_at(2 * FLOWS as usize);
        let start = &first[..8];
        assert!(!others.windows(8).any(|window| window == start), "the order repeats");
        let mut counts = [0; FLOWS as usize];
        for flow in &drawn {
            counts[*flow as usize] += 1;
        }
        // The expected count is 100, and the bounds are five standard deviations away.
        assert!(counts.iter().all(|count| (50..150).contains(count)), "{counts:?}");
    }

    #[test]
    fn in_turn_each_flow_comes_once_before_any_comes_again() {
        let expected: Vec<u32> = (0..FLOWS).chain(0..FLOWS).collect();
        assert_eq!(drawn(Order::InTurn, 2 * FLOWS as usize), expected);
    }
}
