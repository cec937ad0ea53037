//! What peers have told.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::Table;
use super::advertise::path;
use super::values::Learned;
use crate::decision::{self, Path};
use crate::peer::Peer;

/// The most prefixes that are looked at for one part of the next hops.
pub(super) const PART: usize = 16 * 1024;

impl Table {
    /// Appends prefixes that some peers have told, each with the next hop of the best route of theirs: the first of
    /// [`Table::learned`]. A call looks at some thousand prefixes, and returns where the next call goes on. `None`: these
    /// were the last. A prefix that changes between two calls may be left out, or come twice; then
    /// [`Table::generation`] differs.
    pub fn next_hops(
        &self,
        is_meant: impl Fn(&Peer) -> bool,
        from: usize,
        all: &mut Vec<(IpNet, IpAddr)>,
    ) -> Option<usize> {
        let part = self.routes.part(from, PART)?;
        let meant = self.meant(is_meant);
        for entry in part.filter(|it| it.own.is_none()) {
            let Some(best) = entry.paths.best() else { continue };
            let next_hop = if meant[best.peer as usize] {
                best.attributes.next_hop
            } else {
                let paths = entry.paths.as_slice().iter().filter(|it| meant[it.peer as usize]);
                let paths: Vec<Path> = paths.map(|it| path(&self.states, it)).collect();
                let used = decision::used(&paths);
                let Some(best) = used.first() else { continue };
                best.attributes.next_hop
            };
            all.push((entry.prefix, next_hop));
        }
        Some(from + PART)
    }

    /// Adds to the first prefixes of each family that peers have told, in their order: `most` of a family stay. It goes on
    /// as [`Table::next_hops`] does.
    pub fn first_prefixes(
        &self,
        most: usize,
        from: usize,
        all: &mut [BTreeSet<IpNet>; 2],
    ) -> Option<usize> {
        let part = self.routes.part(from, PART)?;
        for entry in part.filter(|it| it.own.is_none() && it.paths.best().is_some()) {
            let family = &mut all[usize::from(entry.prefix.addr().is_ipv6())];
            family.insert(entry.prefix);
            if family.len() > most {
                family.pop_last();
            }
        }
        Some(from + PART)
    }

    /// The routes to prefixes that peers have told, as [`Table::learned`] has them.
    pub fn routes_of(
        &self,
        prefixes: impl IntoIterator<Item = IpNet>,
    ) -> impl Iterator<Item = (IpNet, Vec<Learned>)> {
        prefixes.into_iter().filter_map(|prefix| {
            let entry = self.routes.get(self.routes.find(prefix)?);
            let paths = entry.paths.as_slice().iter().map(|it| path(&self.states, it));
            let used = used(&paths.collect::<Vec<_>>());
            (entry.own.is_none() && !used.is_empty()).then_some((prefix, used))
        })
    }

    /// Whether the peer with each number is meant.
    fn meant(&self, is_meant: impl Fn(&Peer) -> bool) -> Vec<bool> {
        let mut meant = vec![false; self.states.len()];
        for (address, peer) in &self.configuration.peers {
            if let Some(number) = self.numbers.get(address) {
                meant[*number as usize] = is_meant(peer);
            }
        }
        meant
    }

    /// The routes that some peers have told, and that are the best of theirs: for each prefix the best one first, and those
    /// that are as good behind it. Others' paths hide none. A prefix of this node itself is none of them. The prefixes are
    /// in no order.
    pub fn learned(
        &self,
        is_meant: impl Fn(&Peer) -> bool,
    ) -> impl Iterator<Item = (IpNet, Vec<Learned>)> {
        let meant = self.meant(is_meant);
        let entries = self.routes.all().filter(|it| it.own.is_none());
        entries.filter_map(move |entry| {
            let paths = entry.paths.as_slice().iter().filter(|it| meant[it.peer as usize]);
            let paths: Vec<Path> = paths.map(|it| path(&self.states, it)).collect();
            let used = used(&paths);
            (!used.is_empty()).then_some((entry.prefix, used))
        })
    }
}

/// The routes that are used of these paths of a prefix, the best one first.
fn used(paths: &[Path]) -> Vec<Learned> {
    let of = |path: &Path| Learned { next_hop: path.attributes.next_hop, peer: path.peer };
    decision::used(paths).into_iter().map(of).collect()
}
