//! One batch through the pipeline: unwrap, parse and name everything, ask for everybody's memory, decide and act.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::Sender;

use crate::admit;
use crate::counters::{PortCounters, WorkerCounters};
use crate::decide::{self, Decision, Entrance, Memory, Name, Subject};
use crate::denials::Recent;
use crate::fate::{DropReason, Fate};
use crate::flow::{FlowEntry, FlowTable, Guess, HashSeed, Shards, WorkerId};
use crate::fragment::FragmentTracker;
use crate::handover::{Colleagues, HandedOver};
use crate::icmp::{self, ErrorKind};
use crate::judge::NO_SLOT;
use crate::offload::coalesce::coalesce;
use crate::outbox::{Outbox, Ports};
use crate::packet::{Packet, Pool};
use crate::parse::Parsed;
use crate::rate_limit::RateLimit;
use crate::report::{Denied, Report};
use crate::tables::{Link, PortId, Role, Tables};
use crate::wire::{ipv4, protocol};

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
    pub(crate) port: PortId,
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
    pub(crate) colleagues: &'a Colleagues,
    pub(crate) lost: &'a mut Vec<(PortId, io::Error)>,
}

impl Context<'_> {
    #[inline]
    fn post(&mut self, packet: Packet, header_len: usize, link: Link) -> Result<(), DropReason> {
        let posted = self.outbox.post(self.tables, self.ports, self.pool, packet, header_len, link);
        // A batch of super-packets falls into more segments than there are buffers: send before they run out.
        if self.outbox.is_full() {
            self.outbox.send(self.ports, self.pool, self.lost);
        }
        posted
    }
}

/// What is known of a packet; it has the packet's place in the batch.
#[derive(Clone, Copy)]
struct Item {
    parsed: Parsed,
    entrance: Entrance,
    name: Name,
    /// How many packets a wire would carry for it; 0: nobody can read it.
    segments: u64,
    /// How many workers have had it before.
    times: u8,
    decision: Decision,
}

impl Item {
    /// Nothing is known, and so it is to be dropped.
    const NOTHING: Self = Self {
        parsed: Parsed::NOTHING,
        entrance: Entrance::Uplink,
        name: Name::NOTHING,
        segments: 1,
        times: 0,
        decision: Decision::NOTHING,
    };
}

