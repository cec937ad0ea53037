//! All decisions of a chain about a peer, as runs of ports: one row of the tables, expanded.

use ahash::AHashMap;

use super::lines::Lines;
use super::packet_key::{KEYED, OTHERS};
use super::tables::Image;
use crate::common::{ChainId, Identity, PathId};
use crate::model::{Direction, Family, Protocol, Transport, icmp_of};
use crate::resolve::{Ports, Predicate, PredicateId, ResolvedEnd};

/// A range of keys that lead to one path; both ends are included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first key.
    pub first: u16,
    /// The last key.
    pub last: u16,
    /// The path.
    pub path: PathId,
}

/// The decisions of a chain about the packets between its local end and one peer, for one source port. The runs of each
/// list are in ascending order and cover every key. Packets that have no key (later fragments) are not included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decisions {
    /// The runs by destination port, for each of [`Protocol::ALL`].
    pub ports: [Vec<Run>; 3],
    /// The runs for the ICMP of the family, by type (the upper byte) and code.
    pub icmp: Vec<Run>,
    /// The runs for the other protocols, by number. TCP, UDP, SCTP and both ICMPs are not decided here: the runs also
    /// cover their numbers, but the path there has no meaning.
    pub others: Vec<Run>,
    /// Whether the decisions may be different for another source port.
    pub by_source: bool,
}

/// The place where an image looks up the decisions for a chain, a local end and a peer. The law: if two of these
/// triples have the same place, their decisions are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lookups {
    /// There is no place, because the chain or an end is unknown. Everything is denied.
    Nowhere,
    /// A row.
    Row(u32),
    /// The chain is evaluated rule by rule.
    Rules {
        /// The chain.
        chain: ChainId,
        /// The local end.
        local: Identity,
        /// The class of the peer.
        class: u32,
    },
}

/// The keys and source ports at which the path changes, by table.
#[derive(Default)]
struct Bounds {
    keys: [Vec<u32>; OTHERS],
    sources: Vec<u32>,
}

impl Image {
    /// The class of an identity. Every chain makes the same decisions for all peers of one class. Several classes count
    /// as one, and the result is the first of them, if every chain makes the same decisions for them and if they differ
    /// only in the nets that contain their addresses. `None` if the tables do not know the identity.
    pub fn class_of(&self, identity: Identity) -> Option<u32> {
        self.alike.get_or_init(|| self.classes_alike()).get(self.class(identity)?).copied()
    }

    /// For each class, the class that represents it: see [`class_of`](Self::class_of).
    fn classes_alike(&self) -> Box<[u32]> {
        let predicates = &self.peers.predicates.all;
        let is_net =
            |id: &PredicateId| matches!(predicates.get(*id as usize), Some(Predicate::Net(_)));
        // A chain that is evaluated rule by rule may use any net, so nets may be ignored only if there is no such
        // chain.
        let by_rows = self.linear.is_empty();
        let mut first: AHashMap<(Vec<PredicateId>, Vec<Option<u32>>), u32> = AHashMap::new();
        let classes = (0..).zip(&self.peers.class_predicate_sets);
        let alike = classes.map(|(class, set)| {
            let known = set.iter().copied().filter(|it| !by_rows || !is_net(it)).collect();
            let chains = (0..self.chains.len() as u32).map(ChainId);
            let rows = chains.map(|chain| self.cell(chain, class as usize)).collect();
            *first.entry((known, rows)).or_insert(class)
        });
        alike.collect()
    }

    /// The place where the decisions for a chain, its local end and a peer are looked up.
    pub fn lookups(&self, chain: ChainId, local: Identity, peer: Identity) -> Lookups {
        let class = self.class(peer).filter(|_| local != Identity::UNKNOWN);
        let Some(class) = class else { return Lookups::Nowhere };
        match self.cell(chain, class) {
            None => Lookups::Nowhere,
            Some(_) if self.is_linear(chain) => {
                Lookups::Rules { chain, local, class: class as u32 }
            }
            Some(row) => Lookups::Row(row),
        }
    }

