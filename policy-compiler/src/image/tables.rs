//! The image: all tables of one node, and the lookups.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, OnceLock};

use super::chain::{Chain, LINEAR, LocalEndpoint};
use super::linear::Linear;
use super::lines::Lines;
use super::packet_key::{PacketKey, table};
use super::path::Path;
use super::peers::PeerTables;
use crate::common::{ChainId, Identity, PathId};
use crate::model::{Direction, ObjectName, Transport};
use crate::peers::NO_CLASS;
use crate::resolve::{LocalName, Stage};

/// A packet between two ends, prepared for lookups in several chains of one image.
#[derive(Debug, Clone, Copy)]
pub struct Query {
    class: u32,
    packet: PacketKey,
}

/// The sizes of an image: its chains, rows, paths and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// The number of local endpoints.
    pub endpoints: usize,
    /// The number of identities that some address has, or has had since the last compilation from nothing.
    pub identities: usize,
    /// The number of classes of identities.
    pub classes: usize,
    /// The number of chains of policies.
    pub chains: usize,
    /// The number of chains that are evaluated rule by rule, because the local end's predicates differ between its
    /// addresses, or because the rows exceed the budget.
    pub linear: usize,
    /// The number of predicates in the address tables.
    pub predicates: usize,
    /// The number of distinct rows.
    pub rows: usize,
    /// The number of distinct paths.
    pub paths: usize,
}

/// The value for a missing row.
pub(crate) const NO_ROW: u32 = LINEAR - 1;

/// The tables of one node. They do not change, except that the compiler may store another identity of an IPv4 address
/// in place.
#[derive(Debug)]
pub struct Image {
    pub(crate) peers: Arc<PeerTables>,
    /// For each predicate, whether a rule of this image uses it, directly or in a port set.
    pub(crate) in_use: Box<[bool]>,
    pub(crate) endpoints: BTreeMap<Arc<LocalName>, LocalEndpoint>,
    pub(crate) chains: Box<[Chain]>,
    /// For each chain and class, the row, or [`LINEAR`]. The classes of one chain are adjacent.
    pub(crate) cells: Box<[u32]>,
    /// The chains that are evaluated rule by rule.
    pub(crate) linear: BTreeMap<ChainId, Linear>,
    /// The rows.
    pub(crate) lines: Lines,
    /// All paths. The paths for unknown ends come first, one for each direction.
    pub(crate) paths: Arc<[Path]>,
    /// The path that [`Image::path`] returns for a number that refers to none.
    pub(crate) no_path: Path,
    pub(crate) slots: u32,
    /// For each class, the class that [`Image::class_of`] returns. Computed at first use.
    pub(crate) alike: OnceLock<Box<[u32]>>,
    /// The number of the image among the images of its compiler.
    pub(crate) serial: u64,
}

impl Image {
    /// The identity of an address. Every address has one.
    #[inline]
    pub fn identity(&self, address: IpAddr) -> Identity {
        Identity(self.peers.prefixes.lookup(address))
    }

    /// Like [`identity`](Self::identity), for an IPv4 address as a number in host order.
    #[inline]
    pub fn identity_v4(&self, address: u32) -> Identity {
        Identity(self.peers.prefixes.lookup_v4(address))
    }

    /// A count that grows with each change in place that may concern one of the two addresses (numbers in host order).
    /// It is a sum of counters that only grow (and may wrap around). The law: the caller reads this count before
    /// [`identity_v4`](Self::identity_v4) of the two addresses, or before anything else whose changes are
    /// [counted](Self::count_change_v4). If the count is later unchanged, the values that the caller read are
    /// unchanged. IPv6 addresses do not change in place.
    #[inline]
    pub fn changes_v4(&self, addresses: [u32; 2]) -> u32 {
        self.peers.changes.sum(addresses)
    }

    /// Counts a change at an address. Call this after the change is stored.
    pub fn count_change_v4(&self, address: u32) {
        self.peers.changes.increment(address);
    }

    /// Stores the identity of an address. Returns `false` if there is no room. At most one thread at a time may call
    /// this.
    pub(crate) fn set_v4(&self, address: Ipv4Addr, identity: Identity) -> bool {
        let stored = self.peers.prefixes.set_v4(address.to_bits(), identity.0);
        self.count_change_v4(address.to_bits());
        stored
    }

