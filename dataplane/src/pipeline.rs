//! One batch through the pipeline: unwrap, parse and name everything, find where the flows are, decide and act. Each packet's bucket is
//! asked for when it is named, its flow some packets before it is decided. What is out of the ordinary is for `consider`.

mod slow_path;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ahash::RandomState;
use crossbeam::channel::Sender;

use crate::counters::{Tally, WorkerCounters};
use crate::decide::{
    self, Arrival, DecisionState, Entrance, PacketMetadata, SourceCache, UntrackedHookCache,
    UntrackedVerdict,
};
use crate::denials::RecentDenials;
use crate::fate::DropReason;
use crate::flow::{FlowEntry, FlowTable, HashSeed, Shards, Victims};
use crate::fragment::FragmentTracker;
use crate::handoff::{Handoff, WorkerMesh};
use crate::input;
use crate::outbox::{Outbox, discard};
use crate::packet::{Packet, Pool};
use crate::parse::{self, parse};
use crate::port::Intake;
use crate::ports::Ports;
use crate::report::Report;
use crate::stage::{Stage, Stopwatch};
use crate::sys::memory::prefetch;
use crate::tables::{Link, PortId, Role, Tables};

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

/// The parts of a worker that a batch passes through, and the time.
pub(crate) struct Context<'a> {
    pub(crate) tables: &'a Tables,
    pub(crate) ports: &'a mut Ports,
    pub(crate) outbox: &'a mut Outbox,
    pub(crate) pool: &'a mut Pool,
    pub(crate) mesh: &'a WorkerMesh,
    pub(crate) lost: &'a mut Vec<(PortId, io::Error)>,
    pub(crate) watch: &'a mut Stopwatch,
    pub(crate) now: Duration,
}

impl Context<'_> {
    /// Puts a packet into the queue of a link; `is_ready`: it is finished, and fits.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as Outbox::queue")]
    fn output(
        &mut self,
        packet: Packet,
        header_len: usize,
        link: &Link,
        is_ready: bool,
    ) -> Result<(), DropReason> {
        let Self { tables, ports, pool, outbox, .. } = self;
        let Some(slot) = ports.slot(link.port) else {
            return Err(discard(pool, packet, DropReason::TransmitRefused));
        };
        let tunnel = match link.tunnel.map(|index| tables.tunnel(index)) {
            None => None,
            Some(Some(tunnel)) => Some(tunnel),
            // Never bare.
            Some(None) => return Err(discard(pool, packet, DropReason::HostUnreachable)),
        };
        let posted = match tunnel {
            None if is_ready => {
                outbox.queue(slot, packet);
                return Ok(());
            }
            Some(tunnel) if is_ready => {
                return outbox
                    .queue_encapsulated(tunnel, slot, packet)
                    .map_err(|packet| discard(pool, packet, DropReason::Malformed));
            }
            _ => {
                outbox.prepare_and_queue(slot, pool, packet, header_len, link.mtu as usize, tunnel)
            }
        };
        // A batch of super-packets falls into more segments than there are buffers: send before they run out.
        if self.outbox.is_full() {
            self.outbox.send(self.ports, self.pool, self.lost);
        }
        posted
    }

    /// Counts packets that came by a port and died.
    fn count_drops(&mut self, port: PortId, reason: DropReason, packets: u64) {
        if let Some(slot) = self.ports.slot(port) {
            slot.counters.dropped(reason).add(packets);
        }
    }

    /// Seconds, as flows count them.
    fn seconds(&self) -> u32 {
        self.now.as_secs() as u32
    }
}

/// A worker's decisions and what they remember.
pub(crate) struct Pipeline {
    state: DecisionState,
    /// Keys the hashes of senders.
    senders: RandomState,
    recent_denials: RecentDenials,
    aged: Duration,
    /// Of each packet of the batch.
    arrivals: Vec<Arrival>,
    /// Of each packet that has been read.
    metadata: Vec<PacketMetadata>,
    /// What other workers have handed over, on its way into the batch.
    handoffs: Vec<Handoff>,
    /// Of the last batch none was to be looked for among the flows: the next one's are not guessed.
    all_untracked: bool,
    counters: Arc<WorkerCounters>,
    reports: Sender<Report>,
}

/// Time in which every bucket of the flow table is looked at once, and the least time between two looks.
const AGE_ROUND: Duration = Duration::from_secs(30);
const AGE_STEP: Duration = Duration::from_millis(10);

/// Flows that are asked for before the first one is needed, and from then on each one so many packets before its own. A core
/// waits for about as many lines at once: of more the last ones would be late.
const AHEAD: usize = 16;

