//! Valid packets of a world. Invalid ones are in `fragments`, `invalid` and `mutate`.
//!
//! Packets do not depend on the outcome of earlier ones, so the same seed gives the same packets.

use std::net::IpAddr;
use std::rc::Rc;

use ahash::AHashMap;
use fastrand::Rng;
use manx_dataplane::packet::{Checksum, Offload};
use manx_dataplane::tables::PortId;

use super::conversations::{Conversation, NextPacket};
use super::coverage::Kind;
use super::epoch::addresses_of_node;
use super::input::Injected;
use super::plan::Plan;
use super::read::{FlowTuple, TransportKey, flag};
use super::services::{Asked, Reach, Services};
use super::translations::asked_of;
use super::way_out::ported_addresses;
use super::writer::{self, Extra, NO_HEADER, Style};
use crate::fabric::{FORWARDED, HOST, MANX};
use crate::packet::{ICMP, ICMPV6, SCTP, TCP, UDP};

/// The ports of the world to which pods connect. There are few, so that connections compete for the
/// ports of the way out.
pub const ASKED: [u16; 2] = [53, 443];

/// The place of an address, which determines the port by which its packets come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    Pod { node: usize, port: PortId },
    Node(usize),
    World,
}

/// See the module.
pub struct Generator {
    pub rng: Rng,
    pub conversations: Vec<Conversation>,
    homes: AHashMap<IpAddr, Home>,
    /// The addresses of the pods, and all addresses, by family (IPv4 first).
    pub pods: [Vec<IpAddr>; 2],
    pub all: [Vec<IpAddr>; 2],
    pub ports: Vec<u16>,
    pub services: Rc<Services>,
    /// The service ports to which clients connect, by family.
    pub asked: [Vec<Asked>; 2],
    /// The translated forms of clients' tuples, by node.
    pub behind: [AHashMap<FlowTuple, FlowTuple>; 2],
    pub serial: u64,
    /// The number of times that routers have chosen other nodes for their clients.
    turns: usize,
    /// Whether the tunnel is VXLAN and not IPIP.
    pub is_vxlan: bool,
    pub made: Vec<Injected>,
    /// Later fragments that are held back.
    pub late: Vec<Injected>,
    /// Buffers for reuse.
    pub spare: Vec<Vec<u8>>,
}

impl Generator {
    pub fn new(rng: Rng, plan: &Plan, is_vxlan: bool) -> Self {
        // Verdicts change at the few port numbers that policies name.
        let numbers = plan.numbers();
        let named = numbers.iter().copied().filter(|it| *it >= 50 || *it == 1);
        let mut ports: Vec<u16> = named.flat_map(|it| [it, it, it.wrapping_add(1)]).collect();
        ports.push(4789);
        let mut generator = Self {
            rng,
            conversations: Vec::new(),
            homes: AHashMap::new(),
            pods: Default::default(),
            all: Default::default(),
            ports,
            services: Rc::default(),
            asked: Default::default(),
            behind: Default::default(),
            serial: 0,
            turns: 0,
            is_vxlan,
            made: Vec::new(),
            late: Vec::new(),
            spare: Vec::new(),
        };
        generator.follow(plan);
        generator
    }

