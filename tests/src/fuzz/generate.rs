//! Packets of a world as they should be. What is wrong on purpose is in `pieces`, `lies` and `mutate`.
//!
//! Nothing here depends on what became of earlier packets: the same seed gives the same packets.

use std::net::IpAddr;

use ahash::AHashMap;
use fastrand::Rng;
use manx_dataplane::packet::{Checksum, Offload};
use manx_dataplane::tables::PortId;

use super::coverage::Kind;
use super::craft::{self, Extra, NO_HEADER, Style};
use super::epoch::own_addresses;
use super::input::Injected;
use super::plan::Plan;
use super::read::{Speech, Words, flag};
use super::talks::{Talk, Turn};
use crate::fabric::HOST;
use crate::packet::{ICMP, ICMPV6, TCP, UDP};

/// Where somebody sends from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    Pod { node: usize, port: PortId },
    Node(usize),
    World,
}

/// See the module.
pub struct Generator {
    pub rng: Rng,
    pub talks: Vec<Talk>,
    homes: AHashMap<IpAddr, Home>,
    /// By family, IPv4 first: pods of this cluster, and everybody.
    pub pods: [Vec<IpAddr>; 2],
    pub all: [Vec<IpAddr>; 2],
    pub ports: Vec<u16>,
    pub serial: u64,
    /// The nodes' tunnel is VXLAN, and not IPIP.
    pub is_vxlan: bool,
    pub made: Vec<Injected>,
    /// Later fragments that are held back.
    pub late: Vec<Injected>,
    /// Buffers that were used before.
    pub spare: Vec<Vec<u8>>,
}

impl Generator {
    pub fn new(rng: Rng, plan: &Plan, is_vxlan: bool) -> Self {
        // Policies name few numbers; around them verdicts change.
        let numbers = plan.numbers();
        let named = numbers.iter().copied().filter(|it| *it >= 50 || *it == 1);
        let mut ports: Vec<u16> = named.flat_map(|it| [it, it, it.wrapping_add(1)]).collect();
        ports.push(4789);
        let mut generator = Self {
            rng,
            talks: Vec::new(),
            homes: AHashMap::new(),
            pods: Default::default(),
            all: Default::default(),
            ports,
            serial: 0,
            is_vxlan,
            made: Vec::new(),
            late: Vec::new(),
            spare: Vec::new(),
        };
        generator.follow(plan);
        generator
    }

    /// Learns who is where.
    pub fn follow(&mut self, plan: &Plan) {
        self.homes.clear();
        (self.pods, self.all) = Default::default();
        for seat in &plan.seats {
            for address in &seat.addresses {
                let family = usize::from(address.is_ipv6());
                self.all[family].push(*address);
                if let Some(attachment) = seat.attachment {
                    self.pods[family].push(*address);
                    let home = Home::Pod { node: seat.node, port: attachment.port };
                    self.homes.insert(*address, home);
                }
            }
        }
        for node in 0..2 {
            for address in own_addresses(node) {
                self.all[usize::from(address.is_ipv6())].push(address);
                self.homes.insert(address, Home::Node(node));
            }
        }
        for address in [
            "10.0.0.9",
            "10.0.0.14",
            "192.0.2.1",
            "169.254.169.254",
            "fd00::9",
            "fd00::e",
            "2001:db8::1",
        ] {
            let address: IpAddr = address.parse().unwrap();
            self.all[usize::from(address.is_ipv6())].push(address);
        }
    }

    pub fn home(&self, address: IpAddr) -> Home {
        self.homes.get(&address).copied().unwrap_or(Home::World)
    }

    /// Makes one packet, or several that belong together.
    pub fn step(&mut self) {
        let from = self.made.len();
        match self.rng.u8(..) {
            0..30 => self.opening(),
            30..100 => self.talk(Kind::Talk),
            100..130 => self.talk(Kind::Partial),
            130..140 => self.talk(Kind::Options),
            140..144 => self.talk(Kind::SuperPacket),
            144..150 => self.train(),
            150..155 => self.talk(Kind::Large),
            155..163 => self.fragments(),
            163..168 => self.talk(Kind::ShortLived),
            168..173 => self.icmp(),
            173..179 => self.error(),
            179..184 => self.other_protocol(),
            184..190 => self.itself(),
            190..249 => self.lie(),
            249 => self.late_fragment(),
            _ => {
                if self.rng.u8(..8) == 0 {
                    self.flood();
                } else {
                    self.opening();
                }
            }
        }
        if self.rng.u8(..16) == 0 {
            self.mutate(from);
        }
    }

