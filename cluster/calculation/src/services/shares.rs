//! The share of the table that each namespace may use. Anybody who may write Services in a namespace makes every node's
//! agent store them, at the expense of all other namespaces.
//!
//! The oldest Services of a namespace are translated. The first Service that would exceed the number of Services or of
//! backends, and all younger ones, are left out. So the result depends only on the current objects, and a new Service
//! never displaces an older one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use manx_objects::object::ObjectKey;

use super::bounds::{MOST_OF_NAMESPACE, MOST_SERVICES};
use super::rank::Rank;

/// The Services of each namespace that are translated.
#[derive(Debug, Default)]
pub(super) struct Shares {
    namespaces: HashMap<Box<str>, Share>,
    /// The namespaces with changes since the last decision.
    changed: BTreeSet<Box<str>>,
}

#[derive(Debug, Default)]
struct Share {
    /// The Services in order, each with the number of backends that it requests.
    services: BTreeMap<Arc<Rank>, usize>,
    /// The sum of these numbers.
    backends: usize,
    /// The first Service that is left out.
    first_out: Option<Arc<Rank>>,
}

impl Shares {
    /// Records that a Service requests this number of backends.
    pub(super) fn add(&mut self, rank: &Arc<Rank>, backends: usize) {
        let namespace = &*rank.object.namespace;
        if !self.namespaces.contains_key(namespace) {
            self.namespaces.insert(namespace.into(), Share::default());
        }
        let Some(share) = self.namespaces.get_mut(namespace) else { return };
        let before = share.services.insert(Arc::clone(rank), backends);
        share.backends = share.backends - before.unwrap_or_default() + backends;
        self.changed.insert(namespace.into());
    }

    /// Records that a Service is gone.
    pub(super) fn remove(&mut self, rank: &Rank) {
        let namespace = &*rank.object.namespace;
        let Some(share) = self.namespaces.get_mut(namespace) else { return };
        share.backends -= share.services.remove(rank).unwrap_or_default();
        self.changed.insert(namespace.into());
    }

    /// Returns whether a Service is left out.
    pub(super) fn leaves_out(&self, rank: &Rank) -> bool {
        let share = self.namespaces.get(&*rank.object.namespace);
        share.and_then(|it| it.first_out.as_deref()).is_some_and(|first| first <= rank)
    }

    /// Decides for the namespaces that have changed. Returns the Services that are newly left out, and those that are
    /// not left out any more.
    pub(super) fn decide(&mut self) -> Vec<Arc<ObjectKey>> {
        let mut differing = Vec::new();
        for namespace in std::mem::take(&mut self.changed) {
            let Some(share) = self.namespaces.get_mut(&namespace) else { continue };
            share.decide(&mut differing);
            if share.services.is_empty() {
                self.namespaces.remove(&namespace);
            }
        }
        differing
    }
}

impl Share {
    fn decide(&mut self, differing: &mut Vec<Arc<ObjectKey>>) {
        let now = self.find_first_out();
        if now == self.first_out {
            return;
        }
        // The Services between the earlier and the new boundary have changed. If no Service is left out, the boundary
        // is after the last Service.
        let both = [self.first_out.take(), now.clone()];
        let from = both.iter().flatten().min().cloned();
        let to =
            if both.iter().all(Option::is_some) { both.into_iter().flatten().max() } else { None };
        if let Some(from) = from {
            let after = self.services.range(from..).map(|(rank, _)| rank);
            let between = after.take_while(|rank| to.as_ref().is_none_or(|to| *rank < to));
            differing.extend(between.map(|rank| Arc::clone(&rank.object)));
        }
        self.first_out = now;
    }

    fn find_first_out(&self) -> Option<Arc<Rank>> {
        if self.services.len() <= MOST_SERVICES && self.backends <= MOST_OF_NAMESPACE {
            return None;
        }
        let mut backends = 0;
        let mut services = self.services.iter().enumerate();
        let first = services.find(|(at, (_, asked))| {
            backends += **asked;
            *at >= MOST_SERVICES || backends > MOST_OF_NAMESPACE
        });
        first.map(|(_, (rank, _))| Arc::clone(rank))
    }
}

#[cfg(test)]
mod tests {
    use manx_objects::object::Kind;
    use proptest::prelude::*;

    use super::*;

    fn rank(at: u16) -> Arc<Rank> {
        let key = ObjectKey::new(Kind::Service, "a", &format!("s{at:05}"));
        Rank::new(&Arc::new(key), None)
    }

    proptest! {
        /// Law: after any changes, the oldest Services that fit are translated, and each Service whose state changes is
        /// returned once.
        #[test]
        fn the_oldest_services_that_fit_are_in(
            steps in prop::collection::vec((0u16..12, prop::option::of(0usize..7)), 1..60),
        ) {
            let unit = MOST_OF_NAMESPACE / 12;
            let mut shares = Shares::default();
            let mut model: BTreeMap<u16, usize> = BTreeMap::new();
            let mut out: BTreeSet<u16> = BTreeSet::new();
            for (at, asked) in steps {
                if let Some(asked) = asked {
                    shares.add(&rank(at), asked * unit);
                    model.insert(at, asked * unit);
                } else {
                    shares.remove(&rank(at));
                    model.remove(&at);
                }
                let told: BTreeSet<Arc<ObjectKey>> = shares.decide().into_iter().collect();
                let mut sum = 0;
                let fits = |asked: &usize| { sum += asked; sum <= MOST_OF_NAMESPACE };
                let count = model.values().take_while({ let mut fits = fits; move |it| fits(it) }).count();
                let now: BTreeSet<u16> = model.keys().skip(count).copied().collect();
                for service in model.keys() {
                    prop_assert_eq!(shares.leaves_out(&rank(*service)), now.contains(service));
                    let differs = out.contains(service) != now.contains(service);
                    // `decide` need not return a Service that has itself changed, because that Service is compiled
                    // anyway.
                    if *service != at {
                        prop_assert_eq!(told.contains(&rank(*service).object), differs, "{}", service);
                    }
                }
                out = now;
            }
        }
    }

    #[test]
    fn one_service_too_many_is_left_out_until_an_older_one_goes() {
        let mut shares = Shares::default();
        (0..=MOST_SERVICES as u16).for_each(|at| shares.add(&rank(at), 1));
        let last = rank(MOST_SERVICES as u16);
        assert_eq!(shares.decide(), [Arc::clone(&last.object)]);
        assert!(shares.leaves_out(&last) && !shares.leaves_out(&rank(0)));
        shares.remove(&rank(7));
        assert_eq!(shares.decide(), [Arc::clone(&last.object)]);
        assert!(!shares.leaves_out(&last));
        (0..=MOST_SERVICES as u16).for_each(|at| shares.remove(&rank(at)));
        assert_eq!(shares.decide(), []);
        assert!(shares.namespaces.is_empty());
    }
}
