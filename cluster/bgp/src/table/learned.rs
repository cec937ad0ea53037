//! The routes that peers have announced.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::advertise::path;
use super::routes::{Entry, Routes};
use super::session::State;
use super::values::Learned;
use crate::decision::{self, Path};

/// The maximum number of next hops of one prefix. BIRD's `merge paths on` has the same default limit (BIRD User's
/// Guide, protocol Kernel).
pub(super) const MOST_NEXT_HOPS: usize = 16;

/// The maximum number of prefixes that one call reads. If each prefix has paths of 100 peers, a call takes some 20 ms,
/// and no session is served during this time.
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

    /// Appends the next hops of a part of the prefixes, each next hop of a prefix once, the best one first. Returns
    /// where the next part begins.
    pub(super) fn next_hops(
        &self,
        routes: &Routes,
        from: usize,
        all: &mut Vec<(IpNet, IpAddr)>,
    ) -> Option<usize> {
        for entry in routes.part(from, PART)?.filter(|it| it.own.is_none()) {
            // The paths of these peers are compared again, because a path of another peer may have excluded one of them
            // by `MULTI_EXIT_DISC`.
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

/// Reads a part of the prefixes that peers have announced, and adds them to `all`. Keeps the lowest `most` prefixes of
/// each family. Returns where the next part begins.
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