impl Pipeline {
    pub(crate) fn new(
        sizes: Sizes,
        shards: Option<Arc<Shards>>,
        mesh: &WorkerMesh,
        reports: Sender<Report>,
        counters: Arc<WorkerCounters>,
    ) -> io::Result<Self> {
        let flows = match shards {
            None => FlowTable::new(sizes.flows, HashSeed::random()),
            Some(shards) => FlowTable::shared(sizes.flows, shards, mesh.own()),
        }?;
        Ok(Self {
            state: DecisionState {
                flows,
                source_cache: SourceCache::default(),
                untracked_hooks: UntrackedHookCache::default(),
                fragments: FragmentTracker::new(sizes.fragments),
                evictions: 0,
                next_worker: mesh.next_worker(),
            },
            senders: RandomState::new(),
            recent_denials: RecentDenials::default(),
            aged: Duration::ZERO,
            arrivals: Vec::new(),
            metadata: Vec::new(),
            handoffs: Vec::new(),
            all_untracked: false,
            counters,
            reports,
        })
    }

    /// Copies of the flows, in no order.
    pub(crate) fn flows(&self) -> impl Iterator<Item = FlowEntry> {
        self.state.flows.iter()
    }

    /// Forgets some of what has been silent for too long: as much of the table as is due since the last time.
    pub(crate) fn age(&mut self, now: Duration) {
        let due = now.saturating_sub(self.aged);
        if due < AGE_STEP {
            return;
        }
        self.aged = now;
        let buckets = self.state.flows.buckets() as u128 * due.as_millis() / AGE_ROUND.as_millis();
        self.state.flows.age(buckets as usize + 1, now.as_secs() as u32);
        self.counters.flows.set(self.state.flows.len() as u64);
    }

    /// Takes in what a port has brought: out of the tunnels, and read. [`Pipeline::process`] is to follow. Each pass is a function that
    /// is not inlined, so that it has the registers for itself.
    pub(crate) fn input(
        &mut self,
        context: &mut Context<'_>,
        batch: &mut Vec<Packet>,
        port: PortId,
        role: Role,
    ) {
        let mut bytes = 0;
        for packet in &*batch {
            bytes += packet.len();
            // A device may have written it long ago.
            packet.prefetch();
        }
        self.handoffs.iter().for_each(|it| it.packet.prefetch());
        let received = match input::entrance(context.tables, role) {
            Ok(Some(entrance)) => {
                let arrival = Arrival { entrance, port, handoffs: 0 };
                self.parse_and_key(context, batch, std::iter::repeat(arrival))
            }
            Ok(None) => {
                let refused = self.decapsulate(context, batch, port, role);
                context.watch.lap(Stage::Decapsulate);
                let arrivals = std::mem::take(&mut self.arrivals);
                let read = self.parse_and_key(context, batch, arrivals.iter().copied());
                self.arrivals = arrivals;
                refused + read
            }
            Err(reason) => {
                let refused = batch.len() as u64;
                batch.drain(..).for_each(|packet| drop_packet(context, port, packet, reason));
                self.metadata.clear();
                refused
            }
        };
        if let Some(slot) = context.ports.slot(port) {
            slot.counters.received_bytes.add(bytes as u64);
            slot.counters.received_packets.add(received);
        }
    }

    /// Takes up to `limit` packets out of the mailbox, no more than are enough for a batch, and asks for them: their lines are
    /// another core's. [`Pipeline::accept_handoffs`] is to follow.
    #[inline]
    pub(crate) fn fetch_handoffs(&mut self, context: &mut Context<'_>, limit: usize) {
        let mut intake = Intake::default();
        while self.handoffs.len() < limit
            && !intake.is_enough()
            && let Some(handoffs) = context.mesh.receive(context.pool)
        {
            prefetch(&raw const *handoffs.packet);
            intake.add(&handoffs.packet);
            self.handoffs.push(handoffs);
        }
    }

    /// Takes in what was fetched, behind what is already in the batch. Returns how many packets it was.
    #[inline]
    pub(crate) fn accept_handoffs(
        &mut self,
        context: &mut Context<'_>,
        batch: &mut Vec<Packet>,
    ) -> usize {
        let count = self.handoffs.len();
        if count > 0 {
            self.metadata.truncate(batch.len());
            let mut handoffs = std::mem::take(&mut self.handoffs);
            handoffs.drain(..).for_each(|it| self.accept_handoff(context, batch, it));
            self.handoffs = handoffs;
        }
        count
    }

