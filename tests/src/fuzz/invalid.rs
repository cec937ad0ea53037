//! Packets that are invalid on purpose: with another pod's source, to addresses without a pod, with fragments that do
//! not fit, from false tunnels, with changed bits, and with false virtio headers.

use std::net::{IpAddr, Ipv4Addr};

use manx_dataplane::packet::Offload;
use manx_dataplane::port::virtio;
use manx_dataplane::tables::PortId;

use super::conversations::NextPacket;
use super::coverage::Kind;
use super::generate::{Generator, Home};
use super::input::Injected;
use super::read::{FlowTuple, TransportKey};
use super::writer::{self, Outer, fix_ipv4_checksum};
use crate::fabric::{FORWARDED, HOST, RAW, UNDERLAY};
use crate::packet::{ICMP, ICMPV6, TCP, UDP};

/// The VXLAN network of Calico.
const VNI: u32 = 4096;

impl Generator {
    pub fn invalid_packet(&mut self) {
        match self.rng.u8(..24) {
            0..3 => self.odd_fragments(),
            3..5 => self.false_error(),
            5..8 => self.spoofed(),
            8..10 => self.pod_tunnel(),
            10..13 => self.tunnelled(),
            13..16 => self.false_tunnel(),
            16 => self.unmarked(),
            17..19 => self.nowhere(),
            19 | 20 => self.transit(),
            21 | 22 => self.false_offload(),
            _ => self.noise(),
        }
    }

    fn written(&mut self, tuple: &FlowTuple) -> Vec<u8> {
        let next = NextPacket { tuple: *tuple, arrives: *tuple, flags: 0x10, sequence: 1 };
        let style = self.style(&next);
        let mut bytes = self.buffer();
        writer::write(&mut bytes, tuple, &style);
        bytes
    }

    pub(super) fn push_at(
        &mut self,
        node: usize,
        port: PortId,
        kind: Kind,
        bytes: Vec<u8>,
        is_clean: bool,
    ) {
        let worker = self.rng.usize(..8);
        let offload = Offload::default();
        self.made.push(Injected { node, port, worker, bytes, offload, kind, is_clean });
    }
    /// An ICMP error about `quoted`, from `source`.
    fn error_about(
        &mut self,
        quoted: &[u8],
        source: IpAddr,
        destination: IpAddr,
        kind: u8,
        code: u8,
    ) -> Vec<u8> {
        let upper = if source.is_ipv4() { ICMP } else { ICMPV6 };
        let mut message = vec![kind, code, 0, 0, 0, 0, 5, 0];
        message.extend_from_slice(quoted);
        let tuple =
            FlowTuple { source, destination, upper, transport: TransportKey::Message(kind, code) };
        let next = NextPacket { tuple, arrives: tuple, flags: 0, sequence: 0 };
        let style = self.style(&next);
        let mut bytes = Vec::with_capacity(message.len() + 60);
        writer::write_around(&mut bytes, &tuple, &style, &message);
        let at = if source.is_ipv4() { 20 } else { 40 };
        writer::fix_headers(&mut bytes, &tuple, at);
        bytes
    }

    /// An ICMP error to the sender of a packet of an open connection.
    pub fn error(&mut self) {
        let tuple = self.next_packet().arrives;
        let mut quoted = self.written(&tuple);
        if self.rng.bool() {
            let header = if tuple.is_v4() { 20 } else { 40 };
            quoted.truncate(header + 8);
        }
        quoted.truncate(500);
        let v4 = tuple.is_v4();
        let (kind, code) = if v4 {
            self.pick(&[(3, 1), (3, 3), (3, 4), (11, 0), (12, 0)])
        } else {
            self.pick(&[(1, 4), (2, 0), (3, 0), (4, 1)])
        };
        // No error is sent about an ICMP answer.
        let is_clean = !matches!(tuple.transport, TransportKey::Query { asks: false, .. });
        let bytes = self.error_about(&quoted, tuple.destination, tuple.source, kind, code);
        self.push(Kind::Error, &tuple.reversed(), bytes, Offload::default(), is_clean);
    }

    fn false_error(&mut self) {
        let next = self.next_packet();
        let tuple = next.tuple;
        let quoted = self.written(&tuple);
        let (stranger, other) = self.ends();
        let v4 = tuple.is_v4();
        let (kind, code) = if v4 {
            self.pick(&[(3, 1), (5, 1), (11, 0)])
        } else {
            self.pick(&[(1, 0), (2, 0), (100, 0)])
        };
        let same = |address: IpAddr| address.is_ipv4() == v4;
        let (source, destination) = match self.rng.u8(..4) {
            // The error is from a stranger, to a stranger, or in the wrong direction.
            0 if same(stranger) => (stranger, tuple.source),
            1 if same(other) => (tuple.destination, other),
            2 => (tuple.source, tuple.destination),
            _ => (tuple.destination, tuple.source),
        };
        let mut bytes = self.error_about(&quoted, source, destination, kind, code);
        if self.rng.u8(..3) == 0 {
            bytes = self.error_about(&bytes.clone(), destination, source, kind, code);
        }
        let from = FlowTuple { source, destination, ..tuple };
        self.push(Kind::FalseError, &from, bytes, Offload::default(), false);
    }

