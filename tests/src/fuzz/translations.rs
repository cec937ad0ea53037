//! The translated connections that a node may know, in a simple model that follows
//! docs/services.md. The backend and the source port of a connection are read from the packets that
//! come out.

use std::net::IpAddr;
use std::rc::Rc;

use ahash::{AHashMap, AHashSet};

use super::connections::{Connection, FRAGMENTS, Fragments};
use super::epoch::{Entry, Epoch};
use super::full_range::leads_alike;
use super::read::{FlowTuple, Read, TransportKey};
use super::services::{Asked, End, Services};
use super::translation_law::hairpin;

/// The two tuples of a connection, in the direction in which it was opened: as the client sends it,
/// and behind the translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pair {
    pub first: FlowTuple,
    pub behind: FlowTuple,
}

impl Pair {
    /// Whether the connection keeps its backend.
    pub fn is_kept(&self, services: &Services) -> bool {
        let ends = asked_of(&self.first).zip(end_of(&self.behind));
        let leads = |(asked, end): &(Asked, End)| (asked.0, asked.2) != *end;
        ends.filter(leads).is_none_or(|(asked, end)| services.keeps(&asked, &end))
    }

    /// Whether the client's port stays unchanged.
    pub fn keeps_port(&self) -> bool {
        client(&self.behind).2 == client(&self.first).2
    }

    /// The connection as policy judges it: from the client's own end to the end behind the translation.
    pub fn judged(&self) -> FlowTuple {
        let transport = match (self.first.transport, self.behind.transport) {
            (TransportKey::Ports(from, _), TransportKey::Ports(_, to)) => {
                TransportKey::Ports(from, to)
            }
            (first, _) => first,
        };
        FlowTuple { transport, destination: self.behind.destination, ..self.first }
    }
}

/// A client's tuple, and the records about it.
#[derive(Debug, Default)]
pub struct Asking {
    /// The batch of its first packet.
    since: u64,
    /// The time of the last packet that may have opened a connection.
    opened: Option<f64>,
    /// The entries by which its packets came in.
    pub entries: Vec<Entry>,
    /// The tuples with which packets have come out, in either direction.
    behind: Vec<(FlowTuple, Connection)>,
    /// The tuples behind a translation with which a backend may have answered before any packet
    /// came out.
    answered: Vec<FlowTuple>,
    /// Whether a packet of this batch may have opened a connection, but has not come out.
    is_unclear: bool,
    /// Whether any earlier batch had such a packet.
    was_unclear: bool,
    /// Whether a packet was one of the last of its connection. From then on another connection may
    /// get its port.
    is_over: bool,
}

/// The first fragments to which a later fragment may belong.
#[derive(Debug, Clone, Default)]
pub struct FirstFragments {
    pub last: f64,
    /// The tuples of these first fragments as they were sent.
    pub sent: Vec<FlowTuple>,
    /// The connections to which they may belong. The decision on a first fragment outlives its
    /// connection.
    pub pairs: Vec<Pair>,
}

/// The translated connections of one node.
#[derive(Debug, Default)]
pub struct Translations {
    asked: AHashMap<FlowTuple, Asking>,
    /// The client's tuples for each tuple behind a translation.
    by_behind: AHashMap<FlowTuple, Vec<FlowTuple>>,
    /// The client's tuples by the client's address, protocol, and port or ICMP query.
    by_client: AHashMap<(IpAddr, u8, TransportKey), Vec<FlowTuple>>,
    /// The first fragments of packets that may be translated.
    firsts: AHashMap<Fragments, FirstFragments>,
    /// All backends that each frontend has ever had.
    ever: AHashMap<Asked, Vec<End>>,
    ever_ends: AHashSet<End>,
    /// The connections whose packets have come out in this batch.
    seen: Vec<Pair>,
    /// The client's tuples and their translations since the last [`Self::take_fresh`].
    fresh: Vec<(FlowTuple, FlowTuple)>,
    epoch: u64,
    batch: u64,
}

/// The client's part of a tuple: its address, the protocol, and its port or ICMP query.
fn client(tuple: &FlowTuple) -> (IpAddr, u8, TransportKey) {
    let transport = match tuple.transport {
        TransportKey::Ports(from, _) => TransportKey::Ports(from, 0),
        other => other,
    };
    (tuple.source, tuple.upper, transport)
}

