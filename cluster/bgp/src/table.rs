//! The paths of all peers, the best ones of each prefix, and what each peer has been told.
//!
//! The caller brings what happens to sessions, asks what a peer should be told next ([`Table::take_messages`]), and sends
//! it. A peer's news wait here, each prefix once however often it changes: a slow peer costs no more memory than a fast one.
//!
//! Laws (`tests.rs`), for any order of events:
//! - The paths used are those that [`decision::used`] chooses of the paths that are there.
//! - A peer that has taken all its messages has been told exactly what [`export::advertised`] says of each prefix.
//! - A peer has at most as many prefixes here as [`Configuration::prefixes`] or [`Configuration::prefixes_of_node`] says.

use std::borrow::Cow;
use std::collections::btree_map::Range;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use ipnet::{IpNet, Ipv6Net};

use crate::decision::{self, Path};
use crate::export::{self, Exports, OwnRoute, Route};
use crate::filter::{self, Direction, Filters, Verdict};
use crate::path::{Attributes, Update};
use crate::peer::Peer;

/// The most bytes of attributes that a peer's paths have on average, if it tells as many prefixes as it may.
const WEIGHT: usize = 256;
/// How long stale paths are kept at most when the peer is back and does not say that it has told everything.
const STALE_AFTER_RETURN: Duration = Duration::from_mins(6);

/// What the table is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    /// This node's identifier.
    pub identifier: Ipv4Addr,
    /// The cluster that this node reflects routes in (RFC 4456).
    pub cluster: Option<Ipv4Addr>,
    /// This node's addresses. A path whose next hop is one of them is not taken.
    pub addresses: BTreeSet<IpAddr>,
    /// The peers, by their addresses.
    pub peers: BTreeMap<IpAddr, Peer>,
    /// The filters of those peers that have some.
    pub filters: BTreeMap<IpAddr, Filters>,
    /// What leaves the node.
    pub exports: Exports,
    /// The most prefixes of one peer that is no node.
    pub prefixes: usize,
    /// The most prefixes of one that is.
    pub prefixes_of_node: usize,
}

impl Configuration {
    const fn limit(&self, peer: &Peer) -> usize {
        if peer.is_node { self.prefixes_of_node } else { self.prefixes }
    }

    /// Whether another configuration has this peer, too, and asks the same of it.
    pub fn asks_same_of(&self, peer: IpAddr, other: &Self) -> bool {
        self.peers.get(&peer) == other.peers.get(&peer)
            && self.filters.get(&peer) == other.filters.get(&peer)
    }
}

/// A session that has been established.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// The peer's identifier.
    pub identifier: Ipv4Addr,
    /// This node's address in the session. Routes of this node lead to it.
    pub here: IpAddr,
    /// Whether the peer has kept its forwarding state over a restart, so that its paths of before hold until it has told
    /// all (RFC 4724, 4.2).
    pub keeps_routes: bool,
    /// The time.
    pub now: Duration,
}

/// A message for a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Routes that have changed.
    Update(Update),
    /// Everything has been told (RFC 4724, 2).
    EndOfRib,
}

/// A peer has told more prefixes than it may, or more bytes of attributes than so many prefixes need. The session has to
/// be closed (RFC 4486).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyPrefixes {
    /// The most that it may tell.
    pub limit: usize,
}

/// How many prefixes a peer has told, and has been told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// The prefixes that are taken from it.
    pub received: usize,
    /// The prefixes that were refused since the session began: loops, and next hops that lead back.
    pub refused: u64,
    /// The prefixes that it has been told.
    pub told: usize,
}

/// A route that peers have told.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Learned {
    /// The address to which packets go.
    pub next_hop: IpAddr,
    /// The peer.
    pub peer: IpAddr,
}

/// See the module.
#[derive(Debug)]
pub struct Table {
    configuration: Configuration,
    prefixes: BTreeMap<IpNet, Vec<Path>>,
    peers: BTreeMap<IpAddr, State>,
    woken: BTreeSet<IpAddr>,
    generation: u64,
}

/// The table's state of a peer.
#[derive(Debug, Default)]
struct State {
    /// The prefixes that have a path of it.
    received: BTreeSet<IpNet>,
    /// The sum of their paths' weights.
    weight: usize,
    refused: u64,
    session: Option<Session>,
    /// The time when its stale paths end.
    stale_until: Option<Duration>,
}

/// The established session of a peer.
#[derive(Debug)]
struct Session {
    opened: Opened,
    /// The prefixes that it has been told and that were not withdrawn.
    told: BTreeSet<IpNet>,
    /// The prefixes that have changed and that it has not been told since.
    changed: BTreeSet<IpNet>,
    /// How far it has been told everything.
    progress: Progress,
}