    fn spoofed(&mut self) {
        let next = self.next_packet();
        let bytes = self.written(&next.tuple);
        let (somebody, _) = self.ends();
        let (node, port) = match self.home(somebody) {
            Home::Pod { node, port } => (node, port),
            Home::Node(node) => (node, if self.rng.bool() { HOST } else { FORWARDED }),
            Home::World => (self.rng.usize(..2), self.of_the_world()),
        };
        self.push_at(node, port, Kind::Spoofed, bytes, false);
    }

    fn pod_tunnel(&mut self) {
        let Some(pods) = Some(self.pods[0].clone()).filter(|it| !it.is_empty()) else { return };
        let own = self.pick(&pods);
        let (Home::Pod { node, port }, IpAddr::V4(from)) = (self.home(own), own) else { return };
        let inner = {
            let next = self.next_packet();
            self.written(&next.tuple)
        };
        let to = self.pick(&[
            UNDERLAY[0],
            UNDERLAY[1],
            Ipv4Addr::new(192, 0, 2, 1),
            Ipv4Addr::new(10, 0, 0, 1),
        ]);
        let vxlan = self.rng.bool().then_some(VNI);
        let bytes = writer::encapsulate(&Outer { from, to, vxlan, ecn: 0, options: false }, &inner);
        self.push_at(node, port, Kind::PodTunnel, bytes, false);
    }

    /// A tuple from a pod or the router of the other node to a pod of this node.
    fn tunnelled_tuple(&mut self, node: usize) -> Option<FlowTuple> {
        let of = |home: Home, node: usize| matches!(home, Home::Pod { node: at, .. } if at == node);
        let pods = self.pods[0].clone();
        let far: Vec<IpAddr> =
            pods.iter().copied().filter(|it| of(self.home(*it), 1 - node)).collect();
        let near: Vec<IpAddr> =
            pods.iter().copied().filter(|it| of(self.home(*it), node)).collect();
        if far.is_empty() || near.is_empty() {
            return None;
        }
        let router = IpAddr::from([10, 244, 2 - node as u8, 1]);
        let source = if self.rng.u8(..8) == 0 { router } else { self.pick(&far) };
        let destination = self.pick(&near);
        let tuple = self.tuple();
        match tuple.transport {
            TransportKey::Ports(..) => Some(FlowTuple { source, destination, ..tuple }),
            _ => Some(FlowTuple::echo(source, destination, self.rng.u16(..))),
        }
    }

    /// The outer header from the other node to this one, with this world's encapsulation.
    fn outer(&self, node: usize) -> Outer {
        let vxlan = self.is_vxlan.then_some(VNI);
        Outer { from: UNDERLAY[1 - node], to: UNDERLAY[node], vxlan, ecn: 0, options: false }
    }

    fn tunnelled(&mut self) {
        let node = self.rng.usize(..2);
        let Some(tuple) = self.tunnelled_tuple(node) else { return };
        let inner = self.written(&tuple);
        let mut outer = self.outer(node);
        outer.ecn = inner[1] & 3;
        outer.options = self.rng.u8(..8) == 0;
        let bytes = writer::encapsulate(&outer, &inner);
        self.push_at(node, RAW, Kind::Tunnelled, bytes, true);
    }

    fn false_tunnel(&mut self) {
        let node = self.rng.usize(..2);
        let Some(mut tuple) = self.tunnelled_tuple(node) else { return };
        let mut outer = self.outer(node);
        let stranger = Ipv4Addr::new(172, 18, 0, 77);
        let near = tuple.destination;
        let lie = self.rng.u8(..12);
        match lie {
            0 => tuple.source = near,
            1 => tuple.source = IpAddr::from([192, 0, 2, 1]),
            2 => tuple.source = UNDERLAY[1 - node].into(),
            3 => tuple.source = IpAddr::from([10, 244, 1 + node as u8, 77]),
            4 => outer.from = stranger,
            5 => outer.to = stranger,
            6 => (outer.from, outer.to) = (outer.to, outer.to),
            7 => outer.ecn = 3,
            8 => outer.vxlan = if self.is_vxlan { None } else { Some(VNI) },
            9 => outer.vxlan = Some(77),
            10 => tuple = self.next_packet().tuple,
            _ => tuple.destination = IpAddr::from([10, 244, 1 + node as u8, 1]),
        }
        let mut inner = self.written(&tuple);
        if lie == 7 {
            inner[1] &= !3;
            fix_ipv4_checksum(&mut inner);
        }
        let bytes = writer::encapsulate(&outer, &inner);
        self.push_at(node, RAW, Kind::FalseTunnel, bytes, false);
    }

