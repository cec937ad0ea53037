//! The paths of all peers, the best ones of each prefix, and the routes announced to each peer.
//!
//! The caller reports the events of sessions, takes a peer's next messages ([`Table::take_messages`]), and sends them.
//! The table stores pending announcements. It stores each changed prefix once, however often the prefix changes. So a
//! slow peer needs no more memory than a fast one.
//!
//! The layers, in order:
//! - `values`: the inputs and outputs of the table.
//! - `taken`: decides which paths of a peer are accepted.
//! - `paths`: the paths to one prefix.
//! - `routes`: the prefixes, in the order of their last change.
//! - `interner`: stores equal attributes once.
//! - `bits`: the set of prefixes announced to a peer.
//! - `session`: the state of a peer and of its session.
//! - `learned`: the routes that peers have announced.
//! - `advertise`: the announcements to a peer, computed once for all peers with equal announcements.
//!
//! Laws (`tests.rs`), for any order of events:
//! - The used paths are those that [`decision::used`] chooses from the present paths.
//! - A peer that has taken all its messages has been sent exactly the routes that [`export::advertised`] returns for each
//!   prefix.
//! - A peer has at most [`Configuration::prefixes`] or [`Configuration::prefixes_of_node`] prefixes here.

mod advertise;
mod bits;
mod interner;
mod learned;
mod paths;
mod routes;
mod session;
mod taken;
mod values;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use self::advertise::{Advertiser, Cache, News, path};
use self::bits::Bits;
use self::interner::Interner;
use self::learned::Meant;
use self::paths::Stored;
use self::routes::Routes;
use self::session::{Session, State};
use self::taken::{imported, is_routable, received, weight};
pub use self::values::{Configuration, Counts, Learned, Message, Opened, TooManyPrefixes};
use crate::decision::{self, Path, preference};
use crate::export::{self, OwnRoute};
use crate::path::{Attributes, Update};
use crate::peer::Peer;

/// The maximum total weight of a peer's paths, in bytes of attributes for each prefix that the peer may announce.
const WEIGHT: usize = 256;
/// The maximum number of changed prefixes that one call of [`Table::take_messages`] reads.
const LOOKS: usize = 10_000;
/// The number of outdated entries in `State::received`, in addition to one for each prefix, above which they are
/// removed.
const SPARE: usize = 64;
/// The longest time for which stale paths are kept after the peer has returned, if it does not send End-of-RIB.
const STALE_AFTER_RETURN: Duration = Duration::from_mins(6);

/// See the module.
#[derive(Debug)]
pub struct Table {
    configuration: Configuration,
    routes: Routes,
    interner: Interner,
    cache: Cache,
    /// The number of each peer.
    numbers: BTreeMap<IpAddr, u32>,
    /// The state of each peer, by the peer's number.
    states: Vec<State>,
    /// The numbers of removed peers, which new peers may get.
    free: Vec<u32>,
    /// The numbers of peers that have pending announcements and that [`Table::take_woken`] has not returned yet.
    woken: Vec<u32>,
    /// The numbers of peers to which all routes were sent, by the family of their sessions: IPv4, IPv6.
    resting: [Vec<u32>; 2],
    /// The number of the newest group of peers with equal announcements.
    next_group: u64,
    generation: u64,
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}

impl Table {
    /// A table without peers.
    pub fn new() -> Self {
        Self {
            configuration: Configuration::none(),
            routes: Routes::new(),
            interner: Interner::new(),
            cache: Cache::new(),
            numbers: BTreeMap::new(),
            states: Vec::new(),
            free: Vec::new(),
            woken: Vec::new(),
            resting: [Vec::new(), Vec::new()],
            next_group: 0,
            generation: 0,
        }
    }

