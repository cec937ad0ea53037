//! Connections in which both ends send, and their next packets.

use std::net::IpAddr;

use fastrand::Rng;

use super::generate::{ASKED, Generator};
use super::read::{FlowTuple, TransportKey, flag};
use super::services::{Asked, Reach};
use super::translations::asked_of;
use crate::packet::{ICMP, ICMPV6, SCTP, TCP, UDP};

/// The number of connections at the same time.
const CONVERSATIONS: usize = 96;

/// A connection with packets of both ends.
#[derive(Debug, Clone, Copy)]
pub struct Conversation {
    /// The tuple of the packets of the side that opened it.
    tuple: FlowTuple,
    /// The number of packets so far.
    stage: u32,
    sequences: [u32; 2],
}

/// The next packet of one end.
#[derive(Debug, Clone, Copy)]
pub struct NextPacket {
    pub tuple: FlowTuple,
    /// The tuple with which it arrives, which a translation may have changed.
    pub arrives: FlowTuple,
    pub flags: u8,
    pub sequence: u32,
}

impl Generator {
    /// Two addresses of one family. Usually at least one of them belongs to a pod.
    pub fn ends(&mut self) -> (IpAddr, IpAddr) {
        let family = usize::from(self.rng.u8(..4) == 0 && !self.pods[1].is_empty());
        let some = |of: &[IpAddr], rng: &mut Rng| of.get(rng.usize(..of.len().max(1))).copied();
        let all = some(&self.all[family], &mut self.rng);
        let pod = some(&self.pods[family], &mut self.rng).or(all);
        let other =
            if self.rng.u8(..3) == 0 { all } else { some(&self.pods[family], &mut self.rng) };
        let outside = IpAddr::from([192, 0, 2, 9]);
        let (one, other) = (pod.unwrap_or(outside), other.or(all).unwrap_or(outside));
        if self.rng.u8(..4) == 0 { (other, one) } else { (one, other) }
    }

    /// A tuple with ports, or with an ICMP query.
    pub fn tuple(&mut self) -> FlowTuple {
        if let Some(tuple) = self.asking() {
            return tuple;
        }
        if self.services.way_out.is_some()
            && self.rng.u8(..4) == 0
            && let Some(tuple) = self.leaving()
        {
            return tuple;
        }
        let (source, destination) = self.ends();
        let v4 = source.is_ipv4();
        match self.rng.u8(..16) {
            it @ 0..13 => {
                let upper = match it {
                    0..7 => TCP,
                    7..11 => UDP,
                    _ => SCTP,
                };
                let to = self.port();
                let from = match self.rng.u8(..16) {
                    0 => self.port(),
                    _ => 1024 + (self.serial.wrapping_mul(7) % 64_000) as u16,
                };
                FlowTuple { source, destination, upper, transport: TransportKey::Ports(from, to) }
            }
            13 | 14 => FlowTuple::echo(source, destination, self.serial as u16),
            _ => {
                let upper = if v4 { ICMP } else { ICMPV6 };
                let kind = if v4 { 13 } else { 128 };
                let transport = TransportKey::Query { kind, asks: true, id: self.rng.u16(..) };
                FlowTuple { source, destination, upper, transport }
            }
        }
    }

    /// The tuple of a client that connects to a service, or sometimes directly to a backend.
    fn asking(&mut self) -> Option<FlowTuple> {
        let family = usize::from(self.rng.u8(..4) == 0);
        let asked =
            self.asked[family].get(self.rng.usize(..self.asked[family].len().max(1))).copied();
        let mut asked = asked.filter(|_| self.rng.u8(..3) == 0)?;
        if self.services.way_out.is_some() && self.rng.u8(..8) == 0 {
            asked = self.balanced(family).unwrap_or(asked);
        }
        let (address, upper, port) = asked;
        let pods = &self.pods[family];
        let of = if self.rng.u8(..8) == 0 { &self.all[family] } else { pods };
        let mut source = of.get(self.rng.usize(..of.len().max(1))).copied()?;
        let reach = self.services.reach(&(address, upper, port));
        if matches!(reach, Some(Reach::NodePort(_) | Reach::Balancer)) && self.rng.u8(..4) > 0 {
            source = self.outside(family);
        }
        self.serial += 1;
        // There are few source ports, so connections to two services may become the same connection
        // behind the translation.
        let from = match self.rng.u8(..8) {
            0 => 2000 + self.rng.u16(..4),
            _ => 1024 + (self.serial.wrapping_mul(7) % 64_000) as u16,
        };
        let backends =
            self.services.frontends.get(&(address, upper, port)).map(|it| &it.backends[..]);
        let backend = backends.and_then(|it| it.get(self.rng.usize(..it.len().max(1))));
        let (destination, to) = match (self.rng.u8(..16), backend) {
            (0, Some(backend)) => *backend,
            (1, _) => (address, port ^ 1),
            _ => (address, port),
        };
        Some(FlowTuple { source, destination, upper, transport: TransportKey::Ports(from, to) })
    }