/// How far a peer has been told everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// All prefixes behind this one are still to be told.
    Behind(Option<IpNet>),
    /// That everything was told is still to be said.
    End,
    /// Everything was told.
    Done,
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}

impl Table {
    /// A table without peers.
    pub const fn new() -> Self {
        Self {
            configuration: Configuration {
                identifier: Ipv4Addr::UNSPECIFIED,
                cluster: None,
                addresses: BTreeSet::new(),
                peers: BTreeMap::new(),
                filters: BTreeMap::new(),
                exports: Exports::NONE,
                prefixes: 0,
                prefixes_of_node: 0,
            },
            prefixes: BTreeMap::new(),
            peers: BTreeMap::new(),
            woken: BTreeSet::new(),
            generation: 0,
        }
    }

    /// Takes a new desired state. A peer that is gone or differs, or whose filters do, loses its paths and its session: the
    /// caller closes it ([`Configuration::asks_same_of`]).
    pub fn configure(&mut self, configuration: &Configuration) {
        let before = mem::replace(&mut self.configuration, configuration.clone());
        let Configuration { peers, exports, .. } = configuration;
        for address in before.peers.keys() {
            if !before.asks_same_of(*address, configuration) {
                self.forget_paths(*address, |_| true);
                self.peers.remove(address);
            }
        }
        for address in peers.keys() {
            self.peers.entry(*address).or_default();
        }
        let differs = |key: &IpNet| before.exports.own.get(key) != exports.own.get(key);
        let own = before.exports.own.keys().chain(exports.own.keys());
        let own: BTreeSet<IpNet> = own.copied().filter(differs).collect();
        let blocks = own.iter().any(|it| {
            let of = |exports: &Exports| exports.own.get(it) == Some(&OwnRoute::Block);
            of(&before.exports) || of(exports)
        });
        for prefix in own {
            self.note(prefix);
        }
        // Blocks decide what else is told, as pools do.
        if blocks || !exports.has_rules_of(&before.exports) {
            let peers: Vec<IpAddr> = self.peers.keys().copied().collect();
            for peer in peers {
                self.refresh(peer);
            }
        }
    }

    /// A session is established: the peer is told everything.
    pub fn opened(&mut self, peer: IpAddr, opened: Opened) {
        if !opened.keeps_routes {
            self.forget_paths(peer, |path| path.is_stale);
        }
        let Some(state) = self.peers.get_mut(&peer) else { return };
        state.stale_until = state.stale_until.map(|_| opened.now + STALE_AFTER_RETURN);
        state.refused = 0;
        state.session = Some(Session {
            opened,
            told: BTreeSet::new(),
            changed: BTreeSet::new(),
            progress: Progress::Behind(None),
        });
        self.woken.insert(peer);
    }

    /// A peer has told routes. A path that leads back to this node is refused; it takes the place of the peer's path
    /// before it, as a withdrawal does.
    ///
    /// # Errors
    /// The peer has told too many prefixes; those beyond its limit were not taken.
    pub fn updated(&mut self, peer: IpAddr, update: Update) -> Result<(), TooManyPrefixes> {
        let Some(of) = self.configuration.peers.get(&peer) else { return Ok(()) };
        let Some(State { session: Some(session), .. }) = self.peers.get(&peer) else {
            return Ok(());
        };
        let (is_internal, identifier) = (of.is_internal(), session.opened.identifier);
        let limit = self.configuration.limit(of);
        let attributes = update.attributes.map(|it| received(it, is_internal));
        let fits = attributes.as_deref().is_some_and(|it| self.accepts(of, it));
        let filters = self.configuration.filters.get(&peer).cloned();
        for prefix in update.withdrawn {
            self.withdraw(peer, prefix.trunc());
        }
        for prefix in update.announced.iter().map(IpNet::trunc) {
            let next_hop = attributes.as_ref().map(|it| it.next_hop);
            let attributes = attributes.as_ref().filter(|_| fits && is_routable(prefix, next_hop));
            let attributes =
                attributes.and_then(|it| imported(filters.as_ref(), prefix, it, is_internal));
            let Some(state) = self.peers.get_mut(&peer) else { return Ok(()) };
            let Some(attributes) = attributes else {
                state.refused += 1;
                self.withdraw(peer, prefix);
                continue;
            };
            let is_full = state.received.len() >= limit && !state.received.contains(&prefix);
            let paths = self.prefixes.get(&prefix).into_iter().flatten();
            let before = paths.filter(|it| it.peer == peer).map(|it| weight(&it.attributes));
            let heavier = state.weight - before.sum::<usize>() + weight(&attributes);
            if is_full || heavier > limit.saturating_mul(WEIGHT) {
                return Err(TooManyPrefixes { limit });
            }
            state.received.insert(prefix);
            state.weight = heavier;
            let path = Path { peer, identifier, is_internal, is_stale: false, attributes };
            let paths = self.prefixes.entry(prefix).or_default();
            match paths.iter_mut().find(|it| it.peer == peer) {
                Some(before)
                    if before.attributes == path.attributes && before.identifier == identifier =>
                {
                    before.is_stale = false;
                    continue;
                }
                Some(before) => *before = path,
                None => paths.push(path),
            }
            self.note(prefix);
        }
        Ok(())
    }