    /// Sets a new configuration. A peer that is removed or changed, or whose filters changed, loses its paths and its
    /// session. The caller closes that session ([`Configuration::asks_same_of`]).
    pub fn configure(&mut self, configuration: &Configuration) {
        let before = mem::replace(&mut self.configuration, configuration.clone());
        self.cache.clear();
        for address in before.peers.keys() {
            if !before.asks_same_of(*address, configuration)
                && let Some(number) = self.numbers.remove(address)
            {
                self.end_session(number);
                self.forget_paths(number, false);
                self.free.push(number);
            }
        }
        for (address, peer) in &configuration.peers {
            if !self.numbers.contains_key(address) {
                self.join(*address, State::new(*address, peer.is_internal()));
            }
        }
        let (then, now) = (&before.exports, &configuration.exports);
        let differs = |key: &IpNet| then.own.get(key) != now.own.get(key);
        let own: BTreeSet<IpNet> =
            then.own.keys().chain(now.own.keys()).copied().filter(differs).collect();
        let is_block = |it: Option<&OwnRoute>| it == Some(&OwnRoute::Block);
        let blocks = own.iter().any(|it| is_block(then.own.get(it)) || is_block(now.own.get(it)));
        for prefix in own {
            let number = self.routes.number(prefix);
            let entry = self.routes.get_mut(number);
            (entry.own, entry.is_allowed) = (now.own.get(&prefix).copied(), None);
            self.note(number);
        }
        // If a block of this node is added or removed, the rules for other prefixes may give another result, as after a
        // change of a pool.
        if blocks || !now.has_rules_of(then) {
            self.routes.forget_rules();
            let peers: Vec<IpAddr> = self.numbers.keys().copied().collect();
            for peer in peers {
                self.refresh(peer);
            }
        }
    }

    fn join(&mut self, address: IpAddr, state: State) {
        let number = if let Some(number) = self.free.pop() {
            self.states[number as usize] = state;
            number
        } else {
            self.states.push(state);
            // The index fits, because there are at most as many numbers as there were peers at one time.
            (self.states.len() - 1) as u32
        };
        self.numbers.insert(address, number);
    }

    /// A session is established: all routes are announced to the peer.
    pub fn opened(&mut self, peer: IpAddr, opened: Opened) {
        let Some(number) = self.numbers.get(&peer).copied() else { return };
        self.end_session(number);
        if !opened.keeps_routes {
            self.forget_paths(number, true);
        }
        let group = self.group(peer, opened.here);
        let reader = self.routes.begin();
        let state = &mut self.states[number as usize];
        let before = mem::replace(&mut state.identifier, opened.identifier);
        let is_another = before != opened.identifier && !before.is_unspecified();
        state.stale_until = state.stale_until.map(|_| opened.now + STALE_AFTER_RETURN);
        state.refused = 0;
        let announced = Bits::default();
        state.session =
            Some(Session { opened, group, announced, reader, has_ended: false, rests: false });
        self.wake(number);
        if is_another {
            // Cached results contain or depend on the peer's identifier: it breaks ties between equal paths, and route
            // reflectors announce it.
            self.cache.clear();
            for route in self.received(number) {
                self.select(route);
                self.note(route);
            }
        }
    }

    /// Returns the group for a peer whose session begins, or `None` if the peer has filters.
    fn group(&mut self, peer: IpAddr, here: IpAddr) -> Option<u64> {
        let Configuration { peers, filters, .. } = &self.configuration;
        let to = peers.get(&peer)?;
        if filters.contains_key(&peer) {
            return None;
        }
        let alike = self.states.iter().find_map(|state| {
            let Session { group: Some(group), opened, .. } = state.session.as_ref()? else {
                return None;
            };
            let other = (peers.get(&state.address)?, opened.here);
            export::are_announced_alike((to, here), other).then_some(*group)
        });
        alike.or_else(|| {
            self.next_group += 1;
            Some(self.next_group)
        })
    }

