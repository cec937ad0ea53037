//! The paths of all peers, the best ones of each prefix, and what each peer has been told.
//!
//! The caller brings what happens to sessions, asks what a peer should be told next ([`Table::take_messages`]), and sends
//! it. A peer's news wait here, each prefix once however often it changes: a slow peer costs no more memory than a fast one.
//!
//! The layers, in order:
//! - `values`: what the table is told, and what it says.
//! - `taken`: what is taken of what a peer tells.
//! - `paths`: the paths to one prefix.
//! - `routes`: the prefixes, in the order of their last change.
//! - `interner`: equal attributes are one.
//! - `bits`: which prefixes a peer holds.
//! - `session`: what is known of a peer and its session.
//! - `learned`: what peers have told.
//! - `advertise`: what a peer is told, found once for all that are told alike.
//!
//! Laws (`tests.rs`), for any order of events:
//! - The paths used are those that [`decision::used`] chooses of the paths that are there.
//! - A peer that has taken all its messages has been told exactly what [`export::advertised`] says of each prefix.
//! - A peer has at most as many prefixes here as [`Configuration::prefixes`] or [`Configuration::prefixes_of_node`] says.

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

/// The most bytes of attributes that a peer's paths have on average, if it tells as many prefixes as it may.
const WEIGHT: usize = 256;
/// The most prefixes that are looked at for one portion of a peer's messages.
const LOOKS: usize = 10_000;
/// How many numbers a peer's list may have that are out of date, besides as many as it has prefixes.
const SPARE: usize = 64;
/// How long stale paths are kept at most when the peer is back and does not say that it has told everything.
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
    /// The peers' states, by their numbers.
    states: Vec<State>,
    /// Numbers of states that belong to no peer any more.
    free: Vec<u32>,
    /// The peers that have something to be told and are to be named.
    woken: Vec<u32>,
    /// The peers that have been told everything, by family: IPv4, IPv6.
    resting: [Vec<u32>; 2],
    /// The number of the next group of peers that are told alike.
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

    /// Takes a new desired state. A peer that is gone or differs, or whose filters do, loses its paths and its session: the
    /// caller closes it ([`Configuration::asks_same_of`]).
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
        // Blocks decide what else is told, as pools do.
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
            // There are as many numbers as there were peers at once.
            (self.states.len() - 1) as u32
        };
        self.numbers.insert(address, number);
    }

    /// A session is established: the peer is told everything.
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
        let told = Bits::default();
        state.session =
            Some(Session { opened, group, told, reader, has_ended: false, rests: false });
        self.wake(number);
        if is_another {
            // The identifier tells equal paths apart, and is in what reflectors tell.
            self.cache.clear();
            for route in self.received(number) {
                self.select(route);
                self.note(route);
            }
        }
    }

    /// The group of a peer whose session begins.
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
            export::are_told_alike((to, here), other).then_some(*group)
        });
        alike.or_else(|| {
            self.next_group += 1;
            Some(self.next_group)
        })
    }

    /// A peer has told routes. A path that leads back to this node is refused; it takes the place of the peer's path
    /// before it, as a withdrawal does.
    ///
    /// # Errors
    /// The peer has told too many prefixes; those beyond its limit were not taken.
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
        // What is not taken is not kept, either.
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

    /// Takes a path of a peer, in the place of the one before.
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

    /// A peer's path to a prefix has come (`is_new`), or differs. The best path is first again.
    fn path_changed(&mut self, route: u32, peer: u32, is_new: bool) {
        let all = self.routes.get(route).paths.as_slice();
        let Some(at) = all.iter().position(|it| it.peer == peer) else { return };
        let is_told = if at == 0 {
            self.select(route);
            true
        } else {
            // A path that is worse before MULTI_EXIT_DISC counts changes nothing for others.
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
                // The path before may have beaten another one by MULTI_EXIT_DISC, which is the best now.
                Some(false) if is_new => false,
                Some(false) | None => self.select(route),
            }
        };
        if is_told {
            self.note(route);
        } else {
            self.generation += 1;
        }
    }

    /// Puts the best path to a prefix first. Returns whether it is another one than before.
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

    /// The numbers of the prefixes that have a path of a peer, each once.
    fn received(&mut self, peer: u32) -> Vec<u32> {
        let mut all = mem::take(&mut self.states[peer as usize].received);
        all.sort_unstable();
        all.dedup();
        all.retain(|it| self.routes.has_path(*it, peer));
        self.states[peer as usize].received.clone_from(&all);
        all
    }

    /// A peer has told everything: what is stale of it is gone.
    pub fn end_of_rib(&mut self, peer: IpAddr) {
        if let Some(number) = self.numbers.get(&peer) {
            self.forget_paths(*number, true);
        }
    }

    /// A session has ended. `retain`: how long the peer's paths are kept, because it restarts (RFC 4724, 4.2). Paths that
    /// were stale before end now.
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

    /// A peer's session is over: it holds nothing any more.
    fn end_session(&mut self, peer: u32) {
        let Some(session) = self.states[peer as usize].session.take() else { return };
        for all in &mut self.resting {
            all.retain(|it| *it != peer);
        }
        for route in session.told.iter() {
            self.routes.get_mut(route).holders -= 1;
            self.routes.remove_unused(route);
        }
    }

    /// A peer wants to be told everything again (RFC 2918).
    pub fn refresh(&mut self, peer: IpAddr) {
        let Some(number) = self.numbers.get(&peer).copied() else { return };
        let begin = self.routes.begin();
        if let Some(session) = &mut self.states[number as usize].session {
            (session.reader, session.has_ended) = (begin, false);
            self.wake(number);
        }
    }

    /// Removes the stale paths whose time is over, and returns the next time when some end.
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

    /// The next messages for a peer, with some of `prefixes` prefixes at most. None: it has been told everything, or what
    /// was looked at now does not concern it; then it is woken again.
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
                    entry.holders += u32::from(session.told.insert(route));
                    news.announce(attributes, prefix);
                }
                None if session.told.remove(route) => {
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

    /// The peers that have something to be told, and that were not named since it was taken last.
    pub fn take_woken(&mut self) -> Vec<IpAddr> {
        let woken = mem::take(&mut self.woken);
        let states = woken.into_iter().map(|number| {
            let state = &mut self.states[number as usize];
            state.is_woken = false;
            state.address
        });
        states.collect()
    }

    /// A number that grows with each change of what was learned.
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Appends prefixes that some peers have told, each with the next hops of the routes of theirs that are as good as the
    /// best one ([`decision::used`]), in rows one after the other: the best one first, each next hop once, 16 at most.
    /// Others' paths hide none. A prefix of this node itself is none of them.
    ///
    /// A call looks at some thousand prefixes, and returns where the next call goes on. `None`: these were the last. A prefix
    /// that changes between two calls may be left out, or come twice; then [`Self::generation`] differs.
    pub fn next_hops(
        &self,
        is_meant: impl Fn(&Peer) -> bool,
        from: usize,
        all: &mut Vec<(IpNet, IpAddr)>,
    ) -> Option<usize> {
        self.meant(is_meant).next_hops(&self.routes, from, all)
    }

    /// The routes that some peers have told, and that are the best of theirs: for each prefix the best one first, and those
    /// that are as good behind it. Others' paths hide none. A prefix of this node itself is none of them. The prefixes are
    /// in no order.
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

    /// Adds to the first prefixes of each family that peers have told, in their order: `most` of a family stay. It goes on
    /// as [`Self::next_hops`] does.
    pub fn first_prefixes(
        &self,
        most: usize,
        from: usize,
        all: &mut [BTreeSet<IpNet>; 2],
    ) -> Option<usize> {
        learned::first_prefixes(&self.routes, (most, from), all)
    }

    /// The routes to prefixes that peers have told: for each the best one first, and those that are as good behind it. A
    /// prefix of this node itself is none of them.
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

    /// The numbers of a peer's prefixes.
    pub fn counts(&self, peer: IpAddr) -> Counts {
        let number = self.numbers.get(&peer);
        number.map_or_else(Counts::default, |it| self.states[*it as usize].counts())
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
        // Without it another path may be the best, because it beat that one by MULTI_EXIT_DISC.
        let is_another = self.select(route);
        if was_best || is_another {
            self.note(route);
        } else {
            self.generation += 1;
        }
    }

    /// Removes those of a peer's paths that are stale, or all.
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

    /// Notes that the route of a prefix has changed: all peers of its family have to be told. A prefix that nothing needs
    /// goes.
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

    /// Has a peer with a session named to those who tell.
    fn wake(&mut self, peer: u32) {
        if !mem::replace(&mut self.states[peer as usize].is_woken, true) {
            self.woken.push(peer);
        }
    }
}

#[cfg(test)]
mod tests;