    #[inline(never)]
    fn accept_handoff(
        &mut self,
        context: &mut Context<'_>,
        batch: &mut Vec<Packet>,
        handoff: Handoff,
    ) {
        let Handoff { mut packet, segments, port, peer, handoffs } = handoff;
        if context.ports.slot(port).is_none() {
            self.counters.portless.add(segments.into());
            context.pool.put(packet);
            return;
        }
        let role = context.tables.role(port);
        let flows = &self.state.flows;
        let mut metadata = PacketMetadata::EMPTY;
        let read = input::handoff_entrance(context.tables, role, peer).and_then(|entrance| {
            parse_and_key_packet(
                &mut packet,
                &Arrival { entrance, port, handoffs },
                flows,
                &mut metadata,
            )
        });
        if let Err(reason) = read {
            context.count_drops(port, reason, segments.into());
            context.pool.put(packet);
            return;
        }
        flows.prefetch(metadata.flow.hash);
        self.metadata.push(metadata);
        batch.push(packet);
    }

    /// Decides the packets of a batch, which have been taken in, and does what was decided.
    #[inline]
    pub(crate) fn process(&mut self, context: &mut Context<'_>, batch: &mut Vec<Packet>) {
        context.watch.lap(Stage::Read);
        let has_untracked = context.tables.host_policy.has_untracked();
        let victims = (!(has_untracked && self.all_untracked)).then(|| self.guess_slots());
        context.watch.lap(Stage::Guess);
        self.forward(context, batch, has_untracked, victims);
        context.watch.lap(Stage::Forward);
        self.counters.evictions.set(self.state.evictions);
    }

    /// Of each packet of the last batch, the port that brought it, and how many packets it stands for on a wire.
    pub(crate) fn packets_by_port(&self) -> impl Iterator<Item = (PortId, u64)> + Clone {
        self.metadata.iter().map(|metadata| (metadata.port, metadata.segments.into()))
    }

    /// Takes packets out of their tunnels. Returns how many were refused.
    #[inline(never)]
    fn decapsulate(
        &mut self,
        context: &mut Context<'_>,
        batch: &mut Vec<Packet>,
        port: PortId,
        role: Role,
    ) -> u64 {
        let nowhere = Arrival { entrance: Entrance::NOWHERE, port, handoffs: 0 };
        self.arrivals.clear();
        self.arrivals.resize(batch.len(), nowhere);
        let mut refused = 0;
        for (packet, arrival) in batch.iter_mut().zip(&mut self.arrivals) {
            match input::decapsulate(context.tables, packet, role) {
                Ok(entrance) => arrival.entrance = entrance,
                Err(reason) => {
                    context.count_drops(port, reason, 1);
                    refused += 1;
                }
            }
        }
        if refused > 0 {
            let mut arrivals = self.arrivals.iter();
            let refused = batch.extract_if(.., |_| arrivals.next() == Some(&nowhere));
            refused.for_each(|packet| context.pool.put(packet));
            self.arrivals.retain(|arrival| *arrival != nowhere);
        }
        // Of the others nobody has said where they entered.
        debug_assert_eq!(batch.len(), self.arrivals.len(), "each packet has come somehow");
        batch.drain(self.arrivals.len().min(batch.len())..).for_each(|it| context.pool.put(it));
        refused
    }

    /// Reads the batch, names everybody's flow, and asks for its bucket before anybody needs it. What cannot be read is taken
    /// out. `arrivals`: how each has come. Returns how many packets a wire would have carried.
    #[inline(never)]
    fn parse_and_key(
        &mut self,
        context: &mut Context<'_>,
        batch: &mut Vec<Packet>,
        arrivals: impl Iterator<Item = Arrival>,
    ) -> u64 {
        self.metadata.resize(batch.len(), PacketMetadata::EMPTY);
        let flows = &self.state.flows;
        let (mut segments, mut refused) = (0, 0);
        let places = batch.iter_mut().zip(&mut self.metadata).zip(arrivals);
        for ((packet, metadata), arrival) in places {
            if let Err(reason) = parse_and_key_packet(packet, &arrival, flows, metadata) {
                count_unparsed(context, metadata, arrival.port, reason, &mut refused);
            }
            flows.prefetch(metadata.flow.hash);
            segments += u64::from(metadata.segments);
        }
        if refused > 0 {
            let mut segments = self.metadata.iter().map(|metadata| metadata.segments);
            let refused = batch.extract_if(.., |_| segments.next() == Some(0));
            refused.for_each(|packet| context.pool.put(packet));
            self.metadata.retain(|metadata| metadata.segments > 0);
        }
        segments + refused
    }