/// The destination of a client's packet: address, protocol and port. `None` if the packet has no ports.
pub fn asked_of(tuple: &FlowTuple) -> Option<Asked> {
    let TransportKey::Ports(_, port) = tuple.transport else { return None };
    Some((tuple.destination, tuple.upper, port))
}

/// The destination of a tuple with ports.
pub fn end_of(tuple: &FlowTuple) -> Option<End> {
    let TransportKey::Ports(_, port) = tuple.transport else { return None };
    Some((tuple.destination, port))
}

impl Translations {
    /// Follows the publications: records all backends, and the connections that may have lost
    /// theirs.
    pub fn follow(&mut self, epochs: &[Rc<Epoch>], node: usize) {
        for epoch in epochs.iter().filter(|it| it.number > self.epoch) {
            for (asked, frontend) in &epoch.services.frontends {
                let ever = self.ever.entry(*asked).or_default();
                for backend in &frontend.backends {
                    self.ever_ends.insert(*backend);
                    if !ever.contains(backend) {
                        ever.push(*backend);
                    }
                }
            }
            for (first, asking) in &mut self.asked {
                for (behind, connection) in &mut asking.behind {
                    let pair = Pair { first: *first, behind: *behind };
                    let moved = !connection.is_assured_at(epoch, node, &pair.judged());
                    if moved || !pair.is_kept(&epoch.services) {
                        connection.doubt();
                    }
                }
            }
        }
        self.epoch = self.epoch.max(epochs.iter().map(|it| it.number).max().unwrap_or_default());
    }

    /// Whether no client has used this tuple.
    pub fn is_fresh(&self, first: &FlowTuple) -> bool {
        !self.asked.contains_key(first)
    }

    /// Records a packet of a client. If it `opens`, it may open a connection. If it `reopens`, it
    /// may replace the existing connection.
    pub fn record_asked(
        &mut self,
        first: &FlowTuple,
        entry: Entry,
        (opens, reopens): (bool, bool),
        now: f64,
    ) {
        let since = self.batch;
        let by_client = &mut self.by_client;
        let asking = self.asked.entry(*first).or_insert_with(|| {
            by_client.entry(client(first)).or_default().push(*first);
            Asking { since, ..Asking::default() }
        });
        if !asking.entries.contains(&entry) {
            asking.entries.push(entry);
        }
        if opens {
            asking.opened = Some(now);
        }
        if reopens {
            asking.is_over = false;
            for (_, connection) in &mut asking.behind {
                connection.doubt();
                connection.ask();
            }
        }
        for (_, connection) in &mut asking.behind {
            connection.record(first.upper, false, now);
        }
    }

    /// Records a packet that may answer a client. The packet that opened the connection may not
    /// have come out.
    pub fn record_answer(&mut self, answer: &FlowTuple, now: f64) {
        for Pair { first, behind } in self.pairs_answered(answer) {
            let Some(asking) = self.asked.get_mut(&first) else { continue };
            let known = asking.behind.iter_mut().find(|(named, _)| *named == behind);
            match known.filter(|(_, connection)| connection.lives(first.upper, now)) {
                Some((_, connection)) => connection.record(first.upper, true, now),
                None if !asking.answered.contains(&behind) => asking.answered.push(behind),
                None => {}
            }
        }
    }

    /// Records the places of both ends of the connections of a packet, if policy allows them.
    pub fn record_standing(&mut self, epoch: &Epoch, node: usize, tuple: &FlowTuple, now: f64) {
        let mut firsts = vec![*tuple];
        firsts.extend(self.firsts_behind(tuple).iter().copied());
        firsts.extend(self.firsts_behind(&tuple.reversed()).iter().copied());
        for first in firsts {
            let Some(asking) = self.asked.get_mut(&first) else { continue };
            for (behind, connection) in &mut asking.behind {
                let judged = Pair { first, behind: *behind }.judged();
                connection.record_standing(epoch, node, &judged, now);
            }
        }
    }

    /// The same as [`Self::record_standing`], for the connections whose packets have come out in this batch.
    pub fn record_standings_of_seen(&mut self, epoch: &Epoch, node: usize, now: f64) {
        for pair in std::mem::take(&mut self.seen) {
            self.record_standing(epoch, node, &pair.first, now);
            self.seen.push(pair);
        }
    }

    /// Whether this batch has the first packet of a client's tuple.
    pub fn is_new(&self, asking: &Asking) -> bool {
        asking.since == self.batch
    }