    pub fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.usize(..of.len())]
    }

    pub fn style(&mut self, turn: &Turn) -> Style {
        self.serial += 1;
        let rng = &mut self.rng;
        let payload = match rng.u8(..8) {
            0 => 0,
            1..6 => rng.usize(8..100),
            6 => rng.usize(100..600),
            _ => rng.usize(600..1300),
        };
        Style {
            ttl: if rng.bool() { 64 } else { rng.u8(2..) },
            id: self.serial as u16,
            ecn: if rng.u8(..8) == 0 { rng.u8(..4) } else { 0 },
            may_be_cut: rng.bool(),
            extra: Extra::Nothing,
            flags: turn.flags,
            sequence: turn.sequence,
            payload: if turn.flags & (flag::SYN | flag::RST) != 0 { 0 } else { payload },
            serial: self.serial,
        }
    }

    /// Where a packet of somebody's goes in, and by which worker.
    pub fn spot(&mut self, speech: &Speech) -> (usize, PortId, usize) {
        let (node, port) = match (self.home(speech.source), self.home(speech.destination)) {
            (Home::Pod { node, port }, _) => (node, port),
            (Home::Node(node), _) | (Home::World, Home::Pod { node, .. } | Home::Node(node)) => {
                (node, HOST)
            }
            (Home::World, Home::World) => (self.rng.usize(..2), HOST),
        };
        let worker = match (self.rng.u8(..16), speech.words) {
            (0, _) => self.rng.usize(..8),
            (_, Words::Ports(from, to)) => usize::from(from ^ to),
            (_, Words::Query { id, .. }) => id.into(),
            _ => 0,
        };
        (node, port, worker)
    }

    pub fn push(
        &mut self,
        kind: Kind,
        speech: &Speech,
        bytes: Vec<u8>,
        offload: Offload,
        is_clean: bool,
    ) {
        let (node, port, worker) = self.spot(speech);
        self.made.push(Injected { node, port, worker, bytes, offload, kind, is_clean });
    }

    fn opening(&mut self) {
        let turn = self.begin();
        let style = self.style(&turn);
        self.plain(Kind::Opening, &turn, &style);
    }

    /// Writes a packet as it is and sends it.
    pub fn plain(&mut self, kind: Kind, turn: &Turn, style: &Style) {
        let mut bytes = self.buffer();
        craft::write(&mut bytes, &turn.speech, style);
        self.push(kind, &turn.speech, bytes, Offload::default(), true);
    }

    /// A packet of somebody's in one of the ordinary shapes.
    fn talk(&mut self, kind: Kind) {
        let mut turn = self.turn();
        let mut style = self.style(&turn);
        let v4 = turn.speech.is_v4();
        match kind {
            Kind::Options if v4 => style.extra = Extra::Options(self.rng.u8(1..11)),
            Kind::Options => {
                let none = NO_HEADER;
                let kinds = [
                    [0, none, none],
                    [0, 60, none],
                    [43, none, none],
                    [44, none, none],
                    [51, 60, none],
                    [60, 43, 60],
                ];
                style.extra = Extra::Extensions(self.pick(&kinds));
            }
            Kind::ShortLived => style.ttl = self.rng.u8(..3),
            Kind::Large => {
                style.payload = self.rng.usize(1330..4000);
                turn.flags &= !flag::SYN;
            }
            Kind::SuperPacket => return self.super_packet(turn, style),
            _ => {}
        }
        let mut bytes = self.buffer();
        craft::write(&mut bytes, &turn.speech, &style);
        let mut offload = Offload::default();
        if kind == Kind::Partial {
            offload.checksum = self.unfinished(&mut bytes, &turn.speech);
        }
        self.push(kind, &turn.speech, bytes, offload, true);
    }

    fn unfinished(&mut self, bytes: &mut [u8], speech: &Speech) -> Checksum {
        let at = if speech.is_v4() { 20 } else { 40 };
        craft::unfinish(bytes, speech, at)
    }

    fn super_packet(&mut self, mut turn: Turn, mut style: Style) {
        if !matches!(turn.speech.upper, TCP | UDP) {
            let upper = self.pick(&[TCP, UDP]);
            let words = Words::Ports(self.port(), self.port());
            turn.speech = Speech { upper, words, ..turn.speech };
        }
        turn.flags = if turn.speech.upper == TCP {
            flag::ACK | self.pick(&[0, flag::PSH, flag::PSH, flag::PSH | flag::CWR, flag::FIN])
        } else {
            0
        };
        style.flags = turn.flags;
        let long = self.rng.u8(..16) == 0;
        style.payload =
            if long { self.rng.usize(9000..60_000) } else { self.rng.usize(1500..9000) };
        let size = match self.rng.u8(..8) {
            0 => self.rng.u16(1400..3000),
            1 => 1448,
            _ => self.rng.u16(536..1300),
        };
        let mut bytes = self.buffer();
        craft::write(&mut bytes, &turn.speech, &style);
        let at = if turn.speech.is_v4() { 20 } else { 40 };
        let offload = craft::super_packet(&mut bytes, &turn.speech, at, size);
        self.push(Kind::SuperPacket, &turn.speech, bytes, offload, size < 1300);
    }

    /// Segments that follow each other.
    fn train(&mut self) {
        let mut turn = self.turn();
        if !matches!(turn.speech.upper, TCP | UDP) {
            return self.opening();
        }
        if turn.flags & flag::SYN != 0 {
            turn.flags = flag::ACK;
        }
        let mut style = Style { flags: turn.flags, ..self.style(&turn) };
        style.payload = self.rng.usize(10..700);
        let count = self.rng.usize(2..12);
        let from = self.made.len();
        for nth in 0..count {
            self.serial += 1;
            style.serial = self.serial;
            if nth + 1 == count && self.rng.bool() {
                style.payload = style.payload.div_ceil(2);
            }
            self.plain(Kind::Train, &turn, &style);
            style.id = style.id.wrapping_add(1);
            style.sequence = style.sequence.wrapping_add(style.payload as u32);
        }
        let (worker, partial) = (self.made[from].worker, self.rng.u8(..4) == 0);
        for at in from..self.made.len() {
            self.made[at].worker = worker;
            if partial {
                let mut bytes = std::mem::take(&mut self.made[at].bytes);
                self.made[at].offload.checksum = self.unfinished(&mut bytes, &turn.speech);
                self.made[at].bytes = bytes;
            }
        }
    }

    /// Many of one connection, read by a worker that need not have it.
    fn flood(&mut self) {
        let turn = self.turn();
        let worker = self.rng.usize(..8);
        for _ in 0..self.rng.usize(80..160) {
            let mut style = self.style(&turn);
            (style.payload, style.flags) = (style.payload.min(32), turn.flags & !flag::SYN);
            let before = self.made.len();
            self.plain(Kind::Flood, &turn, &style);
            self.made[before].worker = worker;
        }
    }

    fn icmp(&mut self) {
        let (source, destination) = self.ends();
        let upper = if source.is_ipv4() { ICMP } else { ICMPV6 };
        let mut speech = Speech::echo(source, destination, self.rng.u16(..64));
        let mut kind = Kind::Query;
        if self.rng.bool() {
            speech = speech.reversed();
        }
        if self.rng.u8(..3) == 0 {
            kind = Kind::Message;
            let of_family: &[u8] = if upper == ICMP {
                &[0, 8, 9, 13, 15, 17, 42, 200]
            } else {
                &[128, 129, 130, 133, 135, 200]
            };
            let message = self.pick(of_family);
            speech = Speech {
                source,
                destination,
                upper,
                words: Words::Message(message, self.rng.u8(1..3)),
            };
        }
        let turn = Turn { speech, flags: 0, sequence: 0 };
        let style = self.style(&turn);
        self.plain(kind, &turn, &style);
    }

    fn other_protocol(&mut self) {
        let (source, destination) = self.ends();
        let v4 = source.is_ipv4();
        let upper = self.pick(&[2, 41, 47, 50, 89, 136, 255, if v4 { ICMPV6 } else { ICMP }]);
        let speech = Speech { source, destination, upper, words: Words::Nothing };
        let turn = Turn { speech, flags: 0, sequence: 0 };
        let style = self.style(&turn);
        self.plain(Kind::OtherProtocol, &turn, &style);
    }

    fn itself(&mut self) {
        let mut turn = self.begin();
        let family = usize::from(turn.speech.source.is_ipv6());
        if self.pods[family].is_empty() {
            return;
        }
        let own = self.pick(&self.pods[family].clone());
        (turn.speech.source, turn.speech.destination) = (own, own);
        if let Words::Ports(from, to) = &mut turn.speech.words
            && self.rng.u8(..4) == 0
        {
            *from = *to;
        }
        let style = self.style(&turn);
        self.plain(Kind::Itself, &turn, &style);
    }
}