    /// Once the buckets are there, finds where the flows are, and asks for the first of them.
    #[inline(never)]
    fn guess_slots(&mut self) -> Victims {
        let flows = &self.state.flows;
        for PacketMetadata { flow: name, .. } in &mut self.metadata {
            name.guess = flows.guess(name.hash);
        }
        let mut victims = Victims::default();
        for PacketMetadata { flow: name, .. } in self.metadata.iter().take(AHEAD) {
            flows.prefetch_guessed(&name.key, name.guess, &mut victims);
        }
        victims
    }

    /// Decides every packet and does what was decided. `has_untracked`: policy may decide before connection tracking; `victims`: what
    /// [`Pipeline::guess_slots`] has asked for, if it was called.
    #[inline(never)]
    fn forward(
        &mut self,
        context: &mut Context<'_>,
        batch: &mut Vec<Packet>,
        has_untracked: bool,
        victims: Option<Victims>,
    ) {
        let now = context.seconds();
        let metadata = std::mem::take(&mut self.metadata);
        let mut all_untracked = has_untracked;
        let mut tally = Tally::default();
        let mut handoffs = 0;
        let (mut ahead, mut victims) = match victims {
            Some(victims) => (metadata.get(AHEAD..).unwrap_or_default().iter(), victims),
            None => Default::default(),
        };
        for (mut packet, metadata) in batch.drain(..).zip(&metadata) {
            if let Some(PacketMetadata { flow: name, .. }) = ahead.next() {
                self.state.flows.prefetch_guessed(&name.key, name.guess, &mut victims);
            }
            let mut verdict = UntrackedVerdict::Tracked;
            if has_untracked {
                verdict = decide::untracked_fast_path(context.tables, &mut self.state, metadata);
                all_untracked &= matches!(verdict, UntrackedVerdict::Allow(_));
            }
            let forwarding = match verdict {
                UntrackedVerdict::Allow(forwarding) => Some(forwarding),
                UntrackedVerdict::Tracked => {
                    decide::fast_path(context.tables, &mut self.state, metadata, now)
                }
                UntrackedVerdict::SlowPath => None,
            };
            let Some(forwarding) = forwarding else {
                handoffs += u64::from(self.slow_path(context, packet, metadata));
                continue;
            };
            let segments = metadata.segments.into();
            tally.add(&self.counters.rules, forwarding.rules, segments);
            if forwarding.decrements_ttl {
                parse::decrement_ttl(packet.room_mut());
            }
            let header_len = metadata.header_len.into();
            if let Err(reason) =
                context.output(packet, header_len, forwarding.link, metadata.is_finished)
            {
                context.count_drops(metadata.port, reason, segments);
            }
        }
        self.all_untracked = all_untracked;
        tally.count(&self.counters.rules);
        if handoffs > 0 {
            self.counters.handoffs.add(handoffs);
            context.mesh.wake();
        }
        self.metadata = metadata;
    }
}

/// Reads a packet and names its flow.
#[inline(always)]
#[expect(
    clippy::inline_always,
    reason = "as PacketMetadata::at, and its parts go where they belong"
)]
fn parse_and_key_packet(
    packet: &mut Packet,
    arrival: &Arrival,
    flows: &FlowTable,
    metadata: &mut PacketMetadata,
) -> Result<(), DropReason> {
    let plain = parse::parse_plain(packet.bytes()).filter(|_| packet.is_finished());
    match plain {
        Some(plain) => {
            packet.truncate(plain.total_len.into());
            *metadata =
                PacketMetadata::new(&plain, (1, plain.total_len.into()), true, arrival, flows);
            Ok(())
        }
        None => parse_and_key_any(packet, arrival, flows, metadata),
    }
}

/// The same of a packet that is not plain, or that nobody could put on a wire as it is.
#[inline(never)]
fn parse_and_key_any(
    packet: &mut Packet,
    arrival: &Arrival,
    flows: &FlowTable,
    metadata: &mut PacketMetadata,
) -> Result<(), DropReason> {
    let parsed = parse(packet.bytes())?;
    let on_a_wire = input::check_offload(packet, &parsed)?;
    *metadata = PacketMetadata::new(&parsed, on_a_wire, packet.is_finished(), arrival, flows);
    Ok(())
}

/// Counts a packet that cannot be read. By itself, so that who reads need not keep the count at hand.
#[cold]
#[inline(never)]
fn count_unparsed(
    context: &mut Context<'_>,
    metadata: &mut PacketMetadata,
    port: PortId,
    reason: DropReason,
    refused: &mut u64,
) {
    context.count_drops(port, reason, 1);
    metadata.segments = 0;
    *refused += 1;
}

/// Lets a packet go that got no further than here.
fn drop_packet(context: &mut Context<'_>, port: PortId, packet: Packet, reason: DropReason) {
    context.count_drops(port, reason, 1);
    context.pool.put(packet);
}
