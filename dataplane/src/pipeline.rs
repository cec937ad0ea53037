//! One batch through the pipeline: unwrap, parse and hash everything, decide everything, act.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::Sender;

use crate::checksum;
use crate::counters::{PortCounters, WorkerCounters};
use crate::decide::{self, Decision, Entrance, Memory, Name, Subject};
use crate::denials::Recent;
use crate::encapsulation;
use crate::fate::{DropReason, Fate};
use crate::flow::{FlowEntry, FlowTable, HashSeed};
use crate::fragment::FragmentTracker;
use crate::icmp::{self, ErrorKind};
use crate::judge::NO_SLOT;
use crate::offload::coalesce::{Mergeable, coalesce};
use crate::outbox::{Outbox, Ports};
use crate::packet::{Checksum, Offload, Packet, Pool, SegmentKind, Segmentation};
use crate::parse::{Fragment, Parsed, parse};
use crate::rate_limit::RateLimit;
use crate::report::{Denied, Report};
use crate::tables::{PortId, Role, Tables, Via};
use crate::wire::{icmpv4, icmpv6, protocol, tcp, udp};

/// How much a worker may remember.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Flows.
    pub flows: usize,
    /// Buffers: packets in flight at once.
    pub buffers: usize,
    /// First fragments that wait for their later ones.
    pub fragments: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { flows: 1 << 18, buffers: 512, fragments: 1024 }
    }
}

/// Where a batch came from, and when.
pub(crate) struct Arrival<'a> {
    pub(crate) role: Role,
    pub(crate) counters: &'a PortCounters,
    pub(crate) now: Duration,
}

/// The parts of a worker that a batch passes through.
pub(crate) struct Context<'a> {
    pub(crate) tables: &'a Tables,
    pub(crate) ports: &'a mut Ports,
    pub(crate) outbox: &'a mut Outbox,
    pub(crate) pool: &'a mut Pool,
    pub(crate) lost: &'a mut Vec<(PortId, io::Error)>,
}

impl Context<'_> {
    fn post(&mut self, packet: Packet, header_len: usize, via: Via) -> Result<(), DropReason> {
        let posted = self.outbox.post(self.tables, self.ports, self.pool, packet, header_len, via);
        // A batch of super-packets falls into more segments than there are buffers: send before they run out.
        if self.outbox.is_full() {
            self.outbox.send(self.ports, self.pool, self.lost);
        }
        posted
    }
}

/// A packet between parsing and its fate.
pub(crate) struct Item {
    pub(crate) packet: Packet,
    pub(crate) parsed: Parsed,
    pub(crate) entrance: Entrance,
}

impl Item {
    /// How many packets a wire would carry for it.
    fn segments(&self) -> u64 {
        self.packet.segments(self.parsed.header_len as usize)
    }
}

/// A worker's decisions and what they remember.
pub(crate) struct Pipeline {
    memory: Memory,
    errors: RateLimit,
    recent: Recent,
    aged: Duration,
    items: Vec<Item>,
    /// Of each item the name of its flow.
    names: Vec<Name>,
    counters: Arc<WorkerCounters>,
    reports: Sender<Report>,
}

/// Denials that may wait for control; more are lost and counted.
const REPORTS_WAITING: usize = 8192;
/// ICMP errors that a worker originates (RFC 1812, 4.3.2.8), and how many of them at once.
const ERRORS_PER_SECOND: u32 = 100;
const ERRORS_BURST: u32 = 50;
/// Time in which every bucket of the flow table is looked at once, and the least time between two looks.
const AGE_ROUND: Duration = Duration::from_secs(30);
const AGE_STEP: Duration = Duration::from_millis(10);

