//! One batch through the pipeline: unwrap, parse and name everything, find where the flows are, decide and act. Each packet's bucket is
//! asked for when it is named, its flow some packets before it is decided. What is out of the ordinary is for `consider`.

mod consider;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ahash::RandomState;
use crossbeam::channel::Sender;

use crate::admit;
use crate::counters::{Tally, WorkerCounters};
use crate::decide::{
    self, Arrival, BeforeTracking, Entrance, Glance, LastCourse, LastSource, Memory,
};
use crate::denials::Recent;
use crate::fate::DropReason;
use crate::flow::{FlowEntry, FlowTable, HashSeed, Shards, Victims};
use crate::fragment::FragmentTracker;
use crate::handover::{Colleagues, HandedOver};
use crate::outbox::{Outbox, let_go};
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
    pub(crate) colleagues: &'a Colleagues,
    pub(crate) lost: &'a mut Vec<(PortId, io::Error)>,
    pub(crate) watch: &'a mut Stopwatch,
    pub(crate) now: Duration,
}

impl Context<'_> {
    /// Puts a packet into the queue of a link; `is_ready`: it is finished, and fits.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as Outbox::queue")]
    fn post(
        &mut self,
        packet: Packet,
        header_len: usize,
        link: &Link,
        is_ready: bool,
    ) -> Result<(), DropReason> {
        let Self { tables, ports, pool, outbox, .. } = self;
        let Some(slot) = ports.slot(link.port) else {
            return Err(let_go(pool, packet, DropReason::TransmitRefused));
        };
        let tunnel = match link.tunnel.map(|index| tables.tunnel(index)) {
            None => None,
            Some(Some(tunnel)) => Some(tunnel),
            // Never bare.
            Some(None) => return Err(let_go(pool, packet, DropReason::HostUnreachable)),
        };
        let posted = match tunnel {
            None if is_ready => {
                outbox.queue(slot, packet);
                return Ok(());
            }
            Some(tunnel) if is_ready => {
                return outbox
                    .queue_in(tunnel, slot, packet)
                    .map_err(|packet| let_go(pool, packet, DropReason::Malformed));
            }
            _ => outbox.post(slot, pool, packet, header_len, link.mtu as usize, tunnel),
        };
        // A batch of super-packets falls into more segments than there are buffers: send before they run out.
        if self.outbox.is_full() {
            self.outbox.send(self.ports, self.pool, self.lost);
        }
        posted
    }

    /// Counts packets that came by a port and died.
    fn dropped(&mut self, port: PortId, reason: DropReason, packets: u64) {
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
    memory: Memory,
    /// Keys the hashes of senders.
    senders: RandomState,
    recent: Recent,
    aged: Duration,
    /// Of each packet of the batch.
    arrivals: Vec<Arrival>,
    /// Of each packet that has been read.
    glances: Vec<Glance>,
    /// What other workers have handed over, on its way into the batch.
    handed_over: Vec<HandedOver>,
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
                last_source: LastSource::default(),
                last_course: LastCourse::default(),
                fragments: FragmentTracker::new(sizes.fragments),
                evictions: 0,
                next: colleagues.next(),
            },
            senders: RandomState::new(),
            recent: Recent::default(),
            aged: Duration::ZERO,
            arrivals: Vec::new(),
            glances: Vec::new(),
            handed_over: Vec::new(),
            all_untracked: false,
            counters,
            reports,
        })
    }

    /// Copies of the flows, in no order.
    pub(crate) fn flows(&self) -> impl Iterator<Item = FlowEntry> {
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

    /// Takes in what a port has brought: out of the tunnels, and read. [`Pipeline::judge`] is to follow. Each pass is a function that
    /// is not inlined, so that it has the registers for itself.
    pub(crate) fn enter(
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
        self.handed_over.iter().for_each(|it| it.packet.prefetch());
        let received = match admit::entrance(context.tables, role) {
            Ok(Some(entrance)) => {
                let arrival = Arrival { entrance, port, times: 0 };
                self.read(context, batch, std::iter::repeat(arrival))
            }
            Ok(None) => {
                let refused = self.unwrap(context, batch, port, role);
                context.watch.lap(Stage::Unwrap);
                let arrivals = std::mem::take(&mut self.arrivals);
                let read = self.read(context, batch, arrivals.iter().copied());
                self.arrivals = arrivals;
                refused + read
            }
            Err(reason) => {
                let refused = batch.len() as u64;
                batch.drain(..).for_each(|packet| refuse(context, port, packet, reason));
                self.glances.clear();
                refused
            }
        };
        if let Some(slot) = context.ports.slot(port) {
            slot.counters.received_bytes.add(bytes as u64);
            slot.counters.received_packets.add(received);
        }
    }

    /// Takes up to `limit` packets out of the mailbox, no more than are enough for a batch, and asks for them: their lines are
    /// another core's. [`Pipeline::take_over`] is to follow.
    #[inline]
    pub(crate) fn fetch(&mut self, context: &mut Context<'_>, limit: usize) {
        let mut intake = Intake::default();
        while self.handed_over.len() < limit
            && !intake.is_enough()
            && let Some(handed_over) = context.colleagues.take(context.pool)
        {
            prefetch(&raw const *handed_over.packet);
            intake.add(&handed_over.packet);
            self.handed_over.push(handed_over);
        }
    }

    /// Takes in what was fetched, behind what is already in the batch. Returns how many packets it was.
    #[inline]
    pub(crate) fn take_over(
        &mut self,
        context: &mut Context<'_>,
        batch: &mut Vec<Packet>,
    ) -> usize {
        let count = self.handed_over.len();
        if count > 0 {
            self.glances.truncate(batch.len());
            let mut handed_over = std::mem::take(&mut self.handed_over);
            handed_over.drain(..).for_each(|it| self.take_in(context, batch, it));
            self.handed_over = handed_over;
        }
        count
    }

    #[inline(never)]
    fn take_in(
        &mut self,
        context: &mut Context<'_>,
        batch: &mut Vec<Packet>,
        handed_over: HandedOver,
    ) {
        let HandedOver { mut packet, segments, port, peer, times } = handed_over;
        if context.ports.slot(port).is_none() {
            self.counters.portless.add(segments.into());
            context.pool.put(packet);
            return;
        }
        let role = context.tables.role(port);
        let flows = &self.memory.flows;
        let mut glance = Glance::NOTHING;
        let read = admit::handed_over(context.tables, role, peer).and_then(|entrance| {
            look(&mut packet, &Arrival { entrance, port, times }, flows, &mut glance)
        });
        if let Err(reason) = read {
            context.dropped(port, reason, segments.into());
            context.pool.put(packet);
            return;
        }
        flows.prefetch(glance.name.hash);
        self.glances.push(glance);
        batch.push(packet);
    }

    /// Decides the packets of a batch, which have been taken in, and does what was decided.
    #[inline]
    pub(crate) fn judge(&mut self, context: &mut Context<'_>, batch: &mut Vec<Packet>) {
        context.watch.lap(Stage::Read);
        let asks_first = context.tables.host_policy.has_untracked();
        let victims = (!(asks_first && self.all_untracked)).then(|| self.guess());
        context.watch.lap(Stage::Guess);
        self.forward(context, batch, asks_first, victims);
        context.watch.lap(Stage::Forward);
        self.counters.evictions.set(self.memory.evictions);
    }

    /// Of each packet of the last batch, the port that brought it, and how many packets it stands for on a wire.
    pub(crate) fn brought(&self) -> impl Iterator<Item = (PortId, u64)> + Clone {
        self.glances.iter().map(|glance| (glance.port, glance.segments.into()))
    }

    /// Takes packets out of their tunnels. Returns how many were refused.
    #[inline(never)]
    fn unwrap(
        &mut self,
        context: &mut Context<'_>,
        batch: &mut Vec<Packet>,
        port: PortId,
        role: Role,
    ) -> u64 {
        let nowhere = Arrival { entrance: Entrance::NOWHERE, port, times: 0 };
        self.arrivals.clear();
        self.arrivals.resize(batch.len(), nowhere);
        let mut refused = 0;
        for (packet, arrival) in batch.iter_mut().zip(&mut self.arrivals) {
            match admit::unwrap(context.tables, packet, role) {
                Ok(entrance) => arrival.entrance = entrance,
                Err(reason) => {
                    context.dropped(port, reason, 1);
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
    fn read(
        &mut self,
        context: &mut Context<'_>,
        batch: &mut Vec<Packet>,
        arrivals: impl Iterator<Item = Arrival>,
    ) -> u64 {
        self.glances.resize(batch.len(), Glance::NOTHING);
        let flows = &self.memory.flows;
        let (mut segments, mut refused) = (0, 0);
        let places = batch.iter_mut().zip(&mut self.glances).zip(arrivals);
        for ((packet, glance), arrival) in places {
            if let Err(reason) = look(packet, &arrival, flows, glance) {
                unread(context, glance, arrival.port, reason, &mut refused);
            }
            flows.prefetch(glance.name.hash);
            segments += u64::from(glance.segments);
        }
        if refused > 0 {
            let mut segments = self.glances.iter().map(|glance| glance.segments);
            let refused = batch.extract_if(.., |_| segments.next() == Some(0));
            refused.for_each(|packet| context.pool.put(packet));
            self.glances.retain(|glance| glance.segments > 0);
        }
        segments + refused
    }

    /// Once the buckets are there, finds where the flows are, and asks for the first of them.
    #[inline(never)]
    fn guess(&mut self) -> Victims {
        let flows = &self.memory.flows;
        for Glance { name, .. } in &mut self.glances {
            name.guess = flows.guess(name.hash);
        }
        let mut victims = Victims::default();
        for Glance { name, .. } in self.glances.iter().take(AHEAD) {
            flows.prefetch_guessed(&name.key, name.guess, &mut victims);
        }
        victims
    }

    /// Decides every packet and does what was decided. `asks_first`: policy may decide before connection tracking; `victims`: what
    /// [`Pipeline::guess`] has asked for, if it was called.
    #[inline(never)]
    fn forward(
        &mut self,
        context: &mut Context<'_>,
        batch: &mut Vec<Packet>,
        asks_first: bool,
        victims: Option<Victims>,
    ) {
        let now = context.seconds();
        let glances = std::mem::take(&mut self.glances);
        let mut all_untracked = asks_first;
        let mut tally = Tally::default();
        let mut handed_over = 0;
        let (mut ahead, mut victims) = match victims {
            Some(victims) => (glances.get(AHEAD..).unwrap_or_default().iter(), victims),
            None => Default::default(),
        };
        for (mut packet, glance) in batch.drain(..).zip(&glances) {
            if let Some(Glance { name, .. }) = ahead.next() {
                self.memory.flows.prefetch_guessed(&name.key, name.guess, &mut victims);
            }
            let mut before = BeforeTracking::Tracked;
            if asks_first {
                before = decide::untracked(context.tables, &mut self.memory, glance);
                all_untracked &= matches!(before, BeforeTracking::Goes(_));
            }
            let passage = match before {
                BeforeTracking::Goes(passage) => Some(passage),
                BeforeTracking::Tracked => {
                    decide::known(context.tables, &mut self.memory, glance, now)
                }
                BeforeTracking::Other => None,
            };
            let Some(passage) = passage else {
                handed_over += u64::from(self.consider(context, packet, glance));
                continue;
            };
            let segments = glance.segments.into();
            tally.add(&self.counters.rules, passage.rules, segments);
            if passage.hop {
                parse::decrement_ttl(packet.room_mut());
            }
            let header_len = glance.header_len.into();
            if let Err(reason) = context.post(packet, header_len, passage.link, glance.is_finished)
            {
                context.dropped(glance.port, reason, segments);
            }
        }
        self.all_untracked = all_untracked;
        tally.count(&self.counters.rules);
        if handed_over > 0 {
            self.counters.handed_over.add(handed_over);
            context.colleagues.wake();
        }
        self.glances = glances;
    }
}

/// Reads a packet and names its flow.
#[inline(always)]
#[expect(clippy::inline_always, reason = "as Glance::at, and its parts go where they belong")]
fn look(
    packet: &mut Packet,
    arrival: &Arrival,
    flows: &FlowTable,
    glance: &mut Glance,
) -> Result<(), DropReason> {
    let plain = parse::plain(packet.bytes()).filter(|_| packet.is_finished());
    match plain {
        Some(plain) => {
            packet.truncate(plain.total_len.into());
            *glance = Glance::at(&plain, (1, plain.total_len.into()), true, arrival, flows);
            Ok(())
        }
        None => look_at_any(packet, arrival, flows, glance),
    }
}

/// The same of a packet that is not plain, or that nobody could put on a wire as it is.
#[inline(never)]
fn look_at_any(
    packet: &mut Packet,
    arrival: &Arrival,
    flows: &FlowTable,
    glance: &mut Glance,
) -> Result<(), DropReason> {
    let parsed = parse(packet.bytes())?;
    let on_a_wire = admit::take_in(packet, &parsed)?;
    *glance = Glance::at(&parsed, on_a_wire, packet.is_finished(), arrival, flows);
    Ok(())
}

/// Counts a packet that cannot be read. By itself, so that who reads need not keep the count at hand.
#[cold]
#[inline(never)]
fn unread(
    context: &mut Context<'_>,
    glance: &mut Glance,
    port: PortId,
    reason: DropReason,
    refused: &mut u64,
) {
    context.dropped(port, reason, 1);
    glance.segments = 0;
    *refused += 1;
}

/// Lets a packet go that got no further than here.
fn refuse(context: &mut Context<'_>, port: PortId, packet: Packet, reason: DropReason) {
    context.dropped(port, reason, 1);
    context.pool.put(packet);
}