    /// Applies an UPDATE of a peer. A refused path, for example a loop, replaces the peer's earlier path like a withdrawal.
    ///
    /// # Errors
    /// The peer has announced too many prefixes; those beyond its limit were not accepted.
    pub fn updated(&mut self, peer: IpAddr, update: Update) -> Result<(), TooManyPrefixes> {
        let Some(of) = self.configuration.peers.get(&peer) else { return Ok(()) };
        let Some(number) = self.numbers.get(&peer).copied() else { return Ok(()) };
        if self.states[number as usize].session.is_none() {
            return Ok(());
        }
        let (is_internal, limit) = (of.is_internal(), self.configuration.limit(of));
        let teller = (number, limit);
        let attributes = update.attributes.map(|it| received(it, is_internal));
        let fits = attributes.as_deref().is_some_and(|it| self.accepts(of, it));
        // Attributes that are refused are not stored either.
        let attributes = attributes.map(|it| if fits { self.interner.intern(it) } else { it });
        let filters = self.configuration.filters.get(&peer).cloned();
        let heaviness = attributes.as_deref().map_or(0, weight);
        for prefix in update.withdrawn {
            self.withdraw(number, prefix.trunc());
        }
        for prefix in update.announced.iter().map(IpNet::trunc) {
            let next_hop = attributes.as_ref().map(|it| it.next_hop);
            let fit = attributes.as_ref().filter(|_| fits && is_routable(prefix, next_hop));
            let taken = match (&filters, fit) {
                (Some(filters), Some(it)) => imported(filters, prefix, it, is_internal).map(|it| {
                    let heaviness = weight(&it);
                    (self.interner.intern(it), heaviness)
                }),
                (None, fit) => fit.map(|it| (Arc::clone(it), heaviness)),
                (Some(_), None) => None,
            };
            if let Some((attributes, weight)) = taken {
                self.take(teller, prefix, attributes, weight)?;
            } else {
                self.states[number as usize].refused += 1;
                self.withdraw(number, prefix);
            }
        }
        Ok(())
    }

    /// Stores a path of a peer, in place of its earlier one.
    fn take(
        &mut self,
        (peer, limit): (u32, usize),
        prefix: IpNet,
        attributes: Arc<Attributes>,
        heaviness: usize,
    ) -> Result<(), TooManyPrefixes> {
        let route = self.routes.number(prefix);
        let state = &mut self.states[peer as usize];
        let paths = &mut self.routes.get_mut(route).paths;
        let before = paths.of_mut(peer);
        let lighter = state.weight - before.as_ref().map_or(0, |it| weight(&it.attributes));
        let is_full = before.is_none() && state.count >= limit;
        if is_full || lighter + heaviness > limit.saturating_mul(WEIGHT) {
            self.routes.remove_unused(route);
            return Err(TooManyPrefixes { limit });
        }
        state.weight = lighter + heaviness;
        let is_new = before.is_none();
        if let Some(before) = before {
            state.stale -= usize::from(mem::take(&mut before.is_stale));
            if Arc::ptr_eq(&before.attributes, &attributes) {
                return Ok(());
            }
            before.attributes = attributes;
        } else {
            paths.push(Stored { peer, is_stale: false, attributes });
            state.count += 1;
            state.received.push(route);
            if state.received.len() > 2 * state.count + SPARE {
                self.received(peer);
            }
        }
        self.path_changed(route, peer, is_new);
        Ok(())
    }

    /// Updates the order of the paths after a peer's path to a prefix was added (`is_new`) or changed: the best path is
    /// first again.
    fn path_changed(&mut self, route: u32, peer: u32, is_new: bool) {
        let all = self.routes.get(route).paths.as_slice();
        let Some(at) = all.iter().position(|it| it.peer == peer) else { return };
        let concerns_peers = if at == 0 {
            self.select(route);
            true
        } else {
            // If the new path is worse by a criterion before `MULTI_EXIT_DISC`, it cannot exclude other paths.
            let (new, best) = (&all[at], &all[0]);
            let order = preference(&new.attributes).cmp(&preference(&best.attributes));
            let is_better = match order {
                Ordering::Less => Some(true),
                Ordering::Equal => {
                    path(&self.states, new).is_better_than(&path(&self.states, best))
                }
                Ordering::Greater => Some(false),
            };
            match is_better {
                Some(true) => {
                    self.routes.get_mut(route).paths.put_first(at);
                    true
                }
                // A changed path may have excluded another one by `MULTI_EXIT_DISC` before the change. That other path
                // may now be the best.
                Some(false) if is_new => false,
                Some(false) | None => self.select(route),
            }
        };
        if concerns_peers {
            self.note(route);
        } else {
            self.generation += 1;
        }
    }