impl Pipeline {
    pub(crate) fn new(
        sizes: Sizes,
        reports: Sender<Report>,
        counters: Arc<WorkerCounters>,
    ) -> io::Result<Self> {
        Ok(Self {
            memory: Memory {
                flows: FlowTable::new(sizes.flows, HashSeed::random())?,
                fragments: FragmentTracker::new(sizes.fragments),
                evictions: 0,
            },
            errors: RateLimit::new(ERRORS_PER_SECOND, ERRORS_BURST),
            recent: Recent::default(),
            aged: Duration::ZERO,
            items: Vec::new(),
            names: Vec::new(),
            counters,
            reports,
        })
    }

    /// Copies of the flows, in no order.
    pub(crate) fn flows(&self) -> impl Iterator<Item = &FlowEntry> {
        self.memory.flows.iter()
    }

    /// Forgets some of what has been silent for too long: as much of the table as is due since the last time.
    pub(crate) fn age(&mut self, now: Duration) {
        let due = now.saturating_sub(self.aged);
        if due < AGE_STEP {
            return;
        }
        self.aged = now;
        let buckets = self.memory.flows.buckets() as u128 * due.as_millis() / AGE_ROUND.as_millis();
        self.memory.flows.age(buckets as usize + 1, now.as_secs() as u32);
        self.counters.flows.set(self.memory.flows.len() as u64);
    }

    /// Takes a batch through.
    pub(crate) fn run(
        &mut self,
        context: &mut Context<'_>,
        batch: &mut Vec<Packet>,
        arrival: &Arrival<'_>,
    ) {
        for packet in batch.drain(..) {
            arrival.counters.received_bytes.add(packet.len() as u64);
            match admit(context.tables, packet, arrival.role) {
                Ok(item) => {
                    arrival.counters.received_packets.add(item.segments());
                    self.items.push(item);
                }
                Err((packet, reason)) => {
                    arrival.counters.received_packets.add(1);
                    arrival.counters.dropped(reason).add(1);
                    context.pool.put(packet);
                }
            }
        }
        if arrival.role == Role::Underlay {
            coalesce(&mut self.items, context.pool);
        }
        let flows = &self.memory.flows;
        self.names.clear();
        for item in &self.items {
            let name = Name::of(&item.parsed, flows);
            flows.prefetch(name.hash);
            self.names.push(name);
        }
        self.names.iter().for_each(|name| flows.prefetch_entry(name.hash));
        let mut items = std::mem::take(&mut self.items);
        let names = std::mem::take(&mut self.names);
        for (item, name) in items.drain(..).zip(&names) {
            self.one(context, item, name, arrival);
        }
        (self.items, self.names) = (items, names);
        self.counters.evictions.set(self.memory.evictions);
    }

    fn one(&mut self, context: &mut Context<'_>, item: Item, name: &Name, arrival: &Arrival<'_>) {
        let segments = item.segments();
        let Item { mut packet, parsed, entrance } = item;
        let unit = packet.offload.segmentation.map_or(packet.len(), |s| {
            packet.len().min(parsed.header_len as usize + s.size as usize)
        });
        let subject = Subject { bytes: packet.bytes(), parsed: &parsed, entrance, unit, segments };
        let now = arrival.now.as_secs() as u32;
        let Decision { fate, rules } =
            decide::decide(context.tables, &mut self.memory, &subject, name, now);
        for slot in [rules.egress, rules.ingress] {
            if slot != NO_SLOT {
                self.counters.rules.add(slot, segments);
            }
        }
        match fate {
            Fate::Forward { via, hop } => {
                if hop {
                    parsed.decrement_ttl(packet.bytes_mut());
                }
                let posted = context.post(packet, parsed.header_len as usize, via);
                if let Err(reason) = posted {
                    arrival.counters.dropped(reason).add(segments);
                }
            }
            Fate::Drop(reason) => {
                arrival.counters.dropped(reason).add(segments);
                if matches!(reason, DropReason::PolicyEgress | DropReason::PolicyIngress) {
                    let slot = if reason == DropReason::PolicyEgress {
                        rules.egress
                    } else {
                        rules.ingress
                    };
                    self.report(&parsed, name.hash, reason, slot, arrival.now);
                }
                context.pool.put(packet);
            }
            Fate::Answer { reason, error } => {
                arrival.counters.dropped(reason).add(segments);
                self.answer(context, &packet, &parsed, entrance, error, arrival.now);
                context.pool.put(packet);
            }
        }
    }