    /// The connections that a packet may answer: those whose packets have come out, and those that
    /// may exist.
    pub fn pairs_answered(&self, answer: &FlowTuple) -> Vec<Pair> {
        let behind = answer.reversed();
        let mut pairs: Vec<Pair> = self
            .firsts_behind(&behind)
            .iter()
            .map(|first| Pair { first: *first, behind })
            .collect();
        let is_hairpin = behind.source == hairpin(behind.source);
        let source = if is_hairpin { behind.destination } else { behind.source };
        let of_client = self.by_client.get(&client(&FlowTuple { source, ..behind }));
        for first in of_client.into_iter().flatten() {
            let pair = Pair { first: *first, behind };
            let may_lead = asked_of(first).zip(end_of(&behind));
            if may_lead.is_some_and(|(asked, end)| self.ever(&asked).contains(&end))
                && !pairs.contains(&pair)
            {
                pairs.push(pair);
            }
        }
        pairs
    }

    /// The connections whose packets have this tuple when a backend or the client receives them.
    pub fn pairs_got(&self, got: &FlowTuple) -> Vec<Pair> {
        let of_client =
            self.firsts_behind(got).iter().map(|first| Pair { first: *first, behind: *got });
        let first = got.reversed();
        of_client.chain(self.pairs_sent(&first)).collect()
    }

    /// The connections in which a client has sent a packet with this tuple.
    pub fn pairs_sent(&self, first: &FlowTuple) -> Vec<Pair> {
        self.asked.get(first).into_iter().flat_map(|it| it.pairs(first)).collect()
    }

    /// Records a first fragment that may be translated, and the connections to which it may belong.
    pub fn record_first_fragment(
        &mut self,
        read: &Read,
        (entry, version): (Entry, u64),
        pairs: impl Iterator<Item = Pair>,
        now: f64,
    ) {
        let Some(named) = Fragments::new(read, entry, version) else { return };
        let firsts = self.firsts.entry(named).or_default();
        firsts.last = now;
        if !firsts.sent.contains(&read.tuple) {
            firsts.sent.push(read.tuple);
        }
        for pair in pairs {
            if !firsts.pairs.contains(&pair) {
                firsts.pairs.push(pair);
            }
        }
    }

    /// The first fragments to which a later fragment may belong.
    pub fn first_fragments(
        &self,
        read: &Read,
        entry: Entry,
        version: u64,
        now: f64,
    ) -> Option<FirstFragments> {
        let found = Fragments::new(read, entry, version).and_then(|named| self.firsts.get(&named));
        found.filter(|it| now - it.last <= FRAGMENTS).cloned()
    }

    /// The records about a client's tuple.
    pub fn asking(&self, first: &FlowTuple) -> Option<&Asking> {
        self.asked.get(first)
    }

    /// The client's tuples that have come out as this tuple.
    pub fn firsts_behind(&self, behind: &FlowTuple) -> &[FlowTuple] {
        self.by_behind.get(behind).map_or(&[], Vec::as_slice)
    }

    /// All backends that this destination has ever had.
    pub fn ever(&self, asked: &Asked) -> &[End] {
        self.ever.get(asked).map_or(&[], Vec::as_slice)
    }

    /// Whether an untranslated connection of this tuple may be mistaken for a translated one, in
    /// either direction.
    pub fn may_be_taken(&self, tuple: &FlowTuple) -> bool {
        let back = tuple.reversed();
        [*tuple, back].iter().any(|tuple| {
            let leads = |end| self.ever_ends.contains(&end);
            self.by_behind.contains_key(tuple)
                || self.by_client.contains_key(&client(tuple)) && end_of(tuple).is_some_and(leads)
        })
    }

    /// The connection that certainly has this tuple behind its translation, in this direction or the other.
    pub fn holder(&self, tuple: &FlowTuple, evictions: u64, now: f64) -> Option<Pair> {
        [*tuple, tuple.reversed()].into_iter().find_map(|behind| {
            let firsts = self.firsts_behind(&behind).iter();
            let mut pairs = firsts.map(|first| Pair { first: *first, behind });
            pairs.find(|pair| self.is_sure(pair, evictions, now))
        })
    }

