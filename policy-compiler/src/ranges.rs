//! Sets of 16-bit keys (ports, ICMP types with codes, protocol numbers) as ranges.

/// Disjoint ranges, ascending, both ends included, none next to another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Ranges(Vec<(u16, u16)>);

impl Ranges {
    /// Every key.
    pub(crate) fn all() -> Self {
        Self(vec![(0, u16::MAX)])
    }

    /// The union of ranges in any order.
    pub(crate) fn of(ranges: impl IntoIterator<Item = (u16, u16)>) -> Self {
        let mut ranges: Vec<_> = ranges.into_iter().filter(|(first, last)| first <= last).collect();
        ranges.sort_unstable();
        let mut merged: Vec<(u16, u16)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some((_, end)) if u32::from(first) <= u32::from(*end) + 1 => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    /// What is not in the set.
    pub(crate) fn complement(&self) -> Self {
        let mut gaps = Vec::with_capacity(self.0.len() + 1);
        let mut next = Some(0);
        for (first, last) in &self.0 {
            if let Some(next) = next.filter(|next| next < first) {
                gaps.push((next, first - 1));
            }
            next = last.checked_add(1);
        }
        gaps.extend(next.map(|next| (next, u16::MAX)));
        Self(gaps)
    }

    /// What is in both sets.
    pub(crate) fn intersection(&self, other: &Self) -> Self {
        // A and B = not (not A or not B).
        let outside = self.complement().0.into_iter().chain(other.complement().0);
        Self::of(outside).complement()
    }

    pub(crate) fn is_all(&self) -> bool {
        self.0 == [(0, u16::MAX)]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, u16)> + '_ {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn has(ranges: &Ranges, key: u16) -> bool {
        ranges.iter().any(|(first, last)| (first..=last).contains(&key))
    }

    proptest! {
        #[test]
        fn set_operations_agree_with_membership(
            a in prop::collection::vec((0u16..20, 0u16..20), 0..6),
            b in prop::collection::vec((0u16..20, 65_520u16..=65_535), 0..3),
        ) {
            let within = |ranges: &[(u16, u16)], key: u16| {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&key))
            };
            let (x, y) = (Ranges::of(a.clone()), Ranges::of(b.clone()));
            for key in (0..22).chain(65_515..=65_535) {
                prop_assert_eq!(has(&x, key), within(&a, key));
                prop_assert_eq!(has(&x.complement(), key), !within(&a, key));
                prop_assert_eq!(has(&x.intersection(&y), key), within(&a, key) && within(&b, key));
            }
            prop_assert!(x.0.windows(2).all(|w| u32::from(w[0].1) + 1 < u32::from(w[1].0)));
        }
    }
}