/// A worker's decisions and what they remember.
pub(crate) struct Pipeline {
    memory: Memory,
    errors: RateLimit,
    recent: Recent,
    aged: Duration,
    /// Out of the tunnels, and where each entered.
    arrived: Vec<(Packet, Entrance)>,
    /// Of each packet of the batch.
    entrances: Vec<Entrance>,
    items: Vec<Item>,
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
        shards: Option<Arc<Shards>>,
        colleagues: &Colleagues,
        reports: Sender<Report>,
        counters: Arc<WorkerCounters>,
    ) -> io::Result<Self> {
        let flows = match shards {
            None => FlowTable::new(sizes.flows, HashSeed::random()),
            Some(shards) => FlowTable::shared(sizes.flows, shards, colleagues.own()),
        }?;
        Ok(Self {
            memory: Memory {
                flows,
                fragments: FragmentTracker::new(sizes.fragments),
                evictions: 0,
                next: colleagues.next(),
            },
            errors: RateLimit::new(ERRORS_PER_SECOND, ERRORS_BURST),
            recent: Recent::default(),
            aged: Duration::ZERO,
            arrived: Vec::new(),
            entrances: Vec::new(),
            items: Vec::new(),
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

    /// Takes a batch through. Each pass is a function that is not inlined, so that it has the registers for itself.
    pub(crate) fn run(
        &mut self,
        context: &mut Context<'_>,
        batch: &mut Vec<Packet>,
        arrival: &Arrival<'_>,
    ) {
        let bytes: usize = batch.iter().map(Packet::len).sum();
        arrival.counters.received_bytes.add(bytes as u64);
        self.entrances.clear();
        match admit::entrance(context.tables, arrival.role) {
            Ok(Some(entrance)) => self.entrances.resize(batch.len(), entrance),
            Ok(None) => self.unwrap(context, batch, arrival),
            Err(reason) => batch.drain(..).for_each(|it| refuse(context, arrival, it, reason)),
        }
        self.read(context, batch, arrival);
        self.name();
        self.judge(context, batch, arrival);
    }

    /// Puts a packet that another worker has read into a batch of such, all from one port, for [`Pipeline::judge`].
    pub(crate) fn take_over(
        &mut self,
        context: &mut Context<'_>,
        batch: &mut Vec<Packet>,
        arrival: &Arrival<'_>,
        handed_over: HandedOver,
    ) {
        let HandedOver { packet, parsed, name, segments, peer, times, port: _ } = handed_over;
        match admit::handed_over(context.tables, arrival.role, peer) {
            Ok(entrance) => {
                self.memory.flows.prefetch(name.hash);
                let item = Item { parsed, entrance, name, segments, times, ..Item::NOTHING };
                self.items.truncate(batch.len());
                self.items.push(item);
                batch.push(packet);
            }
            Err(reason) => {
                arrival.counters.dropped(reason).add(segments);
                context.pool.put(packet);
            }
        }
    }

    /// Decides the packets of a batch that have been read and named, and does what was decided.
    pub(crate) fn judge(
        &mut self,
        context: &mut Context<'_>,
        batch: &mut Vec<Packet>,
        arrival: &Arrival<'_>,
    ) {
        self.guess();
        self.decide(context.tables, batch, arrival.now.as_secs() as u32);
        self.carry_out(context, batch, arrival);
        self.counters.evictions.set(self.memory.evictions);
    }

    /// Takes packets out of their tunnels, and puts together what was cut for the way.
    #[inline(never)]
    fn unwrap(
        &mut self,
        context: &mut Context<'_>,
        batch: &mut Vec<Packet>,
        arrival: &Arrival<'_>,
    ) {
        let mut tcp = 0;
        while let Some(packet) = batch.get_mut(self.entrances.len()) {
            match admit::unwrap(context.tables, packet, arrival.role) {
                Ok(entrance) => {
                    tcp += u32::from(
                        packet.bytes().get(ipv4::field::PROTOCOL) == Some(&protocol::TCP),
                    );
                    self.entrances.push(entrance);
                }
                Err(reason) => {
                    let packet = batch.remove(self.entrances.len());
                    refuse(context, arrival, packet, reason);
                }
            }
        }
        if arrival.role == Role::Underlay && tcp > 1 {
            self.arrived.extend(batch.drain(..).zip(self.entrances.drain(..)));
            coalesce(&mut self.arrived, context.pool);
            for (packet, entrance) in self.arrived.drain(..) {
                batch.push(packet);
                self.entrances.push(entrance);
            }
        }
    }

    /// Parses the batch. What cannot be parsed is taken out of it.
    #[inline(never)]
    fn read(&mut self, context: &mut Context<'_>, batch: &mut Vec<Packet>, arrival: &Arrival<'_>) {
        self.items.resize(batch.len(), Item::NOTHING);
        let (mut segments, mut refused) = (0, 0);
        let places = batch.iter_mut().zip(&mut self.items).zip(&self.entrances);
        for ((packet, item), entrance) in places {
            item.entrance = *entrance;
            item.times = 0;
            item.segments = match admit::read(packet, &mut item.parsed) {
                Ok(()) => packet.segments(item.parsed.header_len as usize),
                Err(reason) => {
                    arrival.counters.dropped(reason).add(1);
                    refused += 1;
                    0
                }
            };
            segments += item.segments;
        }
        arrival.counters.received_packets.add(segments + refused);
        if refused > 0 {
            let mut segments = self.items.iter().map(|item| item.segments);
            let refused = batch.extract_if(.., |_| segments.next() == Some(0));
            refused.for_each(|packet| context.pool.put(packet));
            self.items.retain(|item| item.segments > 0);
        }
    }

    /// Names everybody's flow, and asks for its bucket before anybody needs it.
    #[inline(never)]
    fn name(&mut self) {
        let flows = &self.memory.flows;
        for item in &mut self.items {
            item.name = Name::of(&item.parsed, flows);
            flows.prefetch(item.name.hash);
        }
    }

    /// Once the buckets are there, asks for the entries.
    #[inline(never)]
    fn guess(&mut self) {
        let flows = &self.memory.flows;
        let mut new = 0;
        for Item { name, .. } in &mut self.items {
            name.guess = flows.guess(name.hash);
            new += usize::from(name.guess == Guess::NONE);
        }
        if new > 0 {
            flows.prefetch_victims(new);
        }
    }

    #[inline(never)]
    fn decide(&mut self, tables: &Tables, batch: &[Packet], now: u32) {
        for (item, packet) in self.items.iter_mut().zip(batch) {
            let Item { parsed, entrance, name, segments, times, .. } = item;
            let header_len = parsed.header_len as usize;
            let unit = packet
                .offload
                .segmentation
                .map_or(packet.len(), |it| packet.len().min(header_len + it.size as usize));
            let subject = Subject {
                packet,
                parsed,
                entrance: *entrance,
                unit,
                segments: *segments,
                times: *times,
            };
            item.decision = decide::decide(tables, &mut self.memory, &subject, name, now);
        }
    }

    #[inline(never)]
    fn carry_out(
        &mut self,
        context: &mut Context<'_>,
        batch: &mut Vec<Packet>,
        arrival: &Arrival<'_>,
    ) {
        let items = std::mem::take(&mut self.items);
        let mut handed_over = 0;
        for (mut packet, item) in batch.drain(..).zip(&items) {
            let Item { parsed, segments, decision: Decision { fate, rules }, .. } = item;
            for slot in [rules.egress, rules.ingress] {
                if slot != NO_SLOT {
                    self.counters.rules.add(slot, *segments);
                }
            }
            let (packet, header_len, link) = match *fate {
                Fate::Forward { link, hop } => {
                    if hop {
                        parsed.decrement_ttl(packet.bytes_mut());
                    }
                    (packet, parsed.header_len as usize, link)
                }
                Fate::Drop(reason) => {
                    arrival.counters.dropped(reason).add(*segments);
                    self.report(item, reason, arrival.now);
                    context.pool.put(packet);
                    continue;
                }
                Fate::Answer { reason, error } => {
                    arrival.counters.dropped(reason).add(*segments);
                    let answer = self.answer(context, &packet, item, error, arrival.now);
                    context.pool.put(packet);
                    let Some((answer, back)) = answer else { continue };
                    (answer, 0, back)
                }
                Fate::HandOver(to) => {
                    handed_over += u64::from(hand_over(context, arrival, packet, item, to));
                    continue;
                }
            };
            if let Err(reason) = context.post(packet, header_len, link) {
                // An answer that cannot be given is nobody's loss.
                if matches!(fate, Fate::Forward { .. }) {
                    arrival.counters.dropped(reason).add(*segments);
                }
            }
        }
        if handed_over > 0 {
            self.counters.handed_over.add(handed_over);
            context.colleagues.wake();
        }
        self.items = items;
    }

    /// Tells control of a denied flow, once in a while for the same one.
    #[inline(never)]
    fn report(&mut self, item: &Item, reason: DropReason, now: Duration) {
        let Item { parsed, name, decision: Decision { rules, .. }, .. } = item;
        let slot = match reason {
            DropReason::PolicyEgress => rules.egress,
            DropReason::PolicyIngress => rules.ingress,
            _ => return,
        };
        if !self.recent.is_new(name.hash, now) {
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

    /// What tells a packet's sender why it died, within what RFC 1122 and RFC 4443 allow and the rate limit leaves.
    #[inline(never)]
    fn answer(
        &mut self,
        context: &mut Context<'_>,
        packet: &Packet,
        Item { parsed, entrance, .. }: &Item,
        error: ErrorKind,
        now: Duration,
    ) -> Option<(Packet, Link)> {
        let router = if parsed.is_v4() {
            context.tables.router_v4.map(IpAddr::V4)
        } else {
            context.tables.router_v6.map(IpAddr::V6)
        };
        let (router, back) = (router?, context.tables.link(entrance.back())?);
        if !self.errors.allow(now) {
            return None;
        }
        let answer = icmp::answer(packet.bytes(), parsed, error, router.into(), context.pool)?;
        Some((answer, back))
    }
}

/// Puts a packet into the mailbox of the worker whose it is, or drops it. Whether it went.
#[inline(never)]
fn hand_over(
    context: &mut Context<'_>,
    arrival: &Arrival<'_>,
    packet: Packet,
    item: &Item,
    to: WorkerId,
) -> bool {
    let peer = match item.entrance {
        Entrance::Tunnel(index) => context.tables.tunnel(index),
        Entrance::Endpoint(_) | Entrance::Host | Entrance::Node | Entrance::Uplink => None,
    };
    let handed_over = HandedOver {
        packet,
        parsed: item.parsed,
        name: item.name,
        segments: item.segments,
        port: arrival.port,
        peer: peer.map(|tunnel| (tunnel.remote, tunnel.outer.encapsulation())),
        times: item.times.saturating_add(1),
    };
    // A worker that had handed over all its buffers could neither read nor take anything.
    let refused = if context.pool.is_low() {
        Some(handed_over.packet)
    } else {
        context.colleagues.hand_over(to, handed_over)
    };
    let Some(refused) = refused else { return true };
    arrival.counters.dropped(DropReason::HandOverFull).add(item.segments);
    context.pool.put(refused);
    false
}

/// Counts a packet that got no further than here.
fn refuse(context: &mut Context<'_>, arrival: &Arrival<'_>, packet: Packet, reason: DropReason) {
    arrival.counters.received_packets.add(1);
    arrival.counters.dropped(reason).add(1);
    context.pool.put(packet);
}