    /// Records that the node may no longer know the connections of a client's tuple.
    pub fn doubt(&mut self, first: &FlowTuple) {
        if let Some(asking) = self.asked.get_mut(first) {
            asking.behind.iter_mut().for_each(|(_, connection)| connection.doubt());
        }
    }

    /// Whether a packet of a connection has come out in this batch, and none was one of the
    /// connection's last packets.
    pub fn is_seen(&self, pair: &Pair) -> bool {
        self.seen.contains(pair) && self.asking(&pair.first).is_some_and(|it| !it.is_over)
    }

    /// Records that a packet may be one of the last of a connection with this tuple, in either direction. The port that
    /// the world sees may then belong to another connection.
    pub fn record_over(&mut self, tuple: &FlowTuple) {
        let mut firsts = vec![*tuple];
        firsts.extend(self.firsts_behind(&tuple.reversed()).iter().copied());
        for first in firsts {
            let Some(asking) = self.asked.get_mut(&first) else { continue };
            asking.is_over = true;
            asking.behind.iter_mut().for_each(|(_, connection)| connection.doubt());
        }
    }

    /// For each of these ports of a source: the connections that have used it to the destination of
    /// `like`.
    pub fn holders(&self, like: &FlowTuple, source: IpAddr, ports: Vec<u16>) -> Vec<Vec<Pair>> {
        let of_port = |port: u16| {
            let transport = match like.transport {
                TransportKey::Ports(_, to) => TransportKey::Ports(port, to),
                TransportKey::Query { kind, asks, .. } => {
                    TransportKey::Query { kind, asks, id: port }
                }
                other => other,
            };
            let behind = FlowTuple { source, transport, ..*like };
            self.firsts_behind(&behind).iter().map(|first| Pair { first: *first, behind }).collect()
        };
        ports.into_iter().map(of_port).collect()
    }

    /// Whether connections to a tuple's destination may exist although none of their packets has
    /// come out.
    pub fn may_be_open_to(&self, like: &FlowTuple, now: f64) -> bool {
        let is_hidden = |(first, asking): (&FlowTuple, &Asking)| {
            first != like && leads_alike(first, like) && asking.may_be_open_now(first.upper, now)
        };
        self.asked.iter().any(is_hidden)
    }

    /// Whether the client of a tuple may have a connection to its destination.
    pub fn is_open_from(&self, like: &FlowTuple, now: f64) -> bool {
        let is_open = |(first, asking): (&FlowTuple, &Asking)| {
            let lives =
                |(_, connection): &(FlowTuple, Connection)| connection.lives(first.upper, now);
            first.source == like.source
                && leads_alike(first, like)
                && asking.behind.iter().any(lives)
        };
        self.asked.iter().any(is_open)
    }

    /// Whether the node certainly knows this connection.
    pub fn is_sure(&self, pair: &Pair, evictions: u64, now: f64) -> bool {
        self.connection(pair).is_some_and(|it| it.is_recent(evictions, now))
    }

    pub fn connection(&self, pair: &Pair) -> Option<&Connection> {
        let all = &self.asked.get(&pair.first)?.behind;
        all.iter().find(|(behind, _)| *behind == pair.behind).map(|(_, connection)| connection)
    }

    /// Records that a packet of a connection came out, in either direction. Returns whether it is the first one.
    pub fn record_seen(&mut self, pair: Pair, now: f64) -> bool {
        let asking = self.asked.entry(pair.first).or_default();
        let known = asking.behind.iter_mut().find(|(behind, _)| *behind == pair.behind);
        let (answered, mut is_first) = (&mut asking.answered, false);
        let mut start = || {
            is_first = true;
            let mut connection = Connection::translated(now);
            if let Some(at) = answered.iter().position(|behind| *behind == pair.behind) {
                answered.swap_remove(at);
                connection.record(pair.first.upper, true, now);
            }
            connection
        };
        if let Some((_, connection)) = known {
            if !connection.lives(pair.first.upper, now) {
                *connection = start();
            }
        } else {
            asking.behind.push((pair.behind, start()));
            let firsts = self.by_behind.entry(pair.behind).or_default();
            if !firsts.contains(&pair.first) {
                firsts.push(pair.first);
            }
        }
        if !self.seen.contains(&pair) {
            self.fresh.push((pair.first, pair.behind));
            self.seen.push(pair);
        }
        is_first
    }