    /// A balancer's frontend.
    fn balanced(&mut self, family: usize) -> Option<Asked> {
        let services = &self.services;
        let is_balanced = |it: &&Asked| services.reach(it) == Some(Reach::Balancer);
        let of: Vec<Asked> = self.asked[family].iter().filter(is_balanced).copied().collect();
        of.get(self.rng.usize(..of.len().max(1))).copied()
    }

    /// The tuple of a pod that connects to the world.
    fn leaving(&mut self) -> Option<FlowTuple> {
        let family = usize::from(self.rng.u8(..4) == 0);
        let pods = &self.pods[family];
        let source = pods.get(self.rng.usize(..pods.len().max(1))).copied()?;
        let destination = self.outside(family);
        self.serial += 1;
        let from = match self.rng.u8(..4) {
            0 => 2000 + self.rng.u16(..4),
            _ => 1024 + (self.serial.wrapping_mul(7) % 64_000) as u16,
        };
        let transport = TransportKey::Ports(from, self.pick(&ASKED));
        Some(match self.rng.u8(..8) {
            0 => FlowTuple::echo(source, destination, from),
            1 => FlowTuple { source, destination, upper: SCTP, transport },
            2..5 => FlowTuple { source, destination, upper: UDP, transport },
            _ => FlowTuple { source, destination, upper: TCP, transport },
        })
    }

    /// The tuple of the answer to a packet, as its receiver sends it. If the test does not know the
    /// translated form of a client's packet, it takes one of the backends.
    fn answering(&self, tuple: &FlowTuple) -> FlowTuple {
        let behind = self.behind.iter().find_map(|it| it.get(tuple));
        if let Some(behind) = behind {
            return behind.reversed();
        }
        let reach = asked_of(tuple).and_then(|asked| self.services.reach(&asked));
        if !self.services.is_address(tuple.destination) && reach.is_none() {
            return tuple.reversed();
        }
        let frontend = asked_of(tuple).and_then(|asked| self.services.frontends.get(&asked));
        let backends = frontend.map_or(&[][..], |it| &it.backends);
        let backend = backends.get(self.serial as usize % backends.len().max(1));
        let (Some((destination, to)), TransportKey::Ports(from, _)) = (backend, tuple.transport)
        else {
            return tuple.reversed();
        };
        let transport = TransportKey::Ports(from, *to);
        FlowTuple { destination: *destination, transport, ..*tuple }.reversed()
    }

    pub(super) fn port(&mut self) -> u16 {
        self.serial += 1;
        self.ports[self.rng.usize(..self.ports.len())]
    }

    /// The next packet, usually of an open connection.
    pub fn next_packet(&mut self) -> NextPacket {
        if self.conversations.is_empty() || self.rng.u8(..8) == 0 {
            return self.begin();
        }
        let at = self.rng.usize(..self.conversations.len());
        let conversation = &mut self.conversations[at];
        let answers = match conversation.stage {
            0 => false,
            1 => true,
            _ => self.rng.bool(),
        };
        let side = usize::from(answers);
        let flags = match (conversation.tuple.upper, conversation.stage, self.rng.u8(..64)) {
            (TCP, 0, _) => flag::SYN,
            (TCP, 1, _) => flag::SYN | flag::ACK,
            (TCP, _, 0 | 1) => flag::FIN | flag::ACK,
            (TCP, _, 2) => flag::RST,
            (TCP, _, 3) => flag::SYN,
            (TCP, _, 4..20) => flag::ACK | flag::PSH,
            (TCP, ..) => flag::ACK,
            _ => 0,
        };
        conversation.stage += 1;
        let sequence = conversation.sequences[side];
        conversation.sequences[side] = sequence.wrapping_add(10_000);
        let tuple = conversation.tuple;
        let answer = self.answering(&tuple);
        let (tuple, arrives) =
            if answers { (answer, tuple.reversed()) } else { (tuple, answer.reversed()) };
        NextPacket { tuple, arrives, flags, sequence }
    }

    /// Opens another connection.
    pub(super) fn begin(&mut self) -> NextPacket {
        let tuple = self.tuple();
        let sequences = [self.rng.u32(..), self.rng.u32(..)];
        let conversation = Conversation { tuple, stage: 1, sequences };
        if self.conversations.len() < CONVERSATIONS {
            self.conversations.push(conversation);
        } else {
            let at = self.rng.usize(..CONVERSATIONS);
            self.conversations[at] = conversation;
        }
        let flags = if tuple.upper == TCP { flag::SYN } else { 0 };
        NextPacket { tuple, arrives: tuple, flags, sequence: sequences[0] }
    }
}