    /// Like [`identity`](Self::identity), for an IPv6 address as a number in host order.
    #[inline]
    pub fn identity_v6(&self, address: u128) -> Identity {
        Identity(self.peers.prefixes.lookup_v6(address))
    }

    /// The chain for a local pod's traffic in one direction. `None` for an endpoint that is not in these tables: no
    /// packet to or from it may pass.
    pub fn chain(&self, endpoint: &ObjectName, direction: Direction) -> Option<ChainId> {
        self.chain_at(endpoint, Stage::Pod, direction)
    }

    /// The chain of one stage; a pod has only the stage [`Stage::Pod`].
    pub fn chain_at(
        &self,
        endpoint: &LocalName,
        stage: Stage,
        direction: Direction,
    ) -> Option<ChainId> {
        self.endpoints.get(endpoint)?.chains.get(&(stage, direction)).copied()
    }

    /// Evaluates policy for a packet. `peer` is the source for an ingress chain and the destination for an egress
    /// chain; `local` is the other end.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as `Lines::follow`")]
    pub fn classify(
        &self,
        chain: ChainId,
        local: Identity,
        peer: Identity,
        transport: Transport,
    ) -> PathId {
        let row = self.row(chain, local, peer);
        let Some(first) = self.lines.first(row, table(transport.protocol)) else {
            return self.classify_without_row(chain, local, peer, transport);
        };
        self.lines.follow(first, transport).unwrap_or_else(|| self.unknown(chain))
    }

    /// Prepares the lookup of a packet in several chains. The arguments are those of [`classify`](Self::classify).
    #[inline]
    pub fn query(&self, local: Identity, peer: Identity, transport: Transport) -> Query {
        Query { class: self.class_of_peer(local, peer), packet: transport.into() }
    }

    /// The path that [`classify`](Self::classify) finds for a query of this image. `None` if there is no row for the
    /// query: then `classify` finds the path.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the caller of several chains knows the table of all")]
    pub fn path_of(&self, chain: ChainId, query: Query) -> Option<&Path> {
        let row = self.row_of(chain, query.class);
        let first = self.lines.first(row, query.packet.table)?;
        Some(self.path(self.lines.follow_prepared(first, query.packet)?))
    }

    /// The class of a peer. If the peer or the local end is unknown, it is a number that no class has.
    #[inline]
    fn class_of_peer(&self, local: Identity, peer: Identity) -> u32 {
        if local == Identity::UNKNOWN { NO_CLASS } else { self.class_number(peer) }
    }

    /// The row of a chain for two ends, [`LINEAR`], or [`NO_ROW`] if there is none.
    #[inline]
    pub(crate) fn row(&self, chain: ChainId, local: Identity, peer: Identity) -> u32 {
        self.row_of(chain, self.class_of_peer(local, peer))
    }

    /// The row of a chain and a class, [`LINEAR`], or [`NO_ROW`] if there is none.
    #[inline]
    pub(crate) fn row_of(&self, chain: ChainId, class: u32) -> u32 {
        let classes = self.peers.class_predicate_sets.len();
        if class as usize >= classes {
            return NO_ROW;
        }
        let cell = chain.0 as usize * classes + class as usize;
        self.cells.get(cell).copied().unwrap_or(NO_ROW)
    }

    /// The path of a packet without a row: if the chain has rules that are evaluated one by one, their result;
    /// otherwise the path for unknown ends.
    #[cold]
    #[inline(never)]
    pub(crate) fn classify_without_row(
        &self,
        chain: ChainId,
        local: Identity,
        peer: Identity,
        transport: Transport,
    ) -> PathId {
        let path = || {
            let (linear, chain) = (self.linear.get(&chain)?, self.describe(chain)?);
            linear.judge(chain, &self.peers, local, peer, transport)
        };
        let known = local != Identity::UNKNOWN;
        known.then(path).flatten().unwrap_or_else(|| self.unknown(chain))
    }

