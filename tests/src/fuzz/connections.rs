//! The connections that a node has let through, in a simple model that follows the documentation
//! (docs/policy-semantics.md, "Connections").

use std::net::IpAddr;

use ahash::{AHashMap, AHashSet};

use super::epoch::{Entry, Epoch, Place};
use super::read::{FlowTuple, Part, Read};
use crate::packet::{ICMP, ICMPV6, TCP, UDP};

/// The seconds by which a flow may outlive its timeout: the resolution of its clock.
const CLOCK_STEP: f64 = 2.0;
/// The seconds by which a restored flow may outlive its timeout: the age of its record.
const RECORDED: f64 = 30.0;
/// A number of seconds that is shorter than any timeout.
const SHORT: f64 = 3.0;
/// The seconds for which a first fragment decides for the later ones.
pub const FRAGMENTS: f64 = 30.0 + CLOCK_STEP;

/// The time at which a packet of a connection last came out, and the state of the node then.
#[derive(Debug, Clone, Copy)]
struct Certainty {
    at: f64,
    epoch: u64,
    /// The number of flows that the node had evicted.
    evictions: u64,
}

/// The places and attachments of both ends of a connection.
type Standing = [(Place, u32); 2];

/// The state of a TCP handshake: whether the answer to the client's SYN has come out, and no newer
/// SYN has come in.
#[derive(Debug, Clone, Copy, Default)]
struct Greeting {
    /// The client has sent a SYN in this batch.
    asked: bool,
    /// The answer came out in this batch.
    came: bool,
    /// The answer came out in an earlier batch.
    is_over: bool,
}

/// A connection, in the direction that policy let through.
#[derive(Debug, Clone)]
pub struct Connection {
    /// The time of its last packet of either direction.
    seen: f64,
    /// Whether the connection is translated. Translated connections may be silent for longer.
    is_translated: bool,
    /// Whether the other side has answered.
    answered: bool,
    greeting: Greeting,
    /// The places of its ends in all tables that may have allowed it. It is not known which of the tables allowed it
    /// last, because during a publication a packet may be judged by the old tables or by the new ones.
    standings: Vec<Standing>,
    /// The last moment at which the node certainly knew the connection; `None` if there is a doubt.
    certain: Option<Certainty>,
    /// The places of its ends when the node last certainly knew it. They are recorded only for translated connections.
    assured_at: Option<Standing>,
}

impl Connection {
    pub fn new(now: f64) -> Self {
        Self {
            seen: now,
            is_translated: false,
            answered: false,
            greeting: Greeting::default(),
            standings: Vec::new(),
            certain: None,
            assured_at: None,
        }
    }

    /// Records a SYN of the client, which may reopen the connection.
    pub fn ask(&mut self) {
        self.greeting = Greeting { asked: true, ..Greeting::default() };
    }

    /// Records that the answer to the client's SYN came out.
    pub fn greet(&mut self) {
        self.greeting.came = true;
    }

    /// Ends a batch. The order of the batch's packets is unknown, so an answer counts only if the client sent no SYN in
    /// the same batch.
    pub fn end_greeting(&mut self) {
        let Greeting { asked, came, is_over } = self.greeting;
        self.greeting = Greeting { is_over: is_over || came && !asked, ..Greeting::default() };
    }

    /// Whether a node that hides the client's address certainly lets the connection's packets through. For TCP, the
    /// server must have answered the SYN.
    pub fn is_greeted(&self, upper: u8) -> bool {
        upper != TCP || self.greeting.is_over
    }

    pub fn translated(now: f64) -> Self {
        Self { is_translated: true, ..Self::new(now) }
    }

    /// The seconds after which a silent connection ends.
    fn timeout(&self, upper: u8) -> f64 {
        match (upper, self.answered) {
            (TCP, true) if self.is_translated => 86_400.0,
            (UDP, _) if self.is_translated => 120.0,
            (ICMP | ICMPV6, _) if self.is_translated => 60.0,
            (TCP, false) => 40.0,
            (TCP, true) => 3600.0,
            (UDP, _) => 60.0,
            (ICMP | ICMPV6, _) => 5.0,
            _ => 600.0,
        }
    }

    pub fn lives(&self, upper: u8, now: f64) -> bool {
        now - self.seen <= self.timeout(upper) + CLOCK_STEP
    }

    /// Whether the node certainly finds the connection: the node certainly knew it at most `SHORT` seconds ago, and
    /// has since published no tables and evicted no flow.
    pub fn is_certain(&self, epoch: u64, evictions: u64, now: f64) -> bool {
        self.is_recent(evictions, now) && self.certain.is_some_and(|it| it.epoch == epoch)
    }

    /// The same as [`Self::is_certain`], but tables may have been published since.
    pub fn is_recent(&self, evictions: u64, now: f64) -> bool {
        self.certain.is_some_and(|it| now - it.at <= SHORT && it.evictions == evictions)
    }