    /// Puts the best path to a prefix first. Returns whether the best path has changed.
    fn select(&mut self, route: u32) -> bool {
        let paths = &mut self.routes.get_mut(route).paths;
        if paths.as_slice().len() < 2 {
            return false;
        }
        let all: Vec<Path> = paths.as_slice().iter().map(|it| path(&self.states, it)).collect();
        let best = decision::used(&all).first().map(|it| it.peer);
        let at = all.iter().position(|it| Some(it.peer) == best).unwrap_or(0);
        paths.put_first(at);
        at > 0
    }

    /// Removes outdated and repeated numbers from `State::received`. Returns the remaining numbers, which are those of
    /// the prefixes with a path of this peer.
    fn received(&mut self, peer: u32) -> Vec<u32> {
        let mut all = mem::take(&mut self.states[peer as usize].received);
        all.sort_unstable();
        all.dedup();
        all.retain(|it| self.routes.has_path(*it, peer));
        self.states[peer as usize].received.clone_from(&all);
        all
    }

    /// A peer has sent all of its routes (End-of-RIB): its stale paths are removed.
    pub fn end_of_rib(&mut self, peer: IpAddr) {
        if let Some(number) = self.numbers.get(&peer) {
            self.forget_paths(*number, true);
        }
    }

    /// A session has ended. `retain` is the time for which the peer's paths are kept, if it restarts (RFC 4724, 4.2). Paths
    /// that were already stale are removed now.
    pub fn closed(&mut self, peer: IpAddr, retain: Option<Duration>, now: Duration) {
        let Some(number) = self.numbers.get(&peer).copied() else { return };
        self.end_session(number);
        self.forget_paths(number, retain.is_some());
        let received = self.received(number);
        let state = &mut self.states[number as usize];
        (state.stale_until, state.stale) = (retain.map(|it| now + it), received.len());
        for route in received {
            if let Some(path) = self.routes.get_mut(route).paths.of_mut(number) {
                path.is_stale = true;
            }
        }
    }

    /// Ends a peer's session. From then on, no prefix counts as announced to the peer.
    fn end_session(&mut self, peer: u32) {
        let Some(session) = self.states[peer as usize].session.take() else { return };
        for all in &mut self.resting {
            all.retain(|it| *it != peer);
        }
        for route in session.announced.iter() {
            self.routes.get_mut(route).holders -= 1;
            self.routes.remove_unused(route);
        }
    }

    /// A peer has requested all routes again (RFC 2918).
    pub fn refresh(&mut self, peer: IpAddr) {
        let Some(number) = self.numbers.get(&peer).copied() else { return };
        let begin = self.routes.begin();
        if let Some(session) = &mut self.states[number as usize].session {
            (session.reader, session.has_ended) = (begin, false);
            self.wake(number);
        }
    }

    /// Removes stale paths whose time is over. Returns the next time when paths expire.
    pub fn expire(&mut self, now: Duration) -> Option<Duration> {
        for number in self.numbers.values().copied().collect::<Vec<_>>() {
            let until = self.states[number as usize].stale_until;
            if until.is_some_and(|it| it <= now) {
                self.forget_paths(number, true);
            }
        }
        let states = self.numbers.values().map(|it| &self.states[*it as usize]);
        states.filter_map(|it| it.stale_until).min()
    }

