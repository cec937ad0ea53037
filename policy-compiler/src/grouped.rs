//! Numbers by number: members' predicates, predicates' classes, in two runs of memory instead of one for each.

/// See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Grouped {
    /// Where each group ends.
    ends: Vec<u32>,
    all: Vec<u32>,
}

impl Grouped {
    /// Sorts pairs, a number below `groups` and one of its, by the first; those of one group stay in their order.
    pub(crate) fn of(groups: usize, pairs: impl Iterator<Item = (u32, u32)> + Clone) -> Self {
        let mut ends = vec![0u32; groups + 1];
        for (group, _) in pairs.clone() {
            ends[group as usize + 1] += 1;
        }
        let mut sum = 0;
        for end in &mut ends {
            sum += *end;
            *end = sum;
        }
        // Each now is where its group starts, and is moved to where it ends.
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

    /// The numbers of a group; of one that is none nothing.
    pub(crate) fn group(&self, group: usize) -> &[u32] {
        self.all.get(self.range(group)).unwrap_or_default()
    }

    /// The groups in their order.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &[u32]> {
        (0..self.ends.len()).map(|group| self.group(group))
    }

    /// Brings each group into ascending order.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_grouped_in_their_order() {
        let pairs = [(2, 7), (0, 3), (2, 5), (2, 9), (3, 1)];
        let mut grouped = Grouped::of(5, pairs.into_iter());
        assert_eq!(grouped.groups().collect::<Vec<_>>(), [&[3][..], &[], &[7, 5, 9], &[1], &[]]);
        grouped.sort_each();
        assert_eq!(grouped.group(2), [5, 7, 9]);
        assert_eq!(grouped.group(5), [0; 0]);
        assert_eq!(grouped.all(), [3, 5, 7, 9, 1]);
    }
}
