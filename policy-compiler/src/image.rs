//! The compiled tables and the lookup in them.
//!
//! ```text
//! address ── prefix map ──────────> identity
//! identity ───────────────────────> class      what the policies in use can tell apart
//! (chain, class) ─────────────────> row
//! row ── protocol, port ──────────> path        reason, verdict, counter slot
//! ```
//!
//! Every lookup is total. Numbers from another image, or made up, give an answer without panic, and where they name
//! nothing here the answer is [`Reason::Unknown`], which denies.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::model::{Direction, ObjectName, Protocol, Reason, Transport, Verdict};
use crate::prefix_map::PrefixMap;
use crate::resolve::{Chain, Predicate, PredicateId};

/// Stands for everything that policy can ask of a peer. Its meaning never changes in the life of a compiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Identity(pub u32);

impl Identity {
    /// Of a peer that the tables do not know: always denied.
    pub const UNKNOWN: Self = Self(0);
}

/// Names a chain of one image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainId(pub u32);

/// Names a path of one image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(pub u32);

/// How a packet was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// What decided.
    pub reason: Reason,
    /// What follows from it.
    pub verdict: Verdict,
    /// Its counter: the same for the same reason in every image of one compiler, below [`Image::slots`].
    pub slot: u32,
}

/// How many of each thing an image holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Local endpoints.
    pub endpoints: usize,
    /// Identities that some address may have.
    pub identities: usize,
    /// Classes of identities.
    pub classes: usize,
    /// Chains of policies.
    pub chains: usize,
    /// Predicates over peers.
    pub predicates: usize,
    /// Distinct rows.
    pub rows: usize,
    /// Distinct paths.
    pub paths: usize,
}

/// The predicates that are true of a class, one list for each subject.
pub(crate) type TruthLists = Box<[Box<[PredicateId]>]>;

/// A run of [`Image::starts`] and [`Image::interval_paths`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Span {
    pub(crate) first: u32,
    pub(crate) len: u32,
}

/// One row of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Row {
    pub(crate) ports: [Span; 3],
    pub(crate) portless: [PathId; 3],
    pub(crate) other: PathId,
}

/// A local endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Local {
    /// By direction.
    pub(crate) chains: [ChainId; 2],
    pub(crate) revision: u64,
}

/// The tables of one node, immutable.
#[derive(Debug)]
pub struct Image {
    pub(crate) prefixes: PrefixMap,
    /// What `prefixes` was built from, ascending, without the default.
    pub(crate) entries: Box<[(IpNet, Identity)]>,
    pub(crate) default_identity: Identity,
    pub(crate) endpoints: BTreeMap<ObjectName, Local>,
    /// The identity that stands first in `classes`; at least 1.
    pub(crate) first_identity: u32,
    /// Class of each identity; [`NO_CLASS`] for those that this image does not use.
    pub(crate) classes: Box<[u32]>,
    /// For each class the predicates that are true of it, once for each subject of an address with several.
    pub(crate) class_truths: Box<[TruthLists]>,
    pub(crate) predicates: Box<[Predicate]>,
    pub(crate) chains: Box<[Chain]>,
    /// Row of (chain, class), all classes of a chain together.
    pub(crate) cells: Box<[u32]>,
    pub(crate) rows: Box<[Row]>,
    /// First port of each interval of each row.
    pub(crate) starts: Box<[u16]>,
    /// Path of each interval.
    pub(crate) interval_paths: Box<[PathId]>,
    /// The unknown of each direction comes first.
    pub(crate) paths: Box<[Path]>,
    /// What [`Image::path`] gives for a number that is none.
    pub(crate) no_path: Path,
    pub(crate) slots: u32,
    pub(crate) identity_count: usize,
    pub(crate) canonical_hash: u64,
}

/// The class of an identity that an image does not use.
pub(crate) const NO_CLASS: u32 = u32::MAX;

impl Image {
    /// The identity of an address; every address has one.
    #[inline]
    pub fn identity(&self, address: IpAddr) -> Identity {
        Identity(self.prefixes.lookup(address))
    }

    /// [`identity`](Self::identity) for an IPv4 address as a number in host order.
    #[inline]
    pub fn identity_v4(&self, address: u32) -> Identity {
        Identity(self.prefixes.lookup_v4(address))
    }

    /// [`identity`](Self::identity) for an IPv6 address as a number in host order.
    #[inline]
    pub fn identity_v6(&self, address: u128) -> Identity {
        Identity(self.prefixes.lookup_v6(address))
    }

    /// The chain that judges a local endpoint's traffic in one direction; `None` for an endpoint that is not in these
    /// tables: nothing passes for it.
    pub fn chain(&self, endpoint: &ObjectName, direction: Direction) -> Option<ChainId> {
        self.endpoints.get(endpoint).map(|local| local.chains[direction as usize])
    }

    /// Judges a packet: `peer` is the source for a chain of ingress and the destination for one of egress.
    #[inline]
    pub fn classify(&self, chain: ChainId, peer: Identity, transport: Transport) -> PathId {
        let path = self.row(chain, peer).and_then(|row| self.path_in(row, transport));
        path.unwrap_or_else(|| self.unknown(chain))
    }

