//! Many lists of numbers, each with an index (such as the predicates of each member, or the classes of each predicate).
//! All lists together take only two allocations.

/// Lists of numbers, each found by the number of its group.
#[derive(Debug, Clone, Default)]
pub(crate) struct Grouped {
    /// The end of each group within `all`.
    ends: Vec<u32>,
    all: Vec<u32>,
}

impl Grouped {
    /// Groups numbers. Each pair is the number of a group, which is below `groups`, and a number in this group. The
    /// numbers of one group keep their order.
    pub(crate) fn from_pairs(
        groups: usize,
        pairs: impl Iterator<Item = (u32, u32)> + Clone,
    ) -> Self {
        let mut ends = vec![0u32; groups + 1];
        for (group, _) in pairs.clone() {
            ends[group as usize + 1] += 1;
        }
        let mut sum = 0;
        for end in &mut ends {
            sum += *end;
            *end = sum;
        }
        // Each entry first holds the start of its group, and finally its end.
        let mut all = vec![0; sum as usize];
        for (group, one) in pairs {
            let at = &mut ends[group as usize];
            all[*at as usize] = one;
            *at += 1;
        }
        ends.pop();
        Self { ends, all }
    }

    fn range(&self, group: usize) -> std::ops::Range<usize> {
        let end = self.ends.get(group).map_or(0, |end| *end as usize);
        let start = group.checked_sub(1).and_then(|before| self.ends.get(before));
        start.map_or(0, |start| *start as usize).min(end)..end
    }

    /// The numbers of a group; empty if there is no such group.
    pub(crate) fn group(&self, group: usize) -> &[u32] {
        self.all.get(self.range(group)).unwrap_or_default()
    }

    /// The groups, in order.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &[u32]> {
        (0..self.ends.len()).map(|group| self.group(group))
    }

    /// Sorts each group in ascending order.
    pub(crate) fn sort_each(&mut self) {
        for group in 0..self.ends.len() {
            let range = self.range(group);
            let group = &mut self.all[range];
            if !group.is_sorted() {
                group.sort_unstable();
            }
        }
    }

    /// The numbers of all groups.
    pub(crate) fn all(&self) -> &[u32] {
        &self.all
    }
}

/// The groups that are not empty, in ascending order, each with its numbers. Empty groups take no memory, so this suits
/// many groups, most of them empty.
#[derive(Debug, Default)]
pub(crate) struct OccupiedGroups {
    groups: Vec<u32>,
    /// The end of each group within `all`.
    ends: Vec<usize>,
    all: Vec<u32>,
}

impl OccupiedGroups {
    /// Like [`Grouped::from_pairs`]. The pairs must be in ascending order of their second numbers.
    pub(crate) fn from_pairs(
        groups: usize,
        pairs: impl Iterator<Item = (u32, u32)> + Clone,
    ) -> Self {
        let mut occupied = Self::default();
        let mut few: Vec<(u32, u32)> = pairs.clone().take(groups / 4 + 1).collect();
        if few.len() <= groups / 4 {
            few.sort_unstable();
            for of_group in few.chunk_by(|a, b| a.0 == b.0) {
                occupied.push(of_group[0].0, of_group.iter().map(|(_, one)| *one));
            }
            return occupied;
        }
        for (group, all) in (0..).zip(Grouped::from_pairs(groups, pairs).groups()) {
            if !all.is_empty() {
                occupied.push(group, all.iter().copied());
            }
        }
        occupied
    }

    fn push(&mut self, group: u32, all: impl Iterator<Item = u32>) {
        self.groups.push(group);
        self.all.extend(all);
        self.ends.push(self.all.len());
    }

    /// Each group with its numbers.
    pub(crate) fn each(&self) -> impl Iterator<Item = (usize, &[u32])> {
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        let runs = starts.zip(&self.ends).map(|(start, end)| &self.all[start..*end]);
        self.groups.iter().map(|group| *group as usize).zip(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pairs_are_grouped_in_their_order() {
        let pairs = [(2, 7), (0, 3), (2, 5), (2, 9), (3, 1)];
        let mut grouped = Grouped::from_pairs(5, pairs.into_iter());
        assert_eq!(grouped.groups().collect::<Vec<_>>(), [&[3][..], &[], &[7, 5, 9], &[1], &[]]);
        grouped.sort_each();
        assert_eq!(grouped.group(2), [5, 7, 9]);
        assert_eq!(grouped.group(5), [0; 0]);
        assert_eq!(grouped.all(), [3, 5, 7, 9, 1]);
    }

    proptest! {
        #[test]
        fn the_groups_that_have_any_are_those_of_all(
            groups in 1usize..60,
            pairs in prop::collection::btree_set((0u32..20, 0u32..60), 0..40),
        ) {
            let pairs = pairs.iter().map(|(one, group)| (group % groups as u32, *one));
            let all = Grouped::from_pairs(groups, pairs.clone());
            let expected = all.groups().enumerate().filter(|(_, all)| !all.is_empty());
            let expected: Vec<_> = expected.map(|(at, all)| (at, all.to_vec())).collect();
            let occupied = OccupiedGroups::from_pairs(groups, pairs);
            let found: Vec<_> = occupied.each().map(|(at, all)| (at, all.to_vec())).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
