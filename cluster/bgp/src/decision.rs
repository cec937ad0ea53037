//! Chooses the best path to a prefix (RFC 4271, 9.1.2.2; RFC 4456, 9).

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use crate::path::Attributes;

/// The `LOCAL_PREF` of a path that has none.
pub const LOCAL_PREFERENCE: u32 = 100;

/// A path that a peer has announced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// The peer.
    pub peer: IpAddr,
    /// The peer's identifier.
    pub identifier: Ipv4Addr,
    /// Whether the peer is in this autonomous system.
    pub is_internal: bool,
    /// Whether the peer's session has ended and the path is kept until the peer returns (RFC 4724).
    pub is_stale: bool,
    /// The path's attributes.
    pub attributes: Arc<Attributes>,
}

/// The criteria before `MULTI_EXIT_DISC`. The path with the lowest value is better than all others, and later criteria
/// are not compared.
pub(crate) fn preference(it: &Attributes) -> impl Ord + use<> {
    (Reverse(it.local_pref.unwrap_or(LOCAL_PREFERENCE)), it.path_length(), it.origin)
}

impl Path {
    fn preference(&self) -> impl Ord + use<> {
        preference(&self.attributes)
    }

    /// The criteria that break ties. Each peer has one path to a prefix, so no two paths are equal.
    fn tie_breaker(&self) -> impl Ord + use<> {
        let it = &self.attributes;
        (it.originator.unwrap_or(self.identifier), it.clusters.len(), self.peer)
    }

    fn med(&self) -> u32 {
        self.attributes.med.unwrap_or(0)
    }

    /// Whether a new path is better than the best one so far, if both are equal in the criteria before `MULTI_EXIT_DISC`.
    /// Returns `None` if all paths must be compared again, because `MULTI_EXIT_DISC` may exclude one of them.
    pub(crate) fn is_better_than(&self, best: &Self) -> Option<bool> {
        let of = |it: &Self| (it.is_internal, it.tie_breaker());
        // A path with `MULTI_EXIT_DISC` 0 is never excluded.
        ((self.med(), best.med()) == (0, 0)).then(|| of(self) < of(best))
    }
}

/// The paths that are used, the best one first. The others are equal to it in all criteria except the tie breakers: they
/// are left after the steps a to d of RFC 4271, 9.1.2.2. (No interior costs are known for step e.) BIRD merges the same
/// paths to one route with several next hops (User's Guide, protocol Kernel, `merge paths`), as Calico's nodes do.
///
/// `MULTI_EXIT_DISC` is compared only between paths from one neighbouring autonomous system. A path with a greater value
/// than another path from its neighbour is excluded. So the result does not depend on the order of the paths.
pub fn used<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Vec<&'a Path> {
    let paths: Vec<&Path> = paths.into_iter().collect();
    let Some(preference) = paths.iter().map(|it| it.preference()).min() else { return Vec::new() };
    let preferred = paths.into_iter().filter(|it| it.preference() == preference);
    let mut left: Vec<&Path> = preferred.collect();
    if left.iter().any(|it| it.med() != left[0].med()) {
        let mut least = BTreeMap::new();
        for path in &left {
            let med = least.entry(path.attributes.neighbour_system()).or_insert(path.med());
            *med = path.med().min(*med);
        }
        left.retain(|it| least.get(&it.attributes.neighbour_system()) == Some(&it.med()));
    }
    if left.iter().any(|it| !it.is_internal) {
        left.retain(|it| !it.is_internal);
    }
    left.sort_by(|one, other| by_tie_breaker(one, other));
    left
}

fn by_tie_breaker(one: &Path, other: &Path) -> Ordering {
    one.tie_breaker().cmp(&other.tie_breaker())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::{Origin, Segment};

    /// A path of the peer `10.0.0.N` with these changes.
    fn path(n: u8, change: impl FnOnce(&mut Path, &mut Attributes)) -> Path {
        let address = Ipv4Addr::new(10, 0, 0, n);
        let mut attributes = Attributes::of_own(address.into());
        attributes.as_path = vec![Segment::Sequence(vec![65001, 65002])];
        let mut path = Path {
            peer: address.into(),
            identifier: address,
            is_internal: false,
            is_stale: false,
            attributes: Arc::new(attributes.clone()),
        };
        change(&mut path, &mut attributes);
        path.attributes = Arc::new(attributes);
        path
    }

    /// The last byte of the address of each used path's peer.
    fn used_peers(paths: &[Path]) -> Vec<u8> {
        let last = |it: &&Path| match it.peer {
            IpAddr::V4(address) => address.octets()[3],
            IpAddr::V6(_) => 0,
        };
        used(paths).iter().map(last).collect()
    }

    #[test]
    fn each_step_decides_before_the_next() {
        // In each pair the first path is better by one criterion, and worse by the next one.
        let pairs: [(&str, Path, Path); 5] = [
            (
                "LOCAL_PREF before the path's length",
                path(2, |_, it| {
                    it.local_pref = Some(200);
                    it.as_path = vec![Segment::Sequence(vec![65001, 65002, 65003])];
                }),
                path(1, |_, it| it.local_pref = None),
            ),
            (
                "the path's length before the origin; a set counts as one",
                path(2, |_, it| {
                    it.as_path = vec![Segment::Set(vec![65001, 65002, 65003])];
                    it.origin = Origin::Incomplete;
                }),
                path(1, |_, _| {}),
            ),
            (
                "the origin before MULTI_EXIT_DISC",
                path(2, |_, it| it.med = Some(9)),
                path(1, |_, it| it.origin = Origin::Egp),
            ),
            (
                "MULTI_EXIT_DISC before an external peer",
                path(2, |it, _| it.is_internal = true),
                path(1, |_, it| it.med = Some(1)),
            ),
            (
                "an external peer before the identifier",
                path(2, |_, _| {}),
                path(1, |it, _| it.is_internal = true),
            ),
        ];
        for (what, better, worse) in pairs {
            assert_eq!(used_peers(&[worse.clone(), better.clone()]), [2], "{what}");
            assert_eq!(used_peers(&[better, worse]), [2], "{what}");
        }
    }

    #[test]
    fn equal_paths_are_used_together_in_one_order() {
        let reflected = |n, originator, clusters: usize| {
            path(n, |it, attributes| {
                it.is_internal = true;
                attributes.originator = Some(Ipv4Addr::new(10, 0, 0, originator));
                attributes.clusters = vec![Ipv4Addr::LOCALHOST; clusters];
            })
        };
        let paths =
            [reflected(1, 9, 2), reflected(2, 9, 1), reflected(3, 8, 3), reflected(4, 9, 1)];
        assert_eq!(used_peers(&paths), [3, 2, 4, 1]);
        assert!(used(&[]).is_empty());
    }

    #[test]
    fn the_med_of_another_neighbour_says_nothing() {
        let other = |it: &mut Attributes| it.as_path = vec![Segment::Sequence(vec![65009, 65002])];
        let paths = [
            path(1, |_, it| it.med = Some(5)),
            path(2, |_, it| it.med = Some(4)),
            path(3, |_, it| {
                other(it);
                it.med = Some(100);
            }),
        ];
        assert_eq!(used_peers(&paths), [2, 3]);
    }
}