    /// The first two paths of every image are the unknown of each direction.
    #[cold]
    fn unknown(&self, chain: ChainId) -> PathId {
        let direction = self.describe(chain).map_or(Direction::Ingress, |chain| chain.direction);
        PathId(direction as u32)
    }

    #[inline]
    fn row(&self, chain: ChainId, peer: Identity) -> Option<&Row> {
        // UNKNOWN and identities older than this image wrap round to far beyond the end.
        let index = peer.0.wrapping_sub(self.first_identity) as usize;
        let class = *self.classes.get(index)? as usize;
        let classes = self.class_truths.len();
        if class >= classes {
            return None;
        }
        let row = *self.cells.get(chain.0 as usize * classes + class)?;
        self.rows.get(row as usize)
    }

    #[inline]
    fn path_in(&self, row: &Row, transport: Transport) -> Option<PathId> {
        let protocol = match transport.protocol {
            6 => 0,
            17 => 1,
            132 => 2,
            _ => return Some(row.other),
        };
        let Some(port) = transport.port else { return Some(row.portless[protocol]) };
        let Span { first, len } = row.ports[protocol];
        let starts = self.starts.get(first as usize..(first + len) as usize)?;
        let interval = starts.partition_point(|start| *start <= port).checked_sub(1)?;
        self.interval_paths.get(first as usize + interval).copied()
    }

    /// The path of a number; for a number that names none, one that denies.
    #[inline]
    pub fn path(&self, path: PathId) -> &Path {
        self.paths.get(path.0 as usize).unwrap_or(&self.no_path)
    }

    /// Every path; [`PathId`]s are indexes into it.
    pub fn paths(&self) -> &[Path] {
        &self.paths
    }

    /// All counter slots that any image of this compiler has used so far are below this number.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// A hash of everything that an endpoint's two chains mean: names and rules of the policies that select it and its own
    /// numbers for the port names in them. It stays while nothing of that changes, whatever else does; 0 for an endpoint
    /// that is not in these tables.
    pub fn revision(&self, endpoint: &ObjectName) -> u64 {
        self.endpoints.get(endpoint).map_or(0, |local| local.revision)
    }

    /// The local endpoints, in order.
    pub fn endpoints(&self) -> impl Iterator<Item = &ObjectName> {
        self.endpoints.keys()
    }

    /// What a chain is made of.
    pub fn describe(&self, chain: ChainId) -> Option<&Chain> {
        self.chains.get(chain.0 as usize)
    }

    /// A hash of what the tables say, independent of the numbers that identities and counters happen to have: the same
    /// objects give the same hash, in any order and after any history.
    pub fn canonical_hash(&self) -> u64 {
        self.canonical_hash
    }

    /// How many of each thing it holds.
    pub fn counts(&self) -> Counts {
        Counts {
            endpoints: self.endpoints.len(),
            identities: self.identity_count,
            classes: self.class_truths.len(),
            chains: self.chains.len(),
            predicates: self.predicates.len(),
            rows: self.rows.len(),
            paths: self.paths.len(),
        }
    }

    /// Bytes of memory of the tables that lookups read and of the address list; names and descriptions not counted.
    pub fn bytes(&self) -> usize {
        self.prefixes.bytes()
            + size_of_val(&*self.entries)
            + size_of_val(&*self.classes)
            + size_of_val(&*self.cells)
            + size_of_val(&*self.rows)
            + size_of_val(&*self.starts)
            + size_of_val(&*self.interval_paths)
            + size_of_val(&*self.paths)
    }

    /// Every prefix at which identities change.
    pub(crate) fn prefixes(&self) -> impl Iterator<Item = IpNet> + '_ {
        self.entries.iter().map(|(net, _)| *net)
    }

    /// Every port at which some interval starts.
    pub(crate) fn interval_starts(&self) -> &[u16] {
        &self.starts
    }

    /// A row's intervals for one protocol.
    pub(crate) fn intervals(
        &self,
        row: &Row,
        protocol: Protocol,
    ) -> impl Iterator<Item = (u16, PathId)> + '_ {
        let Span { first, len } = row.ports[protocol as usize];
        let starts = self.starts.iter().copied().zip(self.interval_paths.iter().copied());
        starts.skip(first as usize).take(len as usize)
    }
}

impl Default for Image {
    /// The image that stands before any other: it knows no endpoint and no peer, so that nothing passes.
    fn default() -> Self {
        let unknown = |direction, slot| Path {
            reason: Reason::Unknown(direction),
            verdict: Verdict::Deny,
            slot,
        };
        Self {
            prefixes: PrefixMap::new(Identity::UNKNOWN.0),
            entries: Box::default(),
            default_identity: Identity::UNKNOWN,
            endpoints: BTreeMap::new(),
            first_identity: 1,
            classes: Box::default(),
            class_truths: Box::default(),
            predicates: Box::default(),
            chains: Box::default(),
            cells: Box::default(),
            rows: Box::default(),
            starts: Box::default(),
            interval_paths: Box::default(),
            paths: Box::new([unknown(Direction::Ingress, 0), unknown(Direction::Egress, 1)]),
            no_path: unknown(Direction::Ingress, 0),
            slots: 2,
            identity_count: 0,
            canonical_hash: 0,
        }
    }
}