    /// The path for unknown ends in the chain's direction. The first two paths of every image are these, one for each
    /// direction.
    #[cold]
    #[inline(never)]
    fn unknown(&self, chain: ChainId) -> PathId {
        let direction = self.describe(chain).map_or(Direction::Ingress, |it| it.list.direction);
        PathId(direction as u32)
    }

    /// See [`PeerTables::class`].
    pub(crate) fn class(&self, identity: Identity) -> Option<usize> {
        self.peers.class(identity)
    }

    /// The class of an identity, or a number that no class has.
    #[inline]
    pub(crate) fn class_number(&self, identity: Identity) -> u32 {
        self.peers.classes.class(identity)
    }

    /// Stores the class of an identity before any address has that identity. Returns `false` if there is no room. The
    /// identity itself is stored later, with release ordering. So a reader that sees the identity also sees its class.
    pub(crate) fn store_class(&self, identity: Identity, class: u32) -> bool {
        self.peers.classes.store(identity, class)
    }

    /// The path with this number. If there is none, a path that denies.
    #[inline]
    pub fn path(&self, path: PathId) -> &Path {
        self.paths.get(path.0 as usize).unwrap_or(&self.no_path)
    }

    /// All paths, indexed by [`PathId`].
    pub fn paths(&self) -> &[Path] {
        &self.paths
    }

    /// The number of counter slots: every slot that an image of this compiler has used so far is below it.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// A hash of the meaning of an endpoint's chains: the names and rules of the policies that select the endpoint, and
    /// those predicates of these policies that are true of the endpoint. The hash changes if and only if one of these
    /// changes. It is 0 for an endpoint that is not in these tables.
    pub fn revision(&self, endpoint: &LocalName) -> u64 {
        self.endpoints.get(endpoint).map_or(0, |local| local.revision)
    }

    /// The local endpoints, in order.
    pub fn endpoints(&self) -> impl Iterator<Item = &LocalName> {
        self.endpoints.keys().map(|name| &**name)
    }

    /// The list and the predicates of a chain.
    pub fn describe(&self, chain: ChainId) -> Option<&Chain> {
        self.chains.get(chain.0 as usize)
    }

    /// The sizes of the image.
    pub fn counts(&self) -> Counts {
        Counts {
            endpoints: self.endpoints.len(),
            identities: self.peers.identities,
            classes: self.peers.class_predicate_sets.len(),
            chains: self.chains.len(),
            linear: self.linear.len(),
            predicates: self.peers.predicates.all.len(),
            rows: self.lines.len(),
            paths: self.paths.len(),
        }
    }

    /// The memory of the tables that lookups read, in bytes, without names and descriptions.
    pub fn bytes(&self) -> usize {
        self.peers.prefixes.bytes()
            + self.peers.classes.bytes()
            + size_of_val(&*self.cells)
            + self.lines.bytes()
            + size_of_val(&*self.paths)
    }

    /// All addresses, as runs with one identity each, in ascending order: the first address, last address and identity
    /// of each run.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (IpAddr, IpAddr, Identity)> {
        self.peers.prefixes.runs().into_iter().map(|(first, last, it)| (first, last, Identity(it)))
    }

    /// The row of a chain and a class, or [`LINEAR`].
    #[inline]
    pub(crate) fn cell(&self, chain: ChainId, class: usize) -> Option<u32> {
        self.cells.get(chain.0 as usize * self.peers.class_predicate_sets.len() + class).copied()
    }

    /// Whether a chain is evaluated rule by rule.
    pub fn is_linear(&self, chain: ChainId) -> bool {
        self.linear.contains_key(&chain)
    }
}

impl Default for Image {
    /// The first image: it knows no endpoint and no peer, so nothing passes.
    fn default() -> Self {
        Self {
            peers: Arc::default(),
            in_use: Box::default(),
            endpoints: BTreeMap::new(),
            chains: Box::default(),
            cells: Box::default(),
            linear: BTreeMap::new(),
            lines: Lines::default(),
            paths: Arc::new(Direction::ALL.map(Path::unknown)),
            no_path: Path::unknown(Direction::Ingress),
            slots: 2,
            alike: OnceLock::new(),
            serial: 0,
        }
    }
}