    /// Returns the next messages for a peer, with at most about `prefixes` prefixes. Returns no messages if all routes
    /// were already sent. Also returns none if none of the prefixes that this call read concerns the peer;
    /// [`Table::take_woken`] then returns the peer again.
    pub fn take_messages(&mut self, peer: IpAddr, prefixes: usize) -> Vec<Message> {
        let Self { configuration, routes, states, cache, numbers, .. } = self;
        let Some(to) = configuration.peers.get(&peer) else { return Vec::new() };
        let Some(number) = numbers.get(&peer).copied() else { return Vec::new() };
        let Some(mut session) = states[number as usize].session.take() else {
            return Vec::new();
        };
        let mut advertiser = Advertiser { configuration, states, cache };
        let (mut news, mut looks) = (News::default(), 0);
        while news.count < prefixes
            && looks < LOOKS
            && let Some(route) = routes.read(&mut session.reader)
        {
            looks += 1;
            let entry = routes.get_mut(route);
            let prefix = entry.prefix;
            if prefix.addr().is_ipv4() != peer.is_ipv4() {
                continue;
            }
            match advertiser.advertised(entry, (&session, number, to)) {
                Some(attributes) => {
                    entry.holders += u32::from(session.announced.insert(route));
                    news.announce(attributes, prefix);
                }
                None if session.announced.remove(route) => {
                    entry.holders -= 1;
                    routes.remove_unused(route);
                    news.withdraw(prefix);
                }
                None => {}
            }
        }
        let mut messages = news.into_messages();
        let is_at_end = session.reader >= routes.end();
        if is_at_end && !mem::replace(&mut session.has_ended, true) {
            messages.push(Message::EndOfRib);
        }
        if is_at_end && !mem::replace(&mut session.rests, true) {
            self.resting[usize::from(peer.is_ipv6())].push(number);
        }
        self.states[number as usize].session = Some(session);
        if !is_at_end {
            self.wake(number);
        }
        messages
    }

    /// Returns the peers for which announcements have become pending since the last call.
    pub fn take_woken(&mut self) -> Vec<IpAddr> {
        let woken = mem::take(&mut self.woken);
        let states = woken.into_iter().map(|number| {
            let state = &mut self.states[number as usize];
            state.is_woken = false;
            state.address
        });
        states.collect()
    }

    /// A number that increases with each change of the learned routes.
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Appends the prefixes that some peers have announced, each with the next hops of its used paths
    /// ([`decision::used`]). Only the paths of the peers that `is_meant` accepts are considered. A prefix has one row
    /// for each next hop, at most 16, the best one first. Prefixes of this node itself are left out.
    ///
    /// A call reads some thousand prefixes, and returns the value of `from` for the next call. It returns `None` if no
    /// prefixes are left. A prefix that changes between two calls may be left out or occur twice; [`Self::generation`]
    /// then differs.
    pub fn next_hops(
        &self,
        is_meant: impl Fn(&Peer) -> bool,
        from: usize,
        all: &mut Vec<(IpNet, IpAddr)>,
    ) -> Option<usize> {
        self.meant(is_meant).next_hops(&self.routes, from, all)
    }

    /// Returns, for each prefix, the routes that are used if only the peers of `is_meant` are considered, the best one
    /// first. Prefixes of this node itself are left out. The prefixes are in no order.
    #[cfg(test)]
    pub fn learned(
        &self,
        is_meant: impl Fn(&Peer) -> bool,
    ) -> impl Iterator<Item = (IpNet, Vec<Learned>)> {
        let meant = self.meant(is_meant);
        let entries = self.routes.all().filter(|it| it.own.is_none());
        let used = entries.map(move |it| (it.prefix, meant.used(it)));
        used.filter(|(_, used)| !used.is_empty())
    }

    /// Reads a part of the prefixes that peers have announced, and adds them to `all`, the lowest `most` prefixes of
    /// each family. `from` and the result are the same as for [`Self::next_hops`].
    pub fn first_prefixes(
        &self,
        most: usize,
        from: usize,
        all: &mut [BTreeSet<IpNet>; 2],
    ) -> Option<usize> {
        learned::first_prefixes(&self.routes, (most, from), all)
    }