    /// A peer has told everything: what is stale of it is gone.
    pub fn end_of_rib(&mut self, peer: IpAddr) {
        self.forget_paths(peer, |path| path.is_stale);
    }

    /// A session has ended. `retain`: how long the peer's paths are kept, because it restarts (RFC 4724, 4.2). Paths that
    /// were stale before end now.
    pub fn closed(&mut self, peer: IpAddr, retain: Option<Duration>, now: Duration) {
        self.forget_paths(peer, |path| path.is_stale || retain.is_none());
        let Some(state) = self.peers.get_mut(&peer) else { return };
        state.session = None;
        state.stale_until = retain.map(|it| now + it);
        for prefix in &state.received {
            let paths = self.prefixes.get_mut(prefix).into_iter().flatten();
            paths.filter(|it| it.peer == peer).for_each(|it| it.is_stale = true);
        }
    }

    /// A peer wants to be told everything again (RFC 2918).
    pub fn refresh(&mut self, peer: IpAddr) {
        if let Some(State { session: Some(session), .. }) = self.peers.get_mut(&peer) {
            session.progress = Progress::Behind(None);
            self.woken.insert(peer);
        }
    }

    /// Removes the stale paths whose time is over, and returns the next time when some end.
    pub fn expire(&mut self, now: Duration) -> Option<Duration> {
        let over = |it: &State| it.stale_until.is_some_and(|until| until <= now);
        let over = self.peers.iter().filter(|(_, it)| over(it)).map(|(peer, _)| *peer);
        for peer in over.collect::<Vec<_>>() {
            self.forget_paths(peer, |path| path.is_stale);
        }
        self.peers.values().filter_map(|it| it.stale_until).min()
    }

    /// The next messages for a peer, with some of `prefixes` prefixes at most. None: it has been told everything.
    pub fn take_messages(&mut self, peer: IpAddr, prefixes: usize) -> Vec<Message> {
        let Self { configuration, prefixes: all, peers, .. } = self;
        let Some(to) = configuration.peers.get(&peer) else { return Vec::new() };
        let Some(State { session: Some(session), .. }) = peers.get_mut(&peer) else {
            return Vec::new();
        };
        let none = Filters::default();
        let filters = configuration.filters.get(&peer).unwrap_or(&none);
        let mut news = BTreeSet::new();
        while news.len() < prefixes
            && let Some(prefix) = session.changed.pop_first()
        {
            news.insert(prefix);
        }
        while news.len() < prefixes
            && let Progress::Behind(from) = session.progress
        {
            let next = next_of(all, &configuration.exports.own, from);
            session.progress = next.map_or(Progress::End, |it| Progress::Behind(Some(it)));
            news.extend(next.filter(|it| it.addr().is_ipv4() == peer.is_ipv4()));
        }
        let mut withdrawn = Vec::new();
        let mut announced: BTreeMap<Attributes, Vec<IpNet>> = BTreeMap::new();
        for prefix in news {
            let route = route(configuration, all, prefix);
            let attributes = route.and_then(|it| {
                let exports = &configuration.exports;
                export::advertised(exports, (prefix, it), (to, filters), session.opened.here)
            });
            match attributes {
                Some(attributes) => {
                    session.told.insert(prefix);
                    announced.entry(attributes).or_default().push(prefix);
                }
                None if session.told.remove(&prefix) => withdrawn.push(prefix),
                None => {}
            }
        }
        let mut messages = Vec::new();
        if !withdrawn.is_empty() {
            messages.push(Message::Update(Update { withdrawn, ..Update::default() }));
        }
        for (attributes, announced) in announced {
            let attributes = Some(Arc::new(attributes));
            messages.push(Message::Update(Update { announced, attributes, ..Update::default() }));
        }
        if session.progress == Progress::End && session.changed.is_empty() {
            session.progress = Progress::Done;
            messages.push(Message::EndOfRib);
        }
        if session.progress != Progress::Done || !session.changed.is_empty() {
            self.woken.insert(peer);
        }
        messages
    }

