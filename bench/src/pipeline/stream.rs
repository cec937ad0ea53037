//! Packets of many flows, made one after the other as cheaply as possible: a template, and what differs.

use std::net::Ipv4Addr;
use std::sync::Arc;

use manx_dataplane::checksum;
use manx_dataplane::packet::{Checksum, Offload, SegmentKind, Segmentation};
use manx_dataplane::wire::{protocol, tcp};

use super::node::{CLIENT, NODE};
use super::peers::{Peer, Peers, scattered};

/// Length of a packet without an outer header, from the IP header on.
pub(crate) const LEN: usize = 64;
const IP: usize = 20;
const SOURCE: usize = 12;
const DESTINATION: usize = 16;
const CHECKSUM: usize = 10;

/// Which way packets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the client to its peers.
    Forth,
    /// Their answers.
    Back,
    /// Their answers, out of their nodes' tunnels.
    Tunnelled,
    /// From peers that begin flows with the client.
    Knock,
}

/// Which flow comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Any, each as likely as any other, whatever has come before. The draws are the same in each run.
    Random,
    /// One after the other.
    InTurn,
    /// None that was there before, as far as there are numbers (2^30), in no order.
    Scattered,
}

/// Packets of `flows` flows between the client and its peers, for ever.
#[derive(Clone)]
pub(crate) struct Stream {
    peers: Arc<Peers>,
    way: Way,
    order: Order,
    template: Vec<u8>,
    /// Of the template's inner and outer header.
    sums: [u32; 2],
    offload: Offload,
    /// Where the (outer) IP header begins in the template.
    start: usize,
    first: u32,
    flows: u32,
    at: u32,
    draw: Draw,
}

/// Numbers drawn at random, the same in each run: a linear congruential generator.
#[derive(Clone, Default)]
pub(crate) struct Draw(u64);

impl Draw {
    /// A number below this one, each as likely as any other.
    #[inline]
    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        // The constants of Knuth's MMIX; the upper bits are the good ones.
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (((self.0 >> 32) * u64::from(limit)) >> 32) as u32
    }
}

impl Stream {
    /// UDP, flows `first..first + flows`.
    pub(crate) fn udp(peers: &Arc<Peers>, way: Way, first: u32, flows: u32) -> Self {
        let mut transport = [0; LEN - IP];
        transport[4..6].copy_from_slice(&((LEN - IP) as u16).to_be_bytes());
        Self::new(peers, way, first, flows, protocol::UDP, &transport)
    }

    /// TCP with these flags.
    pub(crate) fn tcp(peers: &Arc<Peers>, way: Way, first: u32, flows: u32, flags: u8) -> Self {
        let mut transport = [0; LEN - IP];
        (transport[12], transport[13]) = (5 << 4, flags);
        Self::new(peers, way, first, flows, protocol::TCP, &transport)
    }

    /// TCP super-packets of this much payload, from the client.
    pub(crate) fn super_packets(peers: &Arc<Peers>, flows: u32, payload: usize, size: u16) -> Self {
        let mut transport = vec![0; tcp::HEADER_LEN + payload];
        (transport[12], transport[13]) = (5 << 4, tcp::flag::ACK);
        let mut stream = Self::new(peers, Way::Forth, 0, flows, protocol::TCP, &transport);
        stream.offload = Offload {
            checksum: Checksum::Partial { start: IP as u16, offset: 16 },
            segmentation: Some(Segmentation { kind: SegmentKind::Tcp4, size, ecn: false }),
        };
        stream
    }