    /// Updates the addresses and their ports.
    pub fn follow(&mut self, plan: &Plan) {
        self.homes.clear();
        (self.pods, self.all, self.asked) = Default::default();
        self.services = Rc::clone(&plan.services);
        for asked in self.services.frontends.keys() {
            self.asked[usize::from(asked.0.is_ipv6())].push(*asked);
        }
        for address in &self.services.addresses {
            self.all[usize::from(address.is_ipv6())].push(*address);
        }
        for planned in &plan.planned_pods {
            for address in &planned.addresses {
                let family = usize::from(address.is_ipv6());
                self.all[family].push(*address);
                if let Some(attachment) = planned.attachment {
                    self.pods[family].push(*address);
                    let home = Home::Pod { node: planned.node, port: attachment.port };
                    self.homes.insert(*address, home);
                }
            }
        }
        for node in 0..2 {
            for address in addresses_of_node(node) {
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

    /// Generates one packet, or several that belong together.
    pub fn step(&mut self) {
        let from = self.made.len();
        match self.rng.u8(..) {
            0..30 => self.opening(),
            30..100 => self.conversation(Kind::Conversation),
            100..130 => self.conversation(Kind::Partial),
            130..140 => self.conversation(Kind::Options),
            140..144 => self.conversation(Kind::SuperPacket),
            144..150 => self.train(),
            150..155 => self.conversation(Kind::Large),
            155..163 => self.fragments(),
            163..168 => self.conversation(Kind::ShortLived),
            168..173 => self.icmp(),
            173..179 => self.error(),
            179..184 => self.other_protocol(),
            184..190 => self.itself(),
            190..249 => self.invalid_packet(),
            249 => self.late_fragment(),
            250..253 if self.services.way_out.is_some() => self.stranger(),
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

    pub fn style(&mut self, next: &NextPacket) -> Style {
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
            flags: next.flags,
            sequence: next.sequence,
            payload: if next.flags & (flag::SYN | flag::RST) != 0 { 0 } else { payload },
            serial: self.serial,
        }
    }

    /// Chooses the node, the port and the worker that receive a packet. The port is one behind
    /// which the packet's source is.
    pub fn spot(&mut self, tuple: &FlowTuple) -> (usize, PortId, usize) {
        let (node, port) = match (self.home(tuple.source), self.home(tuple.destination)) {
            // The packet goes from outside, or from the node's own processes, to ports of the node
            // that belong to Manx.
            (Home::World | Home::Node(_), Home::Node(node)) if self.is_ported(tuple) => {
                (node, MANX)
            }
            (Home::World, Home::World) if self.is_balanced(tuple) => {
                (self.router(tuple), self.of_the_world())
            }
            (Home::Pod { node, port }, _) => (node, port),
            (Home::Node(node), _) => (node, HOST),
            (Home::World, Home::Pod { node, .. } | Home::Node(node)) => (node, self.of_the_world()),
            (Home::World, Home::World) => (self.rng.usize(..2), self.of_the_world()),
        };
        let worker = match (self.rng.u8(..16), tuple.transport) {
            (0, _) => self.rng.usize(..8),
            (_, TransportKey::Ports(from, to)) => usize::from(from ^ to),
            (_, TransportKey::Query { id, .. }) => id.into(),
            _ => 0,
        };
        (node, port, worker)
    }

    /// Whether the node's routing rules lead a packet to the ports of the node that belong to Manx.
    fn is_ported(&self, tuple: &FlowTuple) -> bool {
        let Some(way_out) = &self.services.way_out else { return false };
        let is_own = |node: usize| ported_addresses(node).contains(&tuple.destination);
        let reach = asked_of(tuple).and_then(|asked| self.services.reach(&asked));
        let has_port = match tuple.transport {
            TransportKey::Ports(_, to) => way_out.has_port(to),
            TransportKey::Query { asks, .. } => !asks,
            TransportKey::Message(..) | TransportKey::Nothing => true,
        };
        (0..2).any(is_own) && (has_port || matches!(reach, Some(Reach::NodePort(_))))
    }

    fn is_balanced(&self, tuple: &FlowTuple) -> bool {
        let reach = asked_of(tuple).and_then(|asked| self.services.reach(&asked));
        reach == Some(Reach::Balancer)
    }

    /// The node to which a router sends the packets of a connection. Sometimes the router chooses
    /// another node.
    fn router(&mut self, tuple: &FlowTuple) -> usize {
        let TransportKey::Ports(from, _) = tuple.transport else { return 0 };
        self.turns += usize::from(self.rng.u8(..32) == 0);
        (usize::from(from) + self.turns) % 2
    }

    /// A packet from an unknown sender to a port of a node: one of the way out, a node port, or an
    /// unused one.
    fn stranger(&mut self) {
        let Some(way_out) = self.services.way_out.clone() else { return self.opening() };
        let node = self.rng.usize(..2);
        let family = usize::from(self.rng.u8(..4) == 0);
        let destination = ported_addresses(node)[family];
        let source = self.outside(family);
        let (first, last) = way_out.egress;
        let to = match self.rng.u8(..8) {
            0 => 30_000 + self.rng.u16(..200),
            1 => self.port(),
            _ => first + self.rng.u16(..=(last - first).min(8)),
        };
        let from = if self.rng.bool() { self.pick(&ASKED) } else { self.rng.u16(1024..) };
        let upper = self.pick(&[TCP, TCP, UDP, SCTP, ICMP]);
        let tuple = match upper {
            ICMP if self.rng.bool() => FlowTuple::echo(destination, source, to).reversed(),
            ICMP => FlowTuple::echo(source, destination, to),
            _ => {
                let transport = TransportKey::Ports(from, to);
                FlowTuple { source, destination, upper, transport }
            }
        };
        let flags = match upper {
            TCP => self.pick(&[flag::SYN, flag::ACK, flag::RST, flag::SYN | flag::ACK]),
            _ => 0,
        };
        let next = NextPacket { tuple, arrives: tuple, flags, sequence: self.rng.u32(..) };
        let style = self.style(&next);
        let mut bytes = self.buffer();
        writer::write(&mut bytes, &tuple, &style);
        let port = if self.rng.u8(..8) == 0 { self.of_the_world() } else { MANX };
        self.push_at(node, port, Kind::Stranger, bytes, false);
    }

    /// An address of the world.
    pub fn outside(&mut self, family: usize) -> IpAddr {
        let of: [&[&str]; 2] = [&["192.0.2.1", "192.0.2.2"], &["2001:db8::1", "2001:db8::2"]];
        self.pick(of[family]).parse().unwrap()
    }

    /// A port by which packets of the world come in.
    pub fn of_the_world(&mut self) -> PortId {
        if self.rng.bool() { FORWARDED } else { HOST }
    }

    pub fn push(
        &mut self,
        kind: Kind,
        tuple: &FlowTuple,
        bytes: Vec<u8>,
        offload: Offload,
        is_clean: bool,
    ) {
        let (node, port, worker) = self.spot(tuple);
        self.made.push(Injected { node, port, worker, bytes, offload, kind, is_clean });
    }

    fn opening(&mut self) {
        let next = self.begin();
        let style = self.style(&next);
        self.plain(Kind::Opening, &next, &style);
    }

    /// Writes a packet and sends it.
    pub fn plain(&mut self, kind: Kind, next: &NextPacket, style: &Style) {
        let mut bytes = self.buffer();
        writer::write(&mut bytes, &next.tuple, style);
        self.push(kind, &next.tuple, bytes, Offload::default(), true);
    }

    /// An ordinary packet.
    fn conversation(&mut self, kind: Kind) {
        let mut next = self.next_packet();
        let mut style = self.style(&next);
        let v4 = next.tuple.is_v4();
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
                next.flags &= !flag::SYN;
            }
            Kind::SuperPacket => return self.super_packet(next, style),
            _ => {}
        }
        let mut bytes = self.buffer();
        writer::write(&mut bytes, &next.tuple, &style);
        let mut offload = Offload::default();
        if kind == Kind::Partial {
            offload.checksum = self.unfinished(&mut bytes, &next.tuple);
        }
        self.push(kind, &next.tuple, bytes, offload, true);
    }

    fn unfinished(&mut self, bytes: &mut [u8], tuple: &FlowTuple) -> Checksum {
        let at = if tuple.is_v4() { 20 } else { 40 };
        writer::make_checksum_partial(bytes, tuple, at)
    }

    fn super_packet(&mut self, mut next: NextPacket, mut style: Style) {
        if !matches!(next.tuple.upper, TCP | UDP) {
            let upper = self.pick(&[TCP, UDP]);
            let transport = TransportKey::Ports(self.port(), self.port());
            next.tuple = FlowTuple { upper, transport, ..next.tuple };
        }
        next.flags = if next.tuple.upper == TCP {
            flag::ACK | self.pick(&[0, flag::PSH, flag::PSH, flag::PSH | flag::CWR, flag::FIN])
        } else {
            0
        };
        style.flags = next.flags;
        let long = self.rng.u8(..16) == 0;
        style.payload =
            if long { self.rng.usize(9000..60_000) } else { self.rng.usize(1500..9000) };
        let size = match self.rng.u8(..8) {
            0 => self.rng.u16(1400..3000),
            1 => 1448,
            _ => self.rng.u16(536..1300),
        };
        let mut bytes = self.buffer();
        writer::write(&mut bytes, &next.tuple, &style);
        let at = if next.tuple.is_v4() { 20 } else { 40 };
        let offload = writer::super_packet(&mut bytes, &next.tuple, at, size);
        self.push(Kind::SuperPacket, &next.tuple, bytes, offload, size < 1300);
    }

    /// Consecutive packets of a TCP or UDP flow, read by one worker.
    fn train(&mut self) {
        let mut next = self.next_packet();
        if !matches!(next.tuple.upper, TCP | UDP) {
            return self.opening();
        }
        if next.flags & flag::SYN != 0 {
            next.flags = flag::ACK;
        }
        let mut style = Style { flags: next.flags, ..self.style(&next) };
        style.payload = self.rng.usize(10..700);
        let count = self.rng.usize(2..12);
        let from = self.made.len();
        for nth in 0..count {
            self.serial += 1;
            style.serial = self.serial;
            if nth + 1 == count && self.rng.bool() {
                style.payload = style.payload.div_ceil(2);
            }
            self.plain(Kind::Train, &next, &style);
            style.id = style.id.wrapping_add(1);
            style.sequence = style.sequence.wrapping_add(style.payload as u32);
        }
        let (worker, partial) = (self.made[from].worker, self.rng.u8(..4) == 0);
        for at in from..self.made.len() {
            self.made[at].worker = worker;
            if partial {
                let mut bytes = std::mem::take(&mut self.made[at].bytes);
                self.made[at].offload.checksum = self.unfinished(&mut bytes, &next.tuple);
                self.made[at].bytes = bytes;
            }
        }
    }

    /// Many packets of one connection, read by any worker.
    fn flood(&mut self) {
        let next = self.next_packet();
        let worker = self.rng.usize(..8);
        for _ in 0..self.rng.usize(80..160) {
            let mut style = self.style(&next);
            // Without payload they would all be the same, except for their hops left.
            (style.payload, style.flags) = (style.payload.clamp(8, 32), next.flags & !flag::SYN);
            let before = self.made.len();
            self.plain(Kind::Flood, &next, &style);
            self.made[before].worker = worker;
        }
    }

    fn icmp(&mut self) {
        let (source, destination) = self.ends();
        let upper = if source.is_ipv4() { ICMP } else { ICMPV6 };
        let mut tuple = FlowTuple::echo(source, destination, self.rng.u16(..64));
        let mut kind = Kind::Query;
        if self.rng.bool() {
            tuple = tuple.reversed();
        }
        if self.rng.u8(..3) == 0 {
            kind = Kind::Message;
            let of_family: &[u8] = if upper == ICMP {
                &[0, 8, 9, 13, 15, 17, 42, 200]
            } else {
                &[128, 129, 130, 133, 135, 200]
            };
            let message = self.pick(of_family);
            tuple = FlowTuple {
                source,
                destination,
                upper,
                transport: TransportKey::Message(message, self.rng.u8(1..3)),
            };
        }
        let next = NextPacket { tuple, arrives: tuple, flags: 0, sequence: 0 };
        let style = self.style(&next);
        self.plain(kind, &next, &style);
    }

    fn other_protocol(&mut self) {
        let (source, destination) = self.ends();
        let v4 = source.is_ipv4();
        let upper = self.pick(&[2, 41, 47, 50, 89, 136, 255, if v4 { ICMPV6 } else { ICMP }]);
        let tuple = FlowTuple { source, destination, upper, transport: TransportKey::Nothing };
        let next = NextPacket { tuple, arrives: tuple, flags: 0, sequence: 0 };
        let style = self.style(&next);
        self.plain(Kind::OtherProtocol, &next, &style);
    }

    fn itself(&mut self) {
        let mut next = self.begin();
        let family = usize::from(next.tuple.source.is_ipv6());
        if self.pods[family].is_empty() {
            return;
        }
        let own = self.pick(&self.pods[family].clone());
        (next.tuple.source, next.tuple.destination) = (own, own);
        if let TransportKey::Ports(from, to) = &mut next.tuple.transport
            && self.rng.u8(..4) == 0
        {
            *from = *to;
        }
        let style = self.style(&next);
        self.plain(Kind::Itself, &next, &style);
    }
}
