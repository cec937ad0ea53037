//! The routes that peers have announced.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::advertise::path;
use super::routes::{Entry, Routes};
use super::session::State;
use super::values::Learned;
use crate::decision::{self, Path};

/// The most next hops of one prefix: as many as BIRD's `merge paths on` takes without a `limit` of its own (BIRD User's
/// Guide, protocol Kernel).
pub(super) const MOST_NEXT_HOPS: usize = 16;

/// The most prefixes that one call reads for the next hops. If each has paths of 100 peers, a call takes some 20 ms, during
/// which sessions wait.
pub(super) const PART: usize = 4 * 1024;

/// The peers whose paths are considered.
#[derive(Debug)]
pub(super) struct Meant<'a> {
    pub(super) states: &'a [State],
    /// Whether the peer with each number is considered.
    pub(super) peers: Vec<bool>,
}

impl Meant<'_> {
    /// The used paths of these peers, the best one first.
    pub(super) fn used(&self, entry: &Entry) -> Vec<Learned> {
        let paths = entry.paths.as_slice().iter().filter(|it| self.peers[it.peer as usize]);
        let paths: Vec<Path> = paths.map(|it| path(self.states, it)).collect();
        let of = |path: &Path| Learned { next_hop: path.attributes.next_hop, peer: path.peer };
        decision::used(&paths).into_iter().map(of).collect()
    }

    /// Appends the next hops of a range of the prefixes: those of the used paths, each once, the best one first. Returns
    /// where the next range begins.
    pub(super) fn next_hops(
        &self,
        routes: &Routes,
        from: usize,
        all: &mut Vec<(IpNet, IpAddr)>,
    ) -> Option<usize> {
        for entry in routes.part(from, PART)?.filter(|it| it.own.is_none()) {
            // A path of another peer may have excluded one of these by `MULTI_EXIT_DISC`, so all of these are compared
            // again.
            let begin = all.len();
            for Learned { next_hop, .. } in self.used(entry) {
                let row = (entry.prefix, next_hop);
                if all.len() - begin < MOST_NEXT_HOPS && !all[begin..].contains(&row) {
                    all.push(row);
                }
            }
        }
        Some(from + PART)
    }
}

/// Adds a range of the announced prefixes to the first ones of each family, in their order. At most `most` of a family are
/// kept. Returns where the next range begins.
pub(super) fn first_prefixes(
    routes: &Routes,
    (most, from): (usize, usize),
    all: &mut [BTreeSet<IpNet>; 2],
) -> Option<usize> {
    let is_learned = |it: &&Entry| it.own.is_none() && it.paths.best().is_some();
    for entry in routes.part(from, PART)?.filter(is_learned) {
        let family = &mut all[usize::from(entry.prefix.addr().is_ipv6())];
        family.insert(entry.prefix);
        if family.len() > most {
            family.pop_last();
        }
    }
    Some(from + PART)
}