    /// Whether a connection that is not TCP has been silent for so long that it gives up its port:
    /// 5 s, and one second for the lag of a node's clock.
    pub fn is_quiet(&self, now: f64) -> bool {
        now - self.seen >= 6.0
    }

    /// Records that the node certainly knows the connection.
    pub fn assure(&mut self, epoch: u64, evictions: u64, now: f64) {
        self.certain = Some(Certainty { at: now, epoch, evictions });
    }

    /// Records the places of the ends of a connection that the node certainly knows.
    pub fn assure_at(&mut self, epoch: &Epoch, node: usize, tuple: &FlowTuple) {
        self.assured_at = Some(standing(epoch, node, tuple));
    }

    /// Whether the ends have the same places as when the node certainly knew the connection.
    pub fn is_assured_at(&self, epoch: &Epoch, node: usize, tuple: &FlowTuple) -> bool {
        self.assured_at == Some(standing(epoch, node, tuple))
    }

    /// Records that the node may no longer know the connection.
    pub fn doubt(&mut self) {
        self.certain = None;
    }

    /// Records a packet, so that the connection does not count as silent.
    pub fn record(&mut self, upper: u8, answers: bool, now: f64) {
        if self.lives(upper, now) {
            self.seen = now;
            self.answered |= answers;
        }
    }

    /// Records the places of the ends of the connection if it is live and policy allows it.
    pub fn record_standing(&mut self, epoch: &Epoch, node: usize, tuple: &FlowTuple, now: f64) {
        if self.lives(tuple.upper, now) && epoch.allows(node, tuple) {
            self.may_stand(standing(epoch, node, tuple));
        }
    }

    /// See [`Connections::outlive`].
    pub fn outlive(
        &mut self,
        (epoch, node): (&Epoch, usize),
        tuple: &FlowTuple,
        now: f64,
        evicted: [u64; 2],
    ) {
        let certain = self.certain.filter(|_| {
            self.is_certain(epoch.number, evicted[0], now) && epoch.allows(node, tuple)
        });
        self.certain =
            certain.filter(|_| evicted[1] == 0).map(|it| Certainty { evictions: evicted[1], ..it });
        self.seen = (self.seen + RECORDED).min(now);
        self.record_standing(epoch, node, tuple, now);
    }

    pub fn is_answered(&self) -> bool {
        self.answered
    }

    /// Whether the connection's ends have the same places as when it was allowed.
    pub fn stands(&self, epoch: &Epoch, node: usize, tuple: &FlowTuple) -> bool {
        self.standings.contains(&standing(epoch, node, tuple))
    }

    /// Records the new places of the ends of a connection that is kept.
    pub fn stand_at(&mut self, epoch: &Epoch, node: usize, tuple: &FlowTuple) {
        self.may_stand(standing(epoch, node, tuple));
    }

    fn may_stand(&mut self, standing: Standing) {
        if !self.standings.contains(&standing) {
            self.standings.push(standing);
        }
    }
}

fn standing(epoch: &Epoch, node: usize, tuple: &FlowTuple) -> Standing {
    [tuple.source, tuple.destination].map(|address| epoch.standing(node, address))
}

/// The common properties of a packet's fragments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fragments {
    ends: FlowTuple,
    id: u32,
    entry: Entry,
    version: u64,
}

impl Fragments {
    pub fn new(read: &Read, entry: Entry, version: u64) -> Option<Self> {
        let (Part::First { id } | Part::Later { id, .. }) = read.part else { return None };
        // The fragments of an IPv6 packet may name different protocols.
        let upper = if read.tuple.is_v4() { read.tuple.upper } else { 0 };
        let ends = FlowTuple { upper, transport: super::read::TransportKey::Nothing, ..read.tuple };
        Some(Self { ends, id, entry, version })
    }
}

/// The connections of one node.
#[derive(Default)]
pub struct Connections {
    known: AHashMap<FlowTuple, Connection>,
    firsts: AHashMap<Fragments, f64>,
    /// The connections of masqueraded clients.
    masqueraded: AHashSet<FlowTuple>,
    /// The entries by which the packets of outside clients came in, by connection. Packets of one connection may come
    /// in by several entries.
    entries: AHashMap<FlowTuple, Vec<Entry>>,
}

impl Connections {
    /// The live connection of this tuple, in the direction that was let through.
    pub fn find(&self, tuple: &FlowTuple, now: f64) -> Option<&Connection> {
        self.known.get(tuple).filter(|it| it.lives(tuple.upper, now))
    }

    /// Whether there was never a connection of this tuple in either direction.
    pub fn is_fresh(&self, tuple: &FlowTuple) -> bool {
        !self.known.contains_key(tuple) && !self.known.contains_key(&tuple.reversed())
    }

