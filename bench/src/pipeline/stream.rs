//! Packets of many flows, made one after the other as cheaply as possible: a template, and what differs.

use std::net::Ipv4Addr;
use std::sync::Arc;

use manx_dataplane::checksum;
use manx_dataplane::packet::{Checksum, Offload, SegmentKind, Segmentation};
use manx_dataplane::wire::{protocol, tcp};

use super::node::{CLIENT, NODE, Peers};

/// Length of a packet without an outer header, from the IP header on.
pub(crate) const LEN: usize = 64;
const IP: usize = 20;
const SOURCE: usize = 12;
const DESTINATION: usize = 16;
const CHECKSUM: usize = 10;
/// The well-known port of all flows, and the 63 behind it.
pub(crate) const PORT: u16 = 5000;
/// The other port is from here up to `FIRST_SOURCE_PORT + SOURCE_PORTS - 1`: none that is treated apart, as VXLAN's is.
const FIRST_SOURCE_PORT: u16 = 8192;
const SOURCE_PORTS: u32 = 1 << 15;
/// Flows follow each other in this stride, so that no two neighbours in time are neighbours in memory.
const STRIDE: u32 = 77_773;

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

/// The packets of `flows` flows between the client and its peers, in turn, for ever.
#[derive(Clone)]
pub(crate) struct Stream {
    peers: Arc<Peers>,
    way: Way,
    template: Vec<u8>,
    /// Of the template's inner and outer header.
    sums: [u32; 2],
    offload: Offload,
    first: u32,
    flows: u32,
    at: u32,
    stride: u32,
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
        let stride = if flows.is_multiple_of(STRIDE) { 1 } else { STRIDE % flows.max(1) };
        let (peers, offload) = (Arc::clone(peers), Offload::default());
        Self { peers, way, template, sums, offload, first, flows, at: 0, stride }
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

    /// One flow after the other, each once before any comes again.
    pub(crate) fn in_order(mut self) -> Self {
        self.stride = 1;
        self
    }

    /// Writes the next packet and tells its length.
    #[inline]
    pub(crate) fn write_next(&mut self, room: &mut [u8]) -> usize {
        let flow = self.first.wrapping_add(self.at);
        self.at += self.stride;
        if self.at >= self.flows {
            self.at -= self.flows;
        }
        let len = self.template.len();
        let bytes = &mut room[..len];
        bytes.copy_from_slice(&self.template);
        let (peer, node, rest) = self.peers.of(flow);
        let source = FIRST_SOURCE_PORT + (rest % SOURCE_PORTS) as u16;
        let destination = PORT + (rest / SOURCE_PORTS) as u16 % 64;
        let inner = if self.way == Way::Tunnelled {
            address(bytes, SOURCE, node, self.sums[1]);
            &mut bytes[IP..]
        } else {
            bytes
        };
        let (at, ports) = match self.way {
            Way::Forth => (DESTINATION, [source, destination]),
            Way::Back | Way::Tunnelled => (SOURCE, [destination, source]),
            Way::Knock => (SOURCE, [source, destination]),
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
