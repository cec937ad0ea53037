//! The paths to one prefix, the best one first. A single path needs no separate allocation.

use std::mem;
use std::slice;
use std::sync::Arc;

use crate::path::Attributes;

/// A path in the table.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    /// The number of the peer that announced the path.
    pub(super) peer: u32,
    /// Whether the peer's session has ended and the path is kept until the peer returns (RFC 4724).
    pub(super) is_stale: bool,
    pub(super) attributes: Arc<Attributes>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) enum Paths {
    #[default]
    None,
    One(Stored),
    /// Two or more.
    #[expect(
        clippy::box_collection,
        reason = "a prefix with one path, as most are, needs no place for a list"
    )]
    Many(Box<Vec<Stored>>),
}

impl Paths {
    pub(super) fn as_slice(&self) -> &[Stored] {
        match self {
            Self::None => &[],
            Self::One(it) => slice::from_ref(it),
            Self::Many(all) => all,
        }
    }

    fn as_mut_slice(&mut self) -> &mut [Stored] {
        match self {
            Self::None => &mut [],
            Self::One(it) => slice::from_mut(it),
            Self::Many(all) => all,
        }
    }

    pub(super) fn best(&self) -> Option<&Stored> {
        self.as_slice().first()
    }

    /// The path of a peer.
    pub(super) fn of(&self, peer: u32) -> Option<&Stored> {
        self.as_slice().iter().find(|it| it.peer == peer)
    }

    pub(super) fn of_mut(&mut self, peer: u32) -> Option<&mut Stored> {
        self.as_mut_slice().iter_mut().find(|it| it.peer == peer)
    }

    /// Adds the path of a peer that has no path here yet. It becomes the last one.
    pub(super) fn push(&mut self, path: Stored) {
        *self = match mem::take(self) {
            Self::None => Self::One(path),
            Self::One(first) => Self::Many(Box::new(vec![first, path])),
            Self::Many(mut all) => {
                all.push(path);
                Self::Many(all)
            }
        };
    }

    /// Removes the path of a peer. The last path may take its place; the others keep their order.
    pub(super) fn remove(&mut self, peer: u32) -> Option<Stored> {
        let at = self.as_slice().iter().position(|it| it.peer == peer)?;
        match mem::take(self) {
            Self::None => None,
            Self::One(it) => Some(it),
            Self::Many(mut all) => {
                let removed = all.swap_remove(at);
                *self = match all.pop() {
                    Some(last) if all.is_empty() => Self::One(last),
                    Some(last) => {
                        all.push(last);
                        Self::Many(all)
                    }
                    None => Self::None,
                };
                Some(removed)
            }
        }
    }

    /// Moves the path at an index to the first place.
    pub(super) fn put_first(&mut self, at: usize) {
        let all = self.as_mut_slice();
        if at < all.len() {
            all.swap(0, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn paths_come_and_go_by_their_peers() {
        let of = |peer| {
            let attributes = Arc::new(Attributes::of_own(IpAddr::from([10, 0, 0, 1])));
            Stored { peer, is_stale: false, attributes }
        };
        let peers = |it: &Paths| it.as_slice().iter().map(|it| it.peer).collect::<Vec<_>>();
        let mut paths = Paths::None;
        for (peer, expected) in [(1, &[1][..]), (2, &[1, 2]), (3, &[1, 2, 3])] {
            paths.push(of(peer));
            assert_eq!(peers(&paths), expected);
        }
        paths.put_first(2);
        assert_eq!((peers(&paths), paths.best().unwrap().peer), (vec![3, 2, 1], 3));
        assert!(paths.remove(7).is_none());
        assert_eq!(paths.remove(3).unwrap().peer, 3);
        assert_eq!(peers(&paths), [1, 2]);
        assert_eq!(paths.remove(1).unwrap().peer, 1);
        assert!(matches!(paths, Paths::One(_)) && paths.of(2).is_some());
        assert!(paths.remove(2).is_some() && matches!(paths, Paths::None));
        assert_eq!(size_of::<Paths>(), 16);
    }
}