    /// Records a connection of a masqueraded client.
    pub fn record_masqueraded(&mut self, tuple: &FlowTuple) {
        self.masqueraded.insert(*tuple);
    }

    /// Records an entry by which a connection's packets come in from outside.
    pub fn record_entry(&mut self, tuple: &FlowTuple, entry: Entry) {
        let entries = self.entries.entry(*tuple).or_default();
        if !entries.contains(&entry) {
            entries.push(entry);
        }
    }

    /// The entries by which a connection's packets came in, as far as they were recorded.
    pub fn entries(&self, tuple: &FlowTuple) -> &[Entry] {
        self.entries.get(tuple).map_or(&[], Vec::as_slice)
    }

    /// The entries by which packets of all connections between two addresses came in.
    pub fn entries_between(&self, client: IpAddr, asked: IpAddr) -> Vec<Entry> {
        let between = self
            .entries
            .iter()
            .filter(|(tuple, _)| (tuple.source, tuple.destination) == (client, asked));
        between.flat_map(|(_, entries)| entries.iter().copied()).collect()
    }

    /// Whether the client's packets came in by the tunnel: the client is an outside host, and the other node has chosen
    /// a backend of this node for it.
    pub fn is_visitors(&self, tuple: &FlowTuple) -> bool {
        self.entries(tuple).contains(&Entry::Tunnel)
    }

    /// Records that the node may no longer know a connection, because another one may have replaced
    /// it.
    pub fn doubt(&mut self, tuple: &FlowTuple) {
        if let Some(known) = self.known.get_mut(tuple) {
            known.doubt();
        }
    }

    /// Whether a masqueraded client has opened the connection of a packet. A later fragment has no ports, so only its
    /// addresses are compared.
    pub fn is_masqueraded(&self, read: &Read) -> bool {
        let ends = |tuple: &FlowTuple| [tuple.source, tuple.destination];
        [read.tuple, read.tuple.reversed()].iter().any(|tuple| match read.is_later() {
            true => self.masqueraded.iter().any(|it| ends(it) == ends(tuple)),
            false => self.masqueraded.contains(tuple),
        })
    }

    /// Records a packet that policy allows. It may have opened the connection.
    pub fn record_allowed(&mut self, epoch: &Epoch, node: usize, tuple: &FlowTuple, now: f64) {
        let upper = tuple.upper;
        let standing = standing(epoch, node, tuple);
        let known = self.known.entry(*tuple).or_insert_with(|| Connection::new(now));
        if !known.lives(upper, now) {
            *known = Connection::new(now);
        }
        known.may_stand(standing);
        known.seen = now;
    }

    /// Records that a packet of a connection came out. Then the node certainly knows the connection, if that was
    /// certain before or if `is_first`.
    pub fn make_certain(
        &mut self,
        tuple: &FlowTuple,
        epoch: u64,
        evictions: u64,
        now: f64,
        is_first: bool,
    ) {
        if let Some(known) = self.known.get_mut(tuple)
            && (is_first || known.is_certain(epoch, evictions, now))
        {
            known.assure(epoch, evictions, now);
        }
    }

    /// Records the places of the ends of a live connection, if policy allows it.
    pub fn record_standing(&mut self, epoch: &Epoch, node: usize, tuple: &FlowTuple, now: f64) {
        if let Some(known) = self.known.get_mut(tuple) {
            known.record_standing(epoch, node, tuple, now);
        }
    }

    /// Records a packet that came in at the place of its source, so that its connection does not count as silent.
    pub fn record_packet(&mut self, tuple: &FlowTuple, now: f64) {
        for (named, answers) in [(*tuple, false), (tuple.reversed(), true)] {
            if let Some(known) = self.known.get_mut(&named) {
                known.record(tuple.upper, answers, now);
            }
        }
    }

    /// Replaces the agent. The next agent keeps those flows of the last agent that policy allows, wherever their ends
    /// are now. The next agent may treat their last packets as later than they were. It certainly knows those flows if
    /// it has evicted none. `evicted` has the number of flows that the last agent evicted, and that of the next one.
    pub fn outlive(&mut self, epoch: &Epoch, node: usize, now: f64, evicted: [u64; 2]) {
        for (tuple, known) in &mut self.known {
            known.outlive((epoch, node), tuple, now, evicted);
        }
    }

    /// Records a first fragment that was let through.
    pub fn record_first_fragment(&mut self, read: &Read, entry: Entry, version: u64, now: f64) {
        if let Some(named) = Fragments::new(read, entry, version) {
            self.firsts.insert(named, now);
        }
    }

    /// Whether the first fragment of a later one was let through.
    pub fn knows_first(&self, read: &Read, entry: Entry, version: u64, now: f64) -> bool {
        let first = Fragments::new(read, entry, version).and_then(|named| self.firsts.get(&named));
        first.is_some_and(|first| now - first <= FRAGMENTS)
    }
}