    /// Returns the used routes to those of these prefixes that peers have announced, the best route of each prefix
    /// first. Prefixes of this node itself are left out.
    pub fn routes_of(
        &self,
        prefixes: impl IntoIterator<Item = IpNet>,
    ) -> impl Iterator<Item = (IpNet, Vec<Learned>)> {
        let meant = self.meant(|_| true);
        prefixes.into_iter().filter_map(move |prefix| {
            let entry = self.routes.get(self.routes.find(prefix)?);
            let used = if entry.own.is_none() { meant.used(entry) } else { Vec::new() };
            (!used.is_empty()).then_some((prefix, used))
        })
    }

    fn meant(&self, is_meant: impl Fn(&Peer) -> bool) -> Meant<'_> {
        let mut peers = vec![false; self.states.len()];
        for (address, peer) in &self.configuration.peers {
            if let Some(number) = self.numbers.get(address) {
                peers[*number as usize] = is_meant(peer);
            }
        }
        Meant { states: &self.states, peers }
    }

    /// Returns how many prefixes were accepted from a peer, how many were refused, and how many are announced to it.
    pub fn counts(&self, peer: IpAddr) -> Counts {
        let number = self.numbers.get(&peer);
        number.map_or_else(Counts::default, |it| self.states[*it as usize].counts())
    }

    /// Whether this node may use a path: the path has not passed this node, and its next hop is another host.
    fn accepts(&self, peer: &Peer, attributes: &Attributes) -> bool {
        let Configuration { identifier, cluster, addresses, .. } = &self.configuration;
        let passed = attributes.systems().filter(|it| *it == peer.own_system).count();
        let reflected_here = attributes.clusters.iter().any(|it| Some(*it) == *cluster);
        passed <= usize::from(peer.own_system_allowed)
            && attributes.originator != Some(*identifier)
            && !reflected_here
            && !addresses.contains(&attributes.next_hop)
    }

    fn withdraw(&mut self, peer: u32, prefix: IpNet) {
        if let Some(route) = self.routes.find(prefix) {
            self.remove_path(route, peer);
        }
    }

    /// Removes a peer's path to a prefix, if there is one.
    fn remove_path(&mut self, route: u32, peer: u32) {
        let paths = &mut self.routes.get_mut(route).paths;
        let was_best = paths.best().is_some_and(|it| it.peer == peer);
        let Some(path) = paths.remove(peer) else { return };
        let state = &mut self.states[peer as usize];
        state.weight -= weight(&path.attributes);
        state.count -= 1;
        state.stale -= usize::from(path.is_stale);
        // The removed path may have excluded another path by `MULTI_EXIT_DISC`. That other path may now be the best.
        let is_another = self.select(route);
        if was_best || is_another {
            self.note(route);
        } else {
            self.generation += 1;
        }
    }

    /// Removes the stale paths of a peer, or all of its paths.
    fn forget_paths(&mut self, peer: u32, stale_alone: bool) {
        let state = &mut self.states[peer as usize];
        state.stale_until = None;
        if state.count == 0 || stale_alone && state.stale == 0 {
            return;
        }
        for route in self.received(peer) {
            let path = self.routes.get(route).paths.of(peer);
            if path.is_some_and(|it| it.is_stale || !stale_alone) {
                self.remove_path(route, peer);
            }
        }
    }

    /// Records that the route of a prefix has changed, so that it is announced again to all peers of its family.
    /// Removes the prefix if it is not needed any more.
    fn note(&mut self, route: u32) {
        self.generation += 1;
        let family = usize::from(self.routes.get(route).prefix.addr().is_ipv6());
        self.routes.note(route);
        self.routes.remove_unused(route);
        if self.routes.is_log_long() {
            let sessions = self.states.iter_mut().filter_map(|it| it.session.as_mut());
            self.routes.renew_log(sessions.map(|it| &mut it.reader));
        }
        for number in mem::take(&mut self.resting[family]) {
            if let Some(session) = &mut self.states[number as usize].session {
                session.rests = false;
            }
            self.wake(number);
        }
    }

    /// Adds a peer with a session to the list of peers with pending announcements.
    fn wake(&mut self, peer: u32) {
        if !mem::replace(&mut self.states[peer as usize].is_woken, true) {
            self.woken.push(peer);
        }
    }
}

#[cfg(test)]
mod tests;