    /// Records that the answer to a client's SYN came out.
    pub fn record_greeting(&mut self, pair: &Pair) {
        let Some(asking) = self.asked.get_mut(&pair.first) else { return };
        let known = asking.behind.iter_mut().find(|(behind, _)| *behind == pair.behind);
        known.into_iter().for_each(|(_, connection)| connection.greet());
    }

    /// Records that a connection is kept, although no packet of it had come out before: it was
    /// opened and answered unobserved.
    pub fn record_kept(&mut self, pair: &Pair, (epochs, node): (&[Rc<Epoch>], usize), now: f64) {
        let Some(asking) = self.asked.get_mut(&pair.first) else { return };
        let known = asking.behind.iter_mut().find(|(behind, _)| *behind == pair.behind);
        if let Some((_, connection)) = known {
            connection.record(pair.first.upper, true, now);
            epochs.iter().for_each(|it| connection.stand_at(it, node, &pair.judged()));
        }
    }

    /// Returns the client's tuples and their translations since the last call.
    pub fn take_fresh(&mut self) -> Vec<(FlowTuple, FlowTuple)> {
        std::mem::take(&mut self.fresh)
    }

    /// Records that a packet that may have opened a connection did not come out. If it `opens` one,
    /// the node has either the new or the previous connection.
    pub fn record_unclear(&mut self, first: &FlowTuple, opens: bool) {
        if let Some(asking) = self.asked.get_mut(first) {
            asking.is_unclear |= opens;
            asking.was_unclear = true;
        }
    }

    /// Ends a batch. The node certainly knows the connections whose packets came out, if no flow was evicted and each
    /// client's packets came out with one connection. Other connections with the same client's tuple are over.
    pub fn end_batch(&mut self, epoch: Option<&Epoch>, node: usize, evictions: u64, now: f64) {
        let seen = std::mem::take(&mut self.seen);
        self.batch += 1;
        for pair in &seen {
            let is_one = seen.iter().filter(|it| it.first == pair.first).count() == 1;
            let Some(asking) = self.asked.get_mut(&pair.first) else { continue };
            asking.behind.iter_mut().for_each(|(_, connection)| connection.end_greeting());
            let is_unclear = std::mem::take(&mut asking.is_unclear);
            let is_clear = is_one && !is_unclear && !asking.is_over;
            let Some(epoch) = epoch.filter(|_| is_clear) else { continue };
            let mut over = Vec::new();
            asking.behind.retain_mut(|(behind, connection)| {
                let is_this = *behind == pair.behind;
                if is_this {
                    connection.assure(epoch.number, evictions, now);
                    connection.assure_at(epoch, node, &pair.judged());
                } else {
                    over.push(*behind);
                }
                is_this
            });
            for behind in over {
                if let Some(firsts) = self.by_behind.get_mut(&behind) {
                    firsts.retain(|first| *first != pair.first);
                }
            }
        }
    }

    /// Replaces the agent, like [`Connections::outlive`](super::connections::Connections::outlive).
    pub fn outlive(&mut self, epoch: &Epoch, node: usize, now: f64, evicted: [u64; 2]) {
        for (first, asking) in &mut self.asked {
            for (behind, connection) in &mut asking.behind {
                let judged = Pair { first: *first, behind: *behind }.judged();
                connection.outlive((epoch, node), &judged, now, evicted);
            }
        }
    }
}

impl Asking {
    /// Whether any packet may have opened a connection so far.
    pub fn has_opened(&self) -> bool {
        self.opened.is_some()
    }

    /// Whether earlier batches may have opened connections although none of their packets has come out.
    pub fn was_unclear(&self) -> bool {
        self.was_unclear
    }

    /// Whether this batch or an earlier one may have opened connections although none of their packets has come out.
    pub fn may_be_open(&self, now: f64) -> bool {
        self.was_unclear || self.opened == Some(now)
    }

    /// Whether a connection may be open although none of its packets has come out, and has not yet timed out.
    fn may_be_open_now(&self, upper: u8, now: f64) -> bool {
        let lives = |at| Connection::translated(at).lives(upper, now);
        self.opened.is_some_and(lives) && (self.was_unclear || self.behind.is_empty())
    }

    /// The connections of packets that have come out.
    pub fn pairs<'a>(&'a self, first: &'a FlowTuple) -> impl Iterator<Item = Pair> + 'a {
        self.behind.iter().map(|(behind, _)| Pair { first: *first, behind: *behind })
    }
}
