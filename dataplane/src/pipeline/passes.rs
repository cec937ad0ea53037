//! The passes of a batch through the pipeline. Each pass does one thing for all packets of the batch and prefetches the
//! memory that the next pass reads. A packet's bucket of the flow table is prefetched once its key is known, and its
//! flow some packets before the packet is decided.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ahash::RandomState;
use crossbeam::channel::Sender;

use super::context::Context;
use super::denials::RecentDenials;
use super::handoff::{Handoff, WorkerMesh};
use super::input;
use super::parse_and_key::parse_and_key_packet;
use super::sizes::Sizes;
use super::untranslated::Search;
use crate::counters::{Tally, WorkerCounters};
use crate::decide::{
    self, Arrival, DecisionState, Entrance, PacketMetadata, Refusal, ServiceBudgets, SourceCache,
    UntrackedHookCache, UntrackedVerdict,
};
use crate::drop_reason::DropReason;
use crate::flow::{FlowEnd, FlowEntry, FlowTable, HashSeed, MAX_AGE, Shards, Victims};
use crate::fragment::FragmentTracker;
use crate::packet::Packet;
use crate::port::Intake;
use crate::report::Report;
use crate::services::SessionAffinities;
use crate::stage::Stage;
use crate::sys::memory::prefetch;
use crate::sys::shared_file::SharedFile;
use crate::tables::{PortId, Role, Tables};

/// The state of a worker's pipeline.
pub(crate) struct Pipeline {
    pub(super) state: DecisionState,
    /// The keyed hash for senders.
    pub(super) senders: RandomState,
    pub(super) recent_denials: RecentDenials,
    /// The file from which the agent's next process reads the flows.
    pub(crate) flow_records: Arc<SharedFile>,
    pub(super) aged: Duration,
    pub(super) search: Search,
    /// One entry for each packet of the batch.
    pub(super) arrivals: Vec<Arrival>,
    /// One entry for each packet that has been parsed.
    pub(super) metadata: Vec<PacketMetadata>,
    /// Packets that other workers have handed off and that are about to join the batch.
    pub(super) handoffs: Vec<Handoff>,
    /// Whether untracked policy allowed every packet of the last batch. Then the slots of the next batch are not
    /// guessed.
    pub(super) all_untracked: bool,
    pub(super) counters: Arc<WorkerCounters>,
    pub(super) reports: Sender<Report>,
}

/// The time in which every bucket of the flow table is aged once, and the shortest time between two steps.
const AGE_ROUND: Duration = Duration::from_secs(MAX_AGE as u64);
const AGE_STEP: Duration = Duration::from_millis(10);

/// The number of flows that are prefetched before the first one is needed. From then on, each flow is prefetched this
/// many packets ahead. A core can wait for about as many cache lines at once; if there were more, the last ones would
/// be late.
const AHEAD: usize = 16;

impl Pipeline {
    pub(crate) fn new(
        sizes: Sizes,
        (shards, affinities): (Option<Arc<Shards>>, Arc<SessionAffinities>),
        seed: HashSeed,
        mesh: &WorkerMesh,
        reports: Sender<Report>,
        counters: Arc<WorkerCounters>,
    ) -> io::Result<Self> {
        let hasher = |name: &str| seed.hasher((name, mesh.own().0));
        let mut flows = match shards {
            None => FlowTable::new(sizes.flows, seed),
            Some(shards) => FlowTable::shared(sizes.flows, shards, mesh.own()),
        }?;
        if sizes.translates {
            flows.expect_second_keys()?;
        }
        let flow_records = flows.keep_records()?;
        Ok(Self {
            flow_records,
            state: DecisionState {
                flows,
                source_cache: SourceCache::default(),
                untracked_hooks: UntrackedHookCache::default(),
                fragments: FragmentTracker::with_hasher(sizes.fragments, hasher("fragments")),
                service_budgets: ServiceBudgets::default(),
                affinities,
                random: (hasher("chance"), 0),
                evictions: 0,
                refusal: Refusal::default(),
                next_worker: mesh.next_worker(),
            },
            senders: hasher("senders"),
            recent_denials: RecentDenials::default(),
            aged: Duration::ZERO,
            search: Search::default(),
            arrivals: Vec::new(),
            metadata: Vec::new(),
            handoffs: Vec::new(),
            all_untracked: false,
            counters,
            reports,
        })
    }

    /// Copies of all flows, in no particular order.
    pub(crate) fn flows(&self) -> impl Iterator<Item = FlowEntry> {
        self.state.flows.iter()
    }

    /// Reports the end of each allowed flow ([`FlowTable::tell_ends`](crate::flow::FlowTable::tell_ends)).
    pub(crate) fn tell_ends(&mut self, to: Sender<FlowEnd>) {
        self.state.flows.tell_ends(to);
    }

    /// Starts the clock of [`Self::age`]: there was nothing to age before this time.
    pub(crate) fn begin(&mut self, now: Duration) {
        self.aged = now;
    }

    /// Removes flows that have been silent for too long, from the part of the table that is due since the last call.
    #[inline]
    pub(crate) fn age(&mut self, tables: &Tables, now: Duration) {
        let due = now.saturating_sub(self.aged);
        if due >= AGE_STEP {
            self.age_for(tables, due, now);
        }
    }