    /// Super-packets and packets with partial checksums, as two kernels on one machine pass them to each other. The
    /// tunnel's socket delivers them without the metadata that says so.
    fn unmarked(&mut self) {
        let node = self.rng.usize(..2);
        let Some(tuple) = self.tunnelled_tuple(node) else { return };
        let FlowTuple { transport: transport @ TransportKey::Ports(..), .. } = tuple else {
            return;
        };
        let upper = self.pick(&[TCP, TCP, UDP]);
        let tuple = FlowTuple { upper, transport, ..tuple };
        let next = NextPacket { tuple, arrives: tuple, flags: 0x10, sequence: self.rng.u32(..) };
        let mut style = self.style(&next);
        if upper == TCP && self.rng.bool() {
            style.payload = self.rng.usize(1500..9000);
        }
        (style.ttl, style.ecn) = (64, 0);
        let mut inner = Vec::new();
        writer::write(&mut inner, &tuple, &style);
        writer::make_checksum_partial(&mut inner, &tuple, 20);
        let bytes = writer::encapsulate(&self.outer(node), &inner);
        self.push_at(node, RAW, Kind::Unmarked, bytes, false);
    }

    fn nowhere(&mut self) {
        let mut tuple = self.next_packet().tuple;
        let v4 = tuple.is_v4();
        let of: &[&str] = if v4 {
            &[
                "10.244.1.77",
                "10.244.2.77",
                "10.244.9.1",
                "224.0.0.1",
                "255.255.255.255",
                "127.0.0.1",
                "0.0.0.0",
                "240.0.0.1",
            ]
        } else {
            &["fd44:1::77", "fd44:2::77", "fe80::1", "ff02::1", "ff0e::1", "::1", "::"]
        };
        let address = self.pick(of).parse().unwrap();
        let (node, port, _) = self.spot(&tuple);
        if self.rng.u8(..4) == 0 {
            tuple.source = address;
        } else {
            tuple.destination = address;
        }
        let bytes = self.written(&tuple);
        self.push_at(node, port, Kind::Nowhere, bytes, false);
    }

    fn transit(&mut self) {
        let node = self.rng.usize(..2);
        let own = UNDERLAY[node].into();
        let world = IpAddr::from([192, 0, 2, 1]);
        let other = IpAddr::from([198, 51, 100, 1]);
        let router = IpAddr::from([10, 244, 2 - node as u8, 1]);
        let far = self.pods[0]
            .iter()
            .copied()
            .find(|it| matches!(self.home(*it), Home::Pod { node: at, .. } if at != node));
        let far = far.unwrap_or(router);
        let (source, destination, tunnel) = self.pick(&[
            (world, other, false),
            (world, own, false),
            (own, world, false),
            (world, far, false),
            (own, far, false),
            (far, world, true),
            (far, own, true),
            (router, own, true),
        ]);
        let tuple = self.tuple();
        let tuple = match tuple.transport {
            TransportKey::Ports(..) => FlowTuple { source, destination, ..tuple },
            _ => FlowTuple::echo(source, destination, 7),
        };
        let bytes = self.written(&tuple);
        if tunnel {
            let outer = Outer { ecn: bytes[1] & 3, ..self.outer(node) };
            let bytes = writer::encapsulate(&outer, &bytes);
            self.push_at(node, RAW, Kind::Transit, bytes, false);
        } else {
            let port = self.of_the_world();
            self.push_at(node, port, Kind::Transit, bytes, false);
        }
    }

    /// A packet with a random virtio header; if the port refuses the header, the packet is sent without it.
    fn false_offload(&mut self) {
        let next = self.next_packet();
        let mut style = self.style(&next);
        if self.rng.bool() {
            style.payload = self.rng.usize(1000..5000);
        }
        let mut bytes = Vec::new();
        writer::write(&mut bytes, &next.tuple, &style);
        let len = bytes.len() as u16;
        let mut header = [0; virtio::HEADER_LEN];
        header[0] = self.pick(&[0, 1, 1, 1, 2, 3]);
        header[1] = self.pick(&[0, 1, 1, 3, 4, 4, 5, 5, 0x81, 0x85, 7]);
        let hdr_len = self.rng.u16(..200);
        let size = self.pick(&[0, 1, 7, 100, 536, 1448, 9000, 0xffff]);
        let start = self.pick(&[20, 20, 40, 40, 0, 24, 60, len.wrapping_sub(2), 0xffff]);
        let offset = self.pick(&[16, 16, 6, 6, 2, 0, 1, 0xfff0]);
        for (at, value) in [(2, hdr_len), (4, size), (6, start), (8, offset)] {
            header[at..at + 2].copy_from_slice(&value.to_ne_bytes());
        }
        let offload = virtio::decode(&header, &bytes, 0).unwrap_or_default();
        self.push(Kind::FalseOffload, &next.tuple, bytes, offload, false);
    }
}