    /// All decisions of a chain between its local end and a peer of this family, for packets with one source port.
    pub fn decisions(
        &self,
        chain: ChainId,
        local: Identity,
        peer: Identity,
        family: Family,
        source: u16,
    ) -> Decisions {
        let mut bounds = Bounds::default();
        match self.lookups(chain, local, peer) {
            Lookups::Nowhere => {}
            Lookups::Row(row) => bounds.add_row(&self.lines, row),
            Lookups::Rules { .. } => self.add_rules(&mut bounds, chain),
        }
        let path = |transport| self.classify(chain, local, peer, transport);
        let by_key = |table: usize, keys: &[u32]| {
            let keys = keys.iter().filter_map(|key| u16::try_from(*key).ok());
            runs(keys.chain([0]), |key| path(packet(table, family, key, source)))
        };
        let icmp = KEYED.iter().position(|number| *number == icmp_of(family)).unwrap_or(OTHERS - 1);
        let others = (0..=u16::from(u8::MAX)).filter(|number| {
            let number = u8::try_from(*number).unwrap_or(u8::MAX);
            !KEYED.contains(&number)
        });
        Decisions {
            ports: [0, 1, 2].map(|table| by_key(table, &bounds.keys[table])),
            icmp: by_key(icmp, &bounds.keys[icmp]),
            others: runs(others, |number| {
                path(Transport::bare(u8::try_from(number).unwrap_or(u8::MAX)))
            }),
            by_source: bounds.sources.iter().any(|source| *source > 0),
        }
    }

    /// Adds the bounds of all rules of a chain that is evaluated rule by rule. Does nothing for other chains.
    fn add_rules(&self, bounds: &mut Bounds, chain: ChainId) {
        let Some(linear) = self.linear.get(&chain) else { return };
        for step in &linear.steps.steps {
            let rule = &*step.rule;
            for icmp in [rule.icmp, rule.not_icmp].into_iter().flatten() {
                let Some(kind) = icmp.kind.map(u32::from) else { continue };
                let (first, last) = match icmp.code.map(u32::from) {
                    Some(code) => (kind << 8 | code, kind << 8 | code),
                    None => (kind << 8, kind << 8 | 0xff),
                };
                bounds.keys[3].extend([first, last + 1]);
                bounds.keys[4].extend([first, last + 1]);
            }
            let is_ingress = linear.direction == Direction::Ingress;
            for (end, is_source) in [(&rule.local, !is_ingress), (&rule.peer, is_ingress)] {
                for (first, last) in self.ranges(end) {
                    let range = [u32::from(first), u32::from(last) + 1];
                    if is_source {
                        bounds.sources.extend(range);
                    } else {
                        bounds.keys[..3].iter_mut().for_each(|keys| keys.extend(range));
                    }
                }
            }
        }
    }

    /// The port ranges in an end of a rule, including every port of its port sets.
    fn ranges(&self, end: &ResolvedEnd) -> Vec<(u16, u16)> {
        let mut ranges = Vec::new();
        for ports in end.ports() {
            match ports {
                Ports::Range(first, last) => ranges.push((*first, *last)),
                Ports::Set(set) => {
                    let possible = self.peers.predicates.possible_ports.get(*set as usize);
                    let possible = possible.into_iter().flatten();
                    ranges.extend(possible.map(|(_, port, _)| (*port, *port)));
                }
            }
        }
        ranges
    }
}

impl Bounds {
    fn add_row(&mut self, lines: &Lines, row: u32) {
        for (table, keys) in self.keys.iter_mut().enumerate() {
            let mut bounds = [Vec::new(), Vec::new()];
            lines.bounds(row, table, &mut bounds);
            let [of_keys, of_sources] = bounds;
            keys.extend(of_keys);
            self.sources.extend(of_sources);
        }
    }
}

/// A packet that has this key in a table.
fn packet(table: usize, family: Family, key: u16, source: u16) -> Transport {
    if let Some(protocol) = Protocol::ALL.get(table) {
        return Transport::ports(*protocol, source, key);
    }
    let [kind, code] = key.to_be_bytes();
    Transport::icmp(icmp_of(family), kind, code)
}

/// The runs between these starts, up to the highest key. The first start becomes 0.
fn runs(starts: impl Iterator<Item = u16>, path: impl Fn(u16) -> PathId) -> Vec<Run> {
    let mut starts: Vec<u16> = starts.collect();
    starts.sort_unstable();
    starts.dedup();
    let mut runs: Vec<Run> = Vec::new();
    for start in starts {
        let path = path(start);
        match runs.last_mut() {
            Some(run) if run.path == path => {}
            Some(run) => {
                run.last = start - 1;
                runs.push(Run { first: start, last: u16::MAX, path });
            }
            None => runs.push(Run { first: 0, last: u16::MAX, path }),
        }
    }
    runs
}