    /// Tells control of a denied flow, once in a while for the same one.
    fn report(&mut self, parsed: &Parsed, hash: u64, reason: DropReason, slot: u32, now: Duration) {
        if !self.recent.is_new(hash, now) {
            return;
        }
        if self.reports.len() >= REPORTS_WAITING {
            self.counters.reports_lost.add(1);
            return;
        }
        let denied = Denied {
            source: parsed.source.to_ip(),
            destination: parsed.destination.to_ip(),
            protocol: parsed.protocol,
            source_port: parsed.source_port,
            destination_port: parsed.destination_port,
            reason,
            slot,
        };
        // Control has gone: the process is ending.
        let _ = self.reports.send(Report::Denied(denied));
    }

    /// Tells a packet's sender why it died, within what RFC 1122 and RFC 4443 allow and the rate limit leaves.
    fn answer(
        &mut self,
        context: &mut Context<'_>,
        packet: &Packet,
        parsed: &Parsed,
        entrance: Entrance,
        error: ErrorKind,
        now: Duration,
    ) {
        let router = if parsed.is_v4() {
            context.tables.router_v4.map(IpAddr::V4)
        } else {
            context.tables.router_v6.map(IpAddr::V6)
        };
        let Some(router) = router else { return };
        if !self.errors.allow(now) {
            return;
        }
        let Some(answer) = icmp::answer(packet.bytes(), parsed, error, router.into(), context.pool)
        else {
            return;
        };
        let back = match entrance {
            Entrance::Endpoint(index) => Via::Endpoint(index),
            Entrance::Host | Entrance::Uplink => Via::Host,
            Entrance::Node => Via::Node,
            Entrance::Tunnel(index) => Via::Tunnel(index),
        };
        // What cannot be told is not told.
        let _ = context.post(answer, 0, back);
    }
}

/// What a packet is and where it entered; tunnel packets are taken out of their tunnel.
fn admit(tables: &Tables, packet: Packet, role: Role) -> Result<Item, (Packet, DropReason)> {
    match role {
        Role::Closed => Err((packet, DropReason::NoTables)),
        Role::Endpoint(index) => item(packet, Entrance::Endpoint(index)),
        Role::Host if tables.uplink.is_some() => item(packet, Entrance::Node),
        Role::Host => item(packet, Entrance::Host),
        Role::Uplink => uplink(tables, packet),
        Role::Underlay => unwrap(tables, packet),
    }
}

/// A packet from the world, or of a tunnel that leads here.
fn uplink(tables: &Tables, packet: Packet) -> Result<Item, (Packet, DropReason)> {
    let item = item(packet, Entrance::Uplink)?;
    let here = tables.underlay_address.map(IpAddr::V4);
    if item.parsed.protocol == protocol::IPIP && here == Some(item.parsed.destination.to_ip()) {
        return unwrap(tables, item.packet);
    }
    Ok(item)
}

/// A packet from a tunnel: its peer must be known, and the tunnel lead here.
fn unwrap(tables: &Tables, mut packet: Packet) -> Result<Item, (Packet, DropReason)> {
    let arrived = match encapsulation::tunnelled(packet.bytes()) {
        Ok(arrived) => arrived,
        Err(error) => return Err((packet, error.into())),
    };
    let peer = tables
        .peer(arrived.source, arrived.encapsulation)
        .filter(|_| tables.underlay_address == Some(arrived.destination));
    let Some(peer) = peer else { return Err((packet, DropReason::UnknownTunnelPeer)) };
    if let Err(reason) = encapsulation::decapsulate(&mut packet, &arrived) {
        return Err((packet, reason));
    }
    let mut item = item(packet, Entrance::Tunnel(peer))?;
    if let Some(tunnel) = tables.tunnel(peer) {
        unveil(&mut item, tunnel.mtu as usize);
    }
    Ok(item)
}

