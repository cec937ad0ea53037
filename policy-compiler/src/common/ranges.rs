//! Sets of 16-bit keys (ports, ICMP types with codes, protocol numbers) as ranges.

/// The ranges of a set, which are disjoint, ascending and not adjacent. Both ends of a range are included. Most sets
/// are one range, which needs no heap memory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ranges {
    /// One range.
    One((u16, u16)),
    /// No range, or more than one.
    Many(Vec<(u16, u16)>),
}

impl Default for Ranges {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl Ranges {
    /// The set of every key.
    pub const fn all() -> Self {
        Self::One((0, u16::MAX))
    }

    /// The union of ranges in any order.
    pub fn union(ranges: impl IntoIterator<Item = (u16, u16)>) -> Self {
        let mut ranges = ranges.into_iter().filter(|(first, last)| first <= last);
        let Some(first) = ranges.next() else { return Self::default() };
        let Some(second) = ranges.next() else { return Self::One(first) };
        let mut all = vec![first, second];
        all.extend(ranges);
        all.sort_unstable();
        let mut merged: Vec<(u16, u16)> = Vec::with_capacity(all.len());
        for (first, last) in all {
            match merged.last_mut() {
                Some((_, end)) if u32::from(first) <= u32::from(*end) + 1 => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        match merged.as_slice() {
            [one] => Self::One(*one),
            _ => Self::Many(merged),
        }
    }

    fn slice(&self) -> &[(u16, u16)] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }

    /// The keys that are not in the set.
    #[must_use]
    pub fn complement(&self) -> Self {
        let mut gaps = Vec::new();
        let mut next = Some(0);
        for (first, last) in self.iter() {
            if let Some(next) = next.filter(|next| *next < first) {
                gaps.push((next, first - 1));
            }
            next = last.checked_add(1);
        }
        gaps.extend(next.map(|next| (next, u16::MAX)));
        match gaps.as_slice() {
            [one] => Self::One(*one),
            _ => Self::Many(gaps),
        }
    }

    /// The keys that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        if other.is_all() || self.is_empty() {
            return self.clone();
        }
        if self.is_all() || other.is_empty() {
            return other.clone();
        }
        // A and B = not (not A or not B).
        Self::union(self.complement().iter().chain(other.complement().iter())).complement()
    }

    /// Whether the set contains every key.
    #[inline]
    pub fn is_all(&self) -> bool {
        matches!(self, Self::One((0, u16::MAX)))
    }

    /// Whether the set contains no key.
    pub fn is_empty(&self) -> bool {
        self.slice().is_empty()
    }

    /// Whether a key is in the set.
    pub fn contains(&self, key: u16) -> bool {
        self.iter().any(|(first, last)| (first..=last).contains(&key))
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u16, u16)> + '_ {
        self.slice().iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn set_operations_agree_with_membership(
            a in prop::collection::vec((0u16..20, 0u16..20), 0..6),
            b in prop::collection::vec((0u16..20, 65_520u16..=65_535), 0..3),
        ) {
            let within = |ranges: &[(u16, u16)], key: u16| {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&key))
            };
            let (x, y) = (Ranges::union(a.clone()), Ranges::union(b.clone()));
            for key in (0..22).chain(65_515..=65_535) {
                prop_assert_eq!(x.contains(key), within(&a, key));
                prop_assert_eq!(x.complement().contains(key), !within(&a, key));
                prop_assert_eq!(x.intersection(&y).contains(key), within(&a, key) && within(&b, key));
            }
            prop_assert!(x.slice().windows(2).all(|w| u32::from(w[0].1) + 1 < u32::from(w[1].0)));
        }
    }
}