    #[inline(never)]
    fn age_for(&mut self, tables: &Tables, due: Duration, now: Duration) {
        self.aged = now;
        let buckets = self.state.flows.buckets() as u128 * due.as_millis() / AGE_ROUND.as_millis();
        let seconds = now.as_secs() as u32;
        self.state.flows.age(buckets as usize + 1, seconds);
        self.search.go_on(&mut self.state.flows, tables, (due, seconds));
        self.counters.flows.set(self.state.flows.len() as u64);
    }

    /// Takes a batch through the passes, up to the queues of the ports by which its packets leave. The caller sends the
    /// queues. `from` is the port at which `batch` arrived; `None` means that the batch is empty. Up to `limit` packets
    /// that other workers have handed off are added to the batch, because a few more packets cost little. Returns the
    /// number of those packets.
    #[inline]
    pub(crate) fn process(
        &mut self,
        context: &mut Context<'_>,
        batch: &mut Vec<Packet>,
        from: Option<PortId>,
        limit: usize,
    ) -> usize {
        let own = batch.len();
        self.fetch_handoffs(context, limit);
        if let Some(port) = from {
            self.input(context, batch, port);
        }
        let handoffs = self.accept_handoffs(context, batch);
        if own + handoffs > 0 {
            context.watch.lap(Stage::Read);
            let has_untracked = context.tables.host_policy.has_untracked();
            let victims = (!(has_untracked && self.all_untracked)).then(|| self.guess_slots());
            context.watch.lap(Stage::Guess);
            self.forward(context, batch, has_untracked, victims);
            context.watch.lap(Stage::Forward);
            self.counters.evictions.set(self.state.evictions);
        }
        handoffs
    }

    /// The input passes: they decapsulate the packets of a port, parse them and form their keys. Each pass is a
    /// function that is not inlined, so that it can use all registers.
    fn input(&mut self, context: &mut Context<'_>, batch: &mut Vec<Packet>, port: PortId) {
        let role = context.tables.role(port);
        let mut bytes = 0;
        for packet in &*batch {
            bytes += packet.len();
            // A device may have written the packet long ago, so that it is no longer in the cache.
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

    /// Takes up to `limit` packets from the mailbox, but no more than fill a batch. Prefetches them, because their
    /// cache lines are in another core's cache. A call of [`Pipeline::accept_handoffs`] must follow.
    #[inline]
    fn fetch_handoffs(&mut self, context: &mut Context<'_>, limit: usize) {
        let mut intake = Intake::default();
        while self.handoffs.len() < limit
            && !intake.is_enough()
            && let Some(handoff) = context.mesh.receive(context.pool)
        {
            prefetch(&raw const *handoff.packet);
            intake.add(&handoff.packet);
            self.handoffs.push(handoff);
        }
    }

    /// Appends the packets that were fetched to the batch. Returns their number.
    #[inline]
    fn accept_handoffs(&mut self, context: &mut Context<'_>, batch: &mut Vec<Packet>) -> usize {
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

    /// For each packet of the last batch, the port at which it arrived and the number of packets on a wire that it
    /// stands for.
    pub(crate) fn packets_by_port(&self) -> impl Iterator<Item = (PortId, u64)> + Clone {
        self.metadata.iter().map(|metadata| (metadata.port, metadata.segments.into()))
    }

    /// Decapsulates packets. Returns the number of refused packets.
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
        // A packet without an entrance must not continue.
        debug_assert_eq!(batch.len(), self.arrivals.len(), "a packet has no entrance");
        batch.drain(self.arrivals.len().min(batch.len())..).for_each(|it| context.pool.put(it));
        refused
    }

    /// Parses the packets of the batch, forms the keys of their flows and prefetches their buckets. A packet that
    /// cannot be parsed leaves the batch. `arrivals` holds the origin of each packet. Returns the number of packets on
    /// a wire that they stand for.
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

    /// Reads the buckets, which are in the cache by now, guesses the slot of each flow, and prefetches the first flows.
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

    /// Decides every packet and carries out the decision. `has_untracked` says whether policy may decide before
    /// connection tracking. `victims` is the flow up to which [`Pipeline::guess_slots`] has prefetched, if it was
    /// called.
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
        for (packet, metadata) in batch.drain(..).zip(&metadata) {
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
            let Some((forwarding, rules)) = forwarding else {
                if let Some(packet) = self.forward_translated(context, packet, metadata, now) {
                    handoffs += u64::from(self.slow_path(context, packet, metadata));
                }
                continue;
            };
            let segments = metadata.segments.into();
            tally.add(&self.counters.rules, rules, segments);
            let header_len = metadata.header_len.into();
            if let Err(reason) =
                context.forward(packet, header_len, forwarding, metadata.is_finished)
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

/// Counts a packet that cannot be parsed. This is a separate function, so that its caller does not keep the count in a
/// register.
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

/// Counts and frees a packet that is dropped at the input.
fn drop_packet(context: &mut Context<'_>, port: PortId, packet: Packet, reason: DropReason) {
    context.count_drops(port, reason, 1);
    context.pool.put(packet);
}