/// A socket without metadata hands up what the kernels on one machine pass each other unfinished, and does not say so: a
/// super-packet of TCP, and a checksum that is only the pseudo-header's sum. What it must have been is put back. If it was
/// anything else, the checksum is wrong and the receiver finds it: one that happens to equal the pseudo-header's sum is as
/// likely as any other wrong checksum that happens to be right.
fn unveil(item: &mut Item, mtu: usize) {
    let Item { packet, parsed, .. } = item;
    let offset = match parsed.protocol {
        protocol::TCP => tcp::CHECKSUM_OFFSET,
        protocol::UDP => udp::CHECKSUM_OFFSET,
        _ => return,
    };
    let known = packet.offload != Offload::default();
    if known || !parsed.is_v4() || parsed.fragment != Fragment::Whole {
        return;
    }
    let header_len = parsed.header_len as usize;
    let start = parsed.transport_offset as usize;
    let len = packet.len().saturating_sub(start) as u32;
    let pseudo = checksum::pseudo(parsed.source, parsed.destination, parsed.protocol, len);
    let at = start + offset;
    let Some(stored) = packet.bytes().get(at..at + 2) else { return };
    if stored != checksum::fold(pseudo).to_be_bytes() {
        return;
    }
    packet.offload.checksum =
        Checksum::Partial { start: parsed.transport_offset, offset: offset as u16 };
    if packet.len() > mtu && mtu > header_len && parsed.protocol == protocol::TCP {
        let size = (mtu - header_len) as u16;
        packet.offload.segmentation =
            Some(Segmentation { kind: SegmentKind::Tcp4, size, ecn: false });
    }
}

fn item(mut packet: Packet, entrance: Entrance) -> Result<Item, (Packet, DropReason)> {
    match parse(packet.bytes()) {
        Ok(parsed) if may_be_finished(packet.offload.checksum, &parsed) => {
            packet.set_len(parsed.total_len as usize);
            Ok(Item { packet, parsed, entrance })
        }
        Ok(_) => Err((packet, DropReason::Malformed)),
        Err(error) => Err((packet, error.into())),
    }
}

/// Whether a checksum that is written later changes nothing by which the packet is judged: it is the upper layer's own, or
/// lies behind that layer's header (of a tunnel within). Senders choose its place, and would choose a port's.
fn may_be_finished(checksum: Checksum, parsed: &Parsed) -> bool {
    let Checksum::Partial { start, offset } = checksum else { return true };
    let own = match parsed.protocol {
        protocol::TCP => Some(tcp::CHECKSUM_OFFSET),
        protocol::UDP => Some(udp::CHECKSUM_OFFSET),
        protocol::ICMPV4 => Some(icmpv4::CHECKSUM_OFFSET),
        protocol::ICMPV6 => Some(icmpv6::CHECKSUM_OFFSET),
        _ => None,
    };
    let is_own = start == parsed.transport_offset && own == Some(usize::from(offset));
    // What an ICMP error quotes is judged too.
    is_own || (start >= parsed.header_len && !parsed.is_icmp_error())
}

impl Mergeable for Item {
    fn packet(&self) -> &Packet {
        &self.packet
    }

    fn packet_mut(&mut self) -> &mut Packet {
        &mut self.packet
    }

    fn into_packet(self) -> Packet {
        self.packet
    }

    fn same_origin(&self, other: &Self) -> bool {
        self.entrance == other.entrance
    }

    /// Length and flags have changed; nothing else has.
    fn merged(&mut self) {
        if let Ok(parsed) = parse(self.packet.bytes()) {
            self.parsed = parsed;
        }
    }
}
