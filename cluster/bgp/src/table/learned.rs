//! The routes that peers have announced.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::advertise::path;
use super::routes::{Entry, Routes};
use super::session::State;
use super::values::Learned;
use crate::decision::{self, Path};

/// The most prefixes that one call reads for the next hops.
pub(super) const PART: usize = 16 * 1024;

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

    /// Appends the next hops of a range of the prefixes. Returns where the next range begins.
    pub(super) fn next_hops(
        &self,
        routes: &Routes,
        from: usize,
        all: &mut Vec<(IpNet, IpAddr)>,
    ) -> Option<usize> {
        for entry in routes.part(from, PART)?.filter(|it| it.own.is_none()) {
            let Some(best) = entry.paths.best() else { continue };
            // A path of another peer may have excluded one of these by `MULTI_EXIT_DISC`.
            let paths = entry.paths.as_slice();
            let next_hop = if paths.iter().all(|it| self.peers[it.peer as usize]) {
                Some(best.attributes.next_hop)
            } else {
                self.used(entry).first().map(|it| it.next_hop)
            };
            all.extend(next_hop.map(|it| (entry.prefix, it)));
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
    let is_told = |it: &&Entry| it.own.is_none() && it.paths.best().is_some();
    for entry in routes.part(from, PART)?.filter(is_told) {
        let family = &mut all[usize::from(entry.prefix.addr().is_ipv6())];
        family.insert(entry.prefix);
        if family.len() > most {
            family.pop_last();
        }
    }
    Some(from + PART)
}
