//! Computes what is announced to each peer for each prefix. Peers with equal announcements share the results.

use std::collections::HashMap;
use std::sync::Arc;

use ahash::RandomState;
use ipnet::IpNet;

use super::interner::Interner;
use super::paths::Stored;
use super::routes::Entry;
use super::session::{Session, State};
use super::taken;
use super::values::{Configuration, Message};
use crate::decision::Path;
use crate::export::{self, Route};
use crate::filter::Filters;
use crate::path::{Attributes, Update};
use crate::peer::Peer;

/// The limits of the cache: the number of results, and the total weight of their attributes. At a limit, all are
/// removed.
const MOST: usize = 16 * 1024;
const MOST_WEIGHT: usize = 8 << 20;

/// The key of a result: the group of peers with equal announcements, the attributes' address in memory, and the number
/// of the peer that announced the path. For a route of this node itself, the address is 0 and the peer is `None`.
type Key = (u64, usize, Option<u32>);

/// A cache of results for groups of peers, until something changes on which a result depends.
///
/// The cache keeps the original attributes alive, so no other attributes can get the same address in memory.
#[derive(Debug)]
pub(super) struct Cache {
    results: HashMap<Key, (Option<Arc<Attributes>>, Advertised), RandomState>,
    /// Equal results are stored once, so that their prefixes can be announced in one message.
    announced: Interner,
    /// The total weight of the results' attributes.
    weight: usize,
}

/// The announcement of a path: its attributes for the peer. `None` if it is not announced.
type Advertised = Option<Arc<Attributes>>;

impl Cache {
    pub(super) fn new() -> Self {
        Self { results: HashMap::default(), announced: Interner::new(), weight: 0 }
    }

    /// Removes all results.
    pub(super) fn clear(&mut self) {
        *self = Self::new();
    }
}

/// The parts of the table that determine the announcements.
pub(super) struct Advertiser<'a> {
    pub(super) configuration: &'a Configuration,
    pub(super) states: &'a [State],
    pub(super) cache: &'a mut Cache,
}

impl Advertiser<'_> {
    /// The announcement of a prefix to a peer.
    pub(super) fn advertised(
        &mut self,
        entry: &mut Entry,
        (session, number, to): (&Session, u32, &Peer),
    ) -> Advertised {
        let Configuration { exports, filters, .. } = self.configuration;
        let best = if entry.own.is_some() { None } else { Some(entry.paths.best()?) };
        if best.is_some_and(|it| it.peer == number) {
            return None;
        }
        let Some(group) = session.group.filter(|_| !exports.marks(entry.prefix)) else {
            let none = Filters::default();
            let filters = filters.get(&to.address).unwrap_or(&none);
            let (prefix, here) = (entry.prefix, session.opened.here);
            return self.compute_advertised(entry, |route| {
                export::advertised(exports, (prefix, route), (to, filters), here)
            });
        };
        let (prefix, own) = (entry.prefix, entry.own);
        if !*entry.is_allowed.get_or_insert_with(|| exports.allows(prefix, own)) {
            return None;
        }
        let at = best.map_or(0, |it| Arc::as_ptr(&it.attributes) as usize);
        let key = (group, at, best.map(|it| it.peer));
        if let Some((_, found)) = self.cache.results.get(&key) {
            return found.clone();
        }
        let here = session.opened.here;
        let found = self
            .compute_advertised(entry, |route| export::advertised_alike(exports, route, to, here));
        if self.cache.results.len() >= MOST || self.cache.weight >= MOST_WEIGHT {
            self.cache.clear();
        }
        let of = entry.paths.best().filter(|_| own.is_none()).map(|it| Arc::clone(&it.attributes));
        let both = of.iter().chain(&found);
        self.cache.weight += both.map(|it| taken::weight(it)).sum::<usize>();
        self.cache.results.insert(key, (of, found.clone()));
        found
    }

    /// Computes the announcement of the prefix's route.
    fn compute_advertised(
        &mut self,
        entry: &Entry,
        advertised: impl Fn(Route<'_>) -> Option<Attributes>,
    ) -> Advertised {
        let announced = if let Some(own) = entry.own {
            advertised(Route::Own(own))
        } else {
            let best = path(self.states, entry.paths.best()?);
            let from = self.configuration.peers.get(&best.peer)?;
            advertised(Route::Learned(&best, from))
        };
        announced.map(|it| self.cache.announced.intern(Arc::new(it)))
    }
}

/// A path with the table's data about its peer.
pub(super) fn path(states: &[State], stored: &Stored) -> Path {
    let state = &states[stored.peer as usize];
    Path {
        peer: state.address,
        identifier: state.identifier,
        is_internal: state.is_internal,
        is_stale: stored.is_stale,
        attributes: Arc::clone(&stored.attributes),
    }
}

/// The pending changes for a peer, grouped by attributes.
#[derive(Debug, Default)]
pub(super) struct News {
    pub(super) withdrawn: Vec<IpNet>,
    announced: Vec<(Arc<Attributes>, Vec<IpNet>)>,
    /// The index in `announced` of each set of attributes, by its address in memory.
    places: HashMap<usize, usize, RandomState>,
    pub(super) count: usize,
}

impl News {
    pub(super) fn withdraw(&mut self, prefix: IpNet) {
        self.count += 1;
        self.withdrawn.push(prefix);
    }

    /// Announces a prefix. Equal attributes have the same address in memory, because they were interned.
    pub(super) fn announce(&mut self, attributes: Arc<Attributes>, prefix: IpNet) {
        self.count += 1;
        if let Some((last, prefixes)) = self.announced.last_mut()
            && Arc::ptr_eq(last, &attributes)
        {
            return prefixes.push(prefix);
        }
        let next = self.announced.len();
        let place = *self.places.entry(Arc::as_ptr(&attributes) as usize).or_insert(next);
        match self.announced.get_mut(place) {
            Some((_, prefixes)) => prefixes.push(prefix),
            None => self.announced.push((attributes, vec![prefix])),
        }
    }

    pub(super) fn into_messages(self) -> Vec<Message> {
        let withdrawn = Some(self.withdrawn).filter(|it| !it.is_empty());
        let withdrawn = withdrawn.map(|withdrawn| Update { withdrawn, ..Update::default() });
        let announced = self.announced.into_iter().map(|(attributes, announced)| {
            let attributes = Some(attributes);
            Update { announced, attributes, ..Update::default() }
        });
        withdrawn.into_iter().chain(announced).map(Message::Update).collect()
    }
}