    /// The peers that have something to be told, and that were not named since it was taken last.
    pub fn take_woken(&mut self) -> Vec<IpAddr> {
        mem::take(&mut self.woken).into_iter().collect()
    }

    /// A number that grows with each change of what was learned.
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// The routes that some peers have told, and that are the best of theirs: for each prefix the best one first, and those
    /// that are as good behind it. Others' paths hide none. A prefix of this node itself is none of them.
    pub fn learned<'a>(
        &'a self,
        is_meant: impl Fn(&Peer) -> bool + 'a,
    ) -> impl Iterator<Item = (IpNet, Vec<Learned>)> + 'a {
        let peers = self.configuration.peers.iter().filter(move |(_, peer)| is_meant(peer));
        let meant: BTreeSet<IpAddr> = peers.map(|(address, _)| *address).collect();
        let own = &self.configuration.exports.own;
        let learned = self.prefixes.iter().filter(|(prefix, _)| !own.contains_key(prefix));
        learned.filter_map(move |(prefix, paths)| {
            let used = used(paths.iter().filter(|it| meant.contains(&it.peer)));
            (!used.is_empty()).then_some((*prefix, used))
        })
    }

    /// The same of all peers, the first prefixes of each family: at most so many of IPv4, and so many of IPv6.
    pub fn first_learned(&self, most: usize) -> Vec<(IpNet, Vec<Learned>)> {
        let own = &self.configuration.exports.own;
        // The first of the prefixes of IPv6, which come behind all of IPv4.
        let v6 = IpNet::V6(Ipv6Net::default());
        let families = [self.prefixes.range(..v6), self.prefixes.range(v6..)];
        let of = |family: Range<'_, IpNet, Vec<Path>>| {
            let learned = family.filter(|(prefix, _)| !own.contains_key(prefix)).take(most);
            learned.map(|(prefix, paths)| (*prefix, used(paths))).collect::<Vec<_>>()
        };
        families.into_iter().flat_map(of).collect()
    }

    /// The numbers of a peer's prefixes.
    pub fn counts(&self, peer: IpAddr) -> Counts {
        let Some(state) = self.peers.get(&peer) else { return Counts::default() };
        let told = state.session.as_ref().map_or(0, |it| it.told.len());
        Counts { received: state.received.len(), refused: state.refused, told }
    }

    /// Whether a path is one that this node may use: it has not passed this node.
    fn accepts(&self, peer: &Peer, attributes: &Attributes) -> bool {
        let Configuration { identifier, cluster, addresses, .. } = &self.configuration;
        let passed = attributes.systems().filter(|it| *it == peer.own_system).count();
        let reflected_here = attributes.clusters.iter().any(|it| Some(*it) == *cluster);
        passed <= usize::from(peer.own_system_allowed)
            && attributes.originator != Some(*identifier)
            && !reflected_here
            && !addresses.contains(&attributes.next_hop)
    }

    fn withdraw(&mut self, peer: IpAddr, prefix: IpNet) {
        let Some(state) = self.peers.get_mut(&peer) else { return };
        if !state.received.remove(&prefix) {
            return;
        }
        if let Some(paths) = self.prefixes.get_mut(&prefix) {
            for path in paths.extract_if(.., |it| it.peer == peer) {
                state.weight -= weight(&path.attributes);
            }
            if paths.is_empty() {
                self.prefixes.remove(&prefix);
            }
        }
        self.note(prefix);
    }

    /// Removes those of a peer's paths that are meant.
    fn forget_paths(&mut self, peer: IpAddr, is_meant: impl Fn(&Path) -> bool) {
        let Some(state) = self.peers.get_mut(&peer) else { return };
        state.stale_until = None;
        let of_peer = |prefix: &&IpNet| {
            let mut paths = self.prefixes.get(*prefix).into_iter().flatten();
            paths.any(|it| it.peer == peer && is_meant(it))
        };
        let meant: Vec<IpNet> = state.received.iter().filter(of_peer).copied().collect();
        for prefix in meant {
            self.withdraw(peer, prefix);
        }
    }

    /// Notes that the route of a prefix has changed: all peers of its family have to be told.
    fn note(&mut self, prefix: IpNet) {
        self.generation += 1;
        for (peer, state) in &mut self.peers {
            let Some(session) = &mut state.session else { continue };
            let is_ahead = match session.progress {
                Progress::Behind(at) => at.is_none_or(|at| at < prefix),
                Progress::End | Progress::Done => false,
            };
            let is_news = !is_ahead || session.told.contains(&prefix);
            if is_news && peer.is_ipv4() == prefix.addr().is_ipv4() {
                session.changed.insert(prefix);
                self.woken.insert(*peer);
            }
        }
    }
}