    fn new(
        peers: &Arc<Peers>,
        way: Way,
        first: u32,
        flows: u32,
        protocol: u8,
        transport: &[u8],
    ) -> Self {
        let nowhere = Ipv4Addr::UNSPECIFIED;
        let (source, destination) = match way {
            Way::Forth => (CLIENT, nowhere),
            Way::Back | Way::Tunnelled | Way::Knock => (nowhere, CLIENT),
        };
        let len = IP + transport.len();
        let inner = ip(len, protocol, source, destination);
        let mut template = Vec::new();
        let mut sums = [checksum::sum(&inner), 0];
        if way == Way::Tunnelled {
            let outer = ip(len + IP, protocol::IPIP, nowhere, NODE);
            sums[1] = checksum::sum(&outer);
            template.extend(outer);
        }
        template.extend(inner);
        template.extend(transport);
        let (peers, order) = (Arc::clone(peers), Order::Random);
        Self {
            peers,
            way,
            order,
            template,
            sums,
            offload: Offload::default(),
            start: 0,
            first,
            flows,
            at: 0,
            draw: Draw::default(),
        }
    }

    /// How many flows it has.
    pub(crate) fn flows(&self) -> u32 {
        self.flows
    }

    /// What a device would say of each packet.
    #[inline]
    pub(crate) fn offload(&self) -> Offload {
        self.offload
    }

    /// The same in another order.
    pub(crate) fn in_order(self, order: Order) -> Self {
        Self { order, ..self }
    }

    /// A packet, but for what differs.
    pub(crate) fn packet(&self) -> &[u8] {
        &self.template[self.start..]
    }

    /// The same, each packet behind this header, and no other.
    pub(crate) fn behind(mut self, header: &[u8]) -> Self {
        self.template.splice(..self.start, header.iter().copied());
        self.start = header.len();
        self
    }

    #[inline]
    fn next(&mut self) -> u32 {
        let at = match self.order {
            Order::Random => self.draw.below(self.flows),
            Order::InTurn | Order::Scattered => {
                let at = self.at;
                self.at = if at + 1 == self.flows { 0 } else { at + 1 };
                if self.order == Order::Scattered { scattered(at) } else { at }
            }
        };
        self.first.wrapping_add(at)
    }

    /// Writes the next packet and tells its length.
    #[inline]
    pub(crate) fn write_next(&mut self, room: &mut [u8]) -> usize {
        let flow = self.next();
        let len = self.template.len();
        room[..len].copy_from_slice(&self.template);
        let bytes = &mut room[self.start..len];
        let Peer { address: peer, node, ports: [client_port, peer_port] } = self.peers.of(flow);
        let inner = if self.way == Way::Tunnelled {
            address(bytes, SOURCE, node, self.sums[1]);
            &mut bytes[IP..]
        } else {
            bytes
        };
        let (at, ports) = match self.way {
            Way::Forth => (DESTINATION, [client_port, peer_port]),
            Way::Back | Way::Tunnelled => (SOURCE, [peer_port, client_port]),
            Way::Knock => (SOURCE, [client_port, peer_port]),
        };
        address(inner, at, peer, self.sums[0]);
        inner[IP..IP + 2].copy_from_slice(&ports[0].to_be_bytes());
        inner[IP + 2..IP + 4].copy_from_slice(&ports[1].to_be_bytes());
        len
    }
}

/// Puts an address into a header whose sum without it is `sum`.
#[inline]
fn address(header: &mut [u8], at: usize, address: u32, sum: u32) {
    header[at..at + 4].copy_from_slice(&address.to_be_bytes());
    let checksum = checksum::finish(sum + (address >> 16) + (address & 0xffff));
    header[CHECKSUM..CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// A header without its checksum.
fn ip(len: usize, protocol: u8, source: Ipv4Addr, destination: Ipv4Addr) -> [u8; IP] {
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
        let mut stream = Stream::udp(&peers, Way::Forth, 0, FLOWS).in_order(order);
        (0..count).map(|_| stream.next()).collect()
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
        // Of 100 expected: five standard deviations.
        assert!(counts.iter().all(|count| (50..150).contains(count)), "{counts:?}");
    }

    #[test]
    fn in_turn_each_flow_comes_once_before_any_comes_again() {
        let expected: Vec<u32> = (0..FLOWS).chain(0..FLOWS).collect();
        assert_eq!(drawn(Order::InTurn, 2 * FLOWS as usize), expected);
    }
}
