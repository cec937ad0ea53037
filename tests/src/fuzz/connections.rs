//! What a node has let through before, as simply as the documentation says it (docs/policy-semantics.md, "Connections").

use ahash::AHashMap;

use super::epoch::{Entry, Epoch, Place};
use super::read::{Part, Read, Speech};
use crate::packet::{ICMP, ICMPV6, TCP, UDP};

/// Seconds by which a flow may outlive its timeout: the coarseness of its clock.
const COARSE: f64 = 2.0;
/// No flow's timeout is so short.
const BRIEF: f64 = 3.0;
/// Seconds for which a first fragment speaks for the later ones.
const FRAGMENTS: f64 = 30.0 + COARSE;

/// A packet of a connection came out: then, and while this stood.
#[derive(Debug, Clone, Copy)]
struct Certainty {
    at: f64,
    epoch: u64,
    /// How many flows the node had evicted.
    evictions: u64,
}

/// Where both ends of a connection are.
type Standing = [(Place, u32); 2];

/// A connection in the direction in which policy let it through.
#[derive(Debug, Clone)]
pub struct Connection {
    /// When its last packet came, of either direction.
    seen: f64,
    /// The other side has spoken, too.
    answered: bool,
    /// Where its ends were by each of the tables that may have allowed it. Which of them did so last is not known: while tables are
    /// published, a packet may be judged by the old ones or by the new ones.
    standings: Vec<Standing>,
    /// It is certain that the node knows it.
    certain: Option<Certainty>,
}

impl Connection {
    /// How long it may be silent.
    fn timeout(&self, upper: u8) -> f64 {
        match (upper, self.answered) {
            (TCP, false) => 40.0,
            (TCP, true) => 3600.0,
            (UDP, _) => 60.0,
            (ICMP | ICMPV6, _) => 5.0,
            _ => 600.0,
        }
    }

    fn lives(&self, upper: u8, now: f64) -> bool {
        now - self.seen <= self.timeout(upper) + COARSE
    }

    /// Whether the node is certain to find it: it was there a moment ago, and nobody was evicted meanwhile.
    pub fn is_certain(&self, epoch: u64, evictions: u64, now: f64) -> bool {
        self.certain.is_some_and(|it| {
            now - it.at <= BRIEF && (it.epoch, it.evictions) == (epoch, evictions)
        })
    }

    pub fn is_answered(&self) -> bool {
        self.answered
    }

    /// Its ends are where they were when it was allowed.
    pub fn stands(&self, epoch: &Epoch, node: usize, speech: &Speech) -> bool {
        self.standings.contains(&standing(epoch, node, speech))
    }

    fn may_stand(&mut self, standing: Standing) {
        if !self.standings.contains(&standing) {
            self.standings.push(standing);
        }
    }
}

fn standing(epoch: &Epoch, node: usize, speech: &Speech) -> Standing {
    [speech.source, speech.destination].map(|address| epoch.standing(node, address))
}

/// By what a packet's fragments belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Fragments {
    ends: Speech,
    id: u32,
    entry: Entry,
    version: u64,
}

impl Fragments {
    fn of(read: &Read, entry: Entry, version: u64) -> Option<Self> {
        let (Part::First { id } | Part::Later { id, .. }) = read.part else { return None };
        // IPv6's fragments may name different protocols.
        let upper = if read.speech.is_v4() { read.speech.upper } else { 0 };
        let ends = Speech { upper, words: super::read::Words::Nothing, ..read.speech };
        Some(Self { ends, id, entry, version })
    }
}

/// Of one node.
#[derive(Default)]
pub struct Connections {
    known: AHashMap<Speech, Connection>,
    firsts: AHashMap<Fragments, f64>,
}

impl Connections {
    /// A connection that is alive, by the direction in which it was let through.
    pub fn find(&self, speech: &Speech, now: f64) -> Option<&Connection> {
        self.known.get(speech).filter(|it| it.lives(speech.upper, now))
    }

    /// Whether there was ever a connection of these ends in either direction.
    pub fn is_fresh(&self, speech: &Speech) -> bool {
        !self.known.contains_key(speech) && !self.known.contains_key(&speech.reversed())
    }

    /// A packet of an own direction that policy allows may have made the connection.
    pub fn let_through(&mut self, epoch: &Epoch, node: usize, speech: &Speech, now: f64) {
        let upper = speech.upper;
        let standing = standing(epoch, node, speech);
        let fresh =
            || Connection { seen: now, answered: false, standings: Vec::new(), certain: None };
        let known = self.known.entry(*speech).or_insert_with(fresh);
        if !known.lives(upper, now) {
            *known = fresh();
        }
        known.may_stand(standing);
        known.seen = now;
    }

    /// A packet of a connection has come out: it is certain that the node knows it, if it was before or `is_first`.
    pub fn make_certain(
        &mut self,
        speech: &Speech,
        epoch: u64,
        evictions: u64,
        now: f64,
        is_first: bool,
    ) {
        if let Some(known) = self.known.get_mut(speech)
            && (is_first || known.is_certain(epoch, evictions, now))
        {
            known.certain = Some(Certainty { at: now, epoch, evictions });
        }
    }

    /// An answer has come: if policy allows the connection, it may stand as it is now.
    pub fn stand(&mut self, epoch: &Epoch, node: usize, speech: &Speech, now: f64) {
        if let Some(known) = self.known.get_mut(speech)
            && known.lives(speech.upper, now)
            && epoch.allows(node, speech)
        {
            known.may_stand(standing(epoch, node, speech));
        }
    }

    /// A packet has come from where its source is: whatever connection it belongs to is not silent.
    pub fn hear(&mut self, speech: &Speech, now: f64) {
        for (named, answers) in [(*speech, false), (speech.reversed(), true)] {
            if let Some(known) = self.known.get_mut(&named)
                && known.lives(speech.upper, now)
            {
                known.seen = now;
                known.answered |= answers;
            }
        }
    }

    /// A first fragment was let through.
    pub fn let_fragments_through(&mut self, read: &Read, entry: Entry, version: u64, now: f64) {
        if let Some(named) = Fragments::of(read, entry, version) {
            self.firsts.insert(named, now);
        }
    }

    /// Whether a later fragment's first one was let through.
    pub fn knows_first(&self, read: &Read, entry: Entry, version: u64, now: f64) -> bool {
        let first = Fragments::of(read, entry, version).and_then(|named| self.firsts.get(&named));
        first.is_some_and(|first| now - first <= FRAGMENTS)
    }
}