/// The bytes of a path's attributes that a peer can make as many as it likes. Paths may share them; they count for each.
fn weight(attributes: &Attributes) -> usize {
    let Attributes { communities, large_communities, clusters, opaque, .. } = attributes;
    let opaque: usize = opaque.iter().map(|it| it.value.len()).sum();
    4 * (attributes.systems().count() + communities.len() + clusters.len())
        + 12 * large_communities.len()
        + opaque
}

/// The first prefix behind one that a peer may be told of.
fn next_of(
    all: &BTreeMap<IpNet, Vec<Path>>,
    own: &BTreeMap<IpNet, OwnRoute>,
    behind: Option<IpNet>,
) -> Option<IpNet> {
    let from = behind.map_or(Bound::Unbounded, Bound::Excluded);
    let learned = all.range((from, Bound::Unbounded)).next().map(|(prefix, _)| *prefix);
    let own = own.range((from, Bound::Unbounded)).next().map(|(prefix, _)| *prefix);
    learned.into_iter().chain(own).min()
}

/// The route of a prefix. One of this node itself is better than all others.
fn route<'a>(
    configuration: &'a Configuration,
    all: &'a BTreeMap<IpNet, Vec<Path>>,
    prefix: IpNet,
) -> Option<Route<'a>> {
    if let Some(own) = configuration.exports.own.get(&prefix) {
        return Some(Route::Own(*own));
    }
    let best = *decision::used(all.get(&prefix)?).first()?;
    Some(Route::Learned(best, configuration.peers.get(&best.peer)?))
}

/// The attributes of a path as a peer's filters take it. `None`: they do not.
fn imported(
    filters: Option<&Filters>,
    prefix: IpNet,
    attributes: &Arc<Attributes>,
    is_internal: bool,
) -> Option<Arc<Attributes>> {
    let Some(filters) = filters else { return Some(Arc::clone(attributes)) };
    let route = filter::Route { prefix, attributes, is_from_peer: true, interface: None };
    match filters.judge(Direction::Import, &route, is_internal) {
        Verdict::Accept(Cow::Owned(changed)) => Some(Arc::new(changed)),
        Verdict::Accept(Cow::Borrowed(_)) | Verdict::Unmatched => Some(Arc::clone(attributes)),
        Verdict::Reject => None,
    }
}

/// The routes that are used of these paths of a prefix, the best one first.
fn used<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Vec<Learned> {
    let of = |path: &Path| Learned { next_hop: path.attributes.next_hop, peer: path.peer };
    decision::used(paths).into_iter().map(of).collect()
}

/// A path's attributes as they count here: what another autonomous system prefers does not (RFC 4271, 5.1.5; RFC 4456, 8).
fn received(mut attributes: Arc<Attributes>, is_internal: bool) -> Arc<Attributes> {
    let Attributes { local_pref, originator, clusters, .. } = &*attributes;
    if !is_internal && (local_pref.is_some() || originator.is_some() || !clusters.is_empty()) {
        let it = Arc::make_mut(&mut attributes);
        (it.local_pref, it.originator) = (None, None);
        it.clusters.clear();
    }
    attributes
}

/// Whether packets to a prefix may go to a next hop at all: both are of one family, and are addresses of hosts beyond this
/// one's link.
fn is_routable(prefix: IpNet, next_hop: Option<IpAddr>) -> bool {
    let is_of_hosts = |address: IpAddr| match address {
        IpAddr::V4(it) => !it.is_multicast() && !it.is_loopback() && !it.is_link_local(),
        IpAddr::V6(it) => !it.is_multicast() && !it.is_loopback() && !it.is_unicast_link_local(),
    };
    let is_default = prefix.prefix_len() == 0;
    next_hop.is_some_and(|next_hop| {
        next_hop.is_ipv4() == prefix.addr().is_ipv4()
            && is_of_hosts(next_hop)
            && !next_hop.is_unspecified()
            && (is_default || is_of_hosts(prefix.addr()) && !prefix.addr().is_unspecified())
    })
}

#[cfg(test)]
mod tests;
