//! Leaves: lines whose intervals all lead to paths. A leaf stores sixteen intervals and can imply a seventeenth; a
//! [`Line`](super::Line) holds ten.
//!
//! Nearly all policies allow some ports and make one decision for all other packets. Then the last interval leads to
//! the same path as the first, and so does a packet that does not show its key (such as its port). A leaf relies on
//! this: it stores neither the path of a seventeenth interval nor that of packets without a key. Both get the path of
//! the first.

use super::target::{Interval, NO_KEY, Target};
use crate::common::PathId;

/// The number of intervals that a leaf stores. One more interval is possible if it leads to the same path as the first.
pub(crate) const LEAF_WIDTH: usize = 16;

/// A line whose intervals all lead to paths. A lookup compares the key with all of `lasts` in parallel, and adds the
/// `steps` of the intervals that end before the key. The path is that sum plus the first interval's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(align(64))]
pub(crate) struct Leaf {
    /// The last key of each interval except the last one; unused lanes hold the highest key.
    lasts: [u16; LEAF_WIDTH],
    /// For each interval, the number of the next interval's path minus the number of its own path. The last element
    /// holds the first interval's path instead. Sums wrap.
    steps: [u16; LEAF_WIDTH],
}

impl Leaf {
    /// Makes a leaf of ascending intervals. An interval for packets without a key may come last and is not stored.
    /// Returns `None` if there are too many intervals, or if one leads to something other than one of the first 65,536
    /// paths.
    pub(crate) fn from_intervals(intervals: &[Interval]) -> Option<Self> {
        let keyed = match intervals {
            [keyed @ .., Interval { start: NO_KEY, .. }] => keyed,
            all => all,
        };
        let short = |interval: &Interval| u16::try_from(interval.to.as_path()?.0).ok();
        let (first, last) = (short(keyed.first()?)?, short(keyed.last()?)?);
        if keyed.len() > LEAF_WIDTH && (keyed.len() > LEAF_WIDTH + 1 || first != last) {
            return None;
        }
        let (mut lasts, mut to) = ([u16::MAX; LEAF_WIDTH], [last; LEAF_WIDTH]);
        for (to, interval) in to.iter_mut().zip(keyed) {
            *to = short(interval)?;
        }
        for (last, next) in lasts.iter_mut().zip(&keyed[1..]) {
            *last = (next.start - 1) as u16;
        }
        Some(Self::pack(lasts, to))
    }

    /// `to` is the path of each interval. Unused elements repeat the last interval's path.
    fn pack(lasts: [u16; LEAF_WIDTH], to: [u16; LEAF_WIDTH]) -> Self {
        let mut steps = to;
        for (step, (here, next)) in steps.iter_mut().zip(to.iter().zip(&to[1..])) {
            *step = next.wrapping_sub(*here);
        }
        steps[LEAF_WIDTH - 1] = to[0];
        Self { lasts, steps }
    }

    /// The path of each interval. Unused elements repeat the last interval's path.
    fn unpack(&self) -> [u16; LEAF_WIDTH] {
        let mut to = self.steps;
        let mut here = self.steps[LEAF_WIDTH - 1];
        for to in &mut to {
            let step = std::mem::replace(to, here);
            here = here.wrapping_add(step);
        }
        to
    }

    /// The path of a key.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as Lines::follow")]
    pub(crate) fn lookup(&self, key: u16) -> PathId {
        let lanes = self.lasts.iter().zip(&self.steps);
        let steps = lanes.map(|(last, step)| if *last < key { *step } else { 0 });
        let behind_all = self.lasts[LEAF_WIDTH - 1] < key;
        let steps = steps.fold(0, u16::wrapping_add);
        let first = self.steps[LEAF_WIDTH - 1];
        PathId(u32::from(if behind_all { first } else { first.wrapping_add(steps) }))
    }

    /// The same intervals with other paths. `None` if the number of a path is too large.
    pub(crate) fn map_paths(&self, paths: impl Fn(PathId) -> PathId) -> Option<Self> {
        let mut to = self.unpack();
        for to in &mut to {
            *to = u16::try_from(paths(PathId(u32::from(*to))).0).ok()?;
        }
        Some(Self::pack(self.lasts, to))
    }

    /// The starts of all intervals except the first.
    pub(crate) fn starts(&self) -> impl Iterator<Item = u32> {
        let lasts = self.lasts.into_iter().take_while(|last| *last < u16::MAX);
        lasts.map(|last| u32::from(last) + 1)
    }

    /// The intervals in ascending order, including the one for packets without a key.
    pub(crate) fn intervals(&self) -> Vec<Interval> {
        let starts = std::iter::once(0).chain(self.starts());
        let to = self.unpack();
        let bare = (NO_KEY, to[0]);
        let to = to.into_iter().chain([to[0]]);
        let interval = |(start, to)| Interval { start, to: Target::path(PathId(u32::from(to))) };
        starts.zip(to).chain([bare]).map(interval).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_leaf_leads_each_key_where_its_interval_does(
            starts in prop::collection::btree_set(
                prop_oneof![1u32..40, 65_500u32..65_536, 1u32..65_536], 0..18,
            ),
            to in prop::collection::vec(prop_oneof![99 => 0u32..65_535, 1 => 65_535u32..65_537], 18),
            as_first: bool,
            bare: bool,
        ) {
            let starts = std::iter::once(0).chain(starts);
            let interval = |(start, to): (u32, &u32)| Interval { start, to: Target::path(PathId(*to)) };
            let mut all: Vec<Interval> = starts.zip(&to).map(interval).collect();
            let (count, first) = (all.len(), all[0]);
            if as_first {
                all[count - 1].to = first.to;
            }
            let too_far = all.iter().any(|it| it.to.as_path().unwrap().0 > 65_535);
            let fits = count <= LEAF_WIDTH || count == LEAF_WIDTH + 1 && first.to == all[count - 1].to;
            let keyed = all.clone();
            if bare {
                all.push(Interval { start: NO_KEY, ..first });
            }
            let leaf = Leaf::from_intervals(&all);
            prop_assert_eq!(leaf.is_some(), fits && !too_far);
            let Some(leaf) = leaf else { return Ok(()) };
            let starts = || keyed.iter().map(|it| it.start);
            for key in starts().flat_map(|it| [it.saturating_sub(1), it, (it + 1).min(65_535), 65_535]) {
                let at = starts().filter(|start| *start <= key).count() - 1;
                prop_assert_eq!(Some(leaf.lookup(key as u16)), keyed[at].to.as_path());
            }
            prop_assert!(leaf.starts().eq(starts().skip(1)));
            prop_assert_eq!(Leaf::from_intervals(&leaf.intervals()), Some(leaf), "it is what its intervals say");
            let one_more = |path: PathId| PathId(path.0 + 1);
            let moved = leaf.map_paths(one_more);
            let reaches = keyed.iter().any(|it| it.to.as_path() == Some(PathId(65_535)));
            prop_assert_eq!(moved.is_none(), reaches);
            if let Some(moved) = moved {
                prop_assert_eq!(moved.lookup(5), one_more(leaf.lookup(5)));
            }
        }
    }
}
