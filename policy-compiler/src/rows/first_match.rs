//! First matches: the first rule that matches each port.
//!
//! If the first matching rule decides, no later rule matters. Then the rules that require one predicate can be reduced
//! to the first rule at each port, once for all rows. For a peer with two predicates, the two results are merged: each
//! port gets the rule with the lower index. The comment at the top of `builder` says how much time this saves.

use super::match_set::CompactMatch;
use crate::image::NO_KEY;

/// The first rule that matches the ports from `start` up to the start of the next piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) start: u32,
    /// The rule, or [`NO_RULE`] if none matches.
    pub(crate) rule: u32,
}

pub(crate) const NO_RULE: u32 = u32::MAX;

/// The number of tables of protocols with ports. They are the first tables.
const WITH_PORTS: usize = 3;

/// The first matches of some rules: for each table, a range of pieces in [`FirstMatches`]. The range is empty if the
/// rules do not test the table.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FirstMatch([(u32, u32); WITH_PORTS]);

/// The pieces of all first matches.
#[derive(Debug, Default)]
pub(crate) struct FirstMatches(Vec<Piece>);

impl FirstMatches {
    /// Adds the first matches of some rules. `matched` is in ascending order of rule. Returns `None` if a match set is
    /// not a single range of ports.
    pub(crate) fn add(
        &mut self,
        matched: &[(u32, CompactMatch)],
        scratch: &mut MergeScratch,
    ) -> Option<FirstMatch> {
        let mut added = FirstMatch::default();
        for (at, place) in added.0.iter_mut().enumerate() {
            let mut all = matched.iter().filter_map(|(rule, claimed)| match *claimed {
                CompactMatch::Ports { table, first, last } if usize::from(table) == at => {
                    Some(Some((*rule, first, last)))
                }
                CompactMatch::Ports { table, .. } if usize::from(table) < WITH_PORTS => None,
                CompactMatch::Ports { .. } | CompactMatch::Interned(_) => Some(None),
            });
            scratch.merged.clear();
            all.try_for_each(|claim| claim.map(|claim| scratch.merge(&pieces(claim))))?;
            let start = self.0.len() as u32;
            self.0.extend_from_slice(&scratch.merged);
            *place = (start, self.0.len() as u32);
        }
        Some(added)
    }

    fn get(&self, first: FirstMatch, table: usize) -> &[Piece] {
        let place = first.0.get(table);
        place
            .and_then(|(start, end)| self.0.get(*start as usize..*end as usize))
            .unwrap_or_default()
    }

    /// Merges several first matches in one table. The result is empty if none of them tests the table.
    pub(crate) fn merge_all<'d>(
        &'d self,
        all: &[FirstMatch],
        table: usize,
        scratch: &'d mut MergeScratch,
    ) -> &'d [Piece] {
        scratch.merged.clear();
        for first in all {
            let pieces = self.get(*first, table);
            if !pieces.is_empty() {
                scratch.merge(pieces);
            }
        }
        &scratch.merged
    }
}

/// The pieces of one match set.
fn pieces((rule, first, last): (u32, u16, u16)) -> [Piece; 3] {
    let (first, behind) = (u32::from(first), u32::from(last) + 1);
    let before = if first == 0 { rule } else { NO_RULE };
    [(0, before), (first, rule), (behind, NO_RULE)].map(|(start, rule)| Piece { start, rule })
}

/// Memory that is reused from merge to merge.
#[derive(Debug, Default)]
pub(crate) struct MergeScratch {
    merged: Vec<Piece>,
    before: Vec<Piece>,
}

impl MergeScratch {
    /// Merges `others` into `merged`: each port gets the rule with the lower index. Both lists must begin with port 0,
    /// except that `merged` may be empty.
    fn merge(&mut self, others: &[Piece]) {
        std::mem::swap(&mut self.merged, &mut self.before);
        self.merged.clear();
        let (mut ones, mut others) = (self.before.iter().peekable(), others.iter().peekable());
        let (mut one, mut other) = (NO_RULE, NO_RULE);
        loop {
            let next = |piece: Option<&&Piece>| piece.map_or(u32::MAX, |piece| piece.start);
            let start = next(ones.peek()).min(next(others.peek()));
            if start > NO_KEY {
                return;
            }
            // If several pieces start at one port, the last one applies.
            while let Some(piece) = ones.next_if(|piece| piece.start == start) {
                one = piece.rule;
            }
            while let Some(piece) = others.next_if(|piece| piece.start == start) {
                other = piece.rule;
            }
            let rule = one.min(other);
            if self.merged.last().is_none_or(|last| last.rule != rule) {
                self.merged.push(Piece { start, rule });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn at_each_port_stands_the_first_rule_that_claims_it(
            groups in prop::collection::vec(
                prop::collection::vec(((0u8..3, 0u32..50), prop_oneof![0u16..20, 65_520u16..], 0u16..9), 0..8),
                0..5),
        ) {
            let (mut firsts, mut scratch) = (FirstMatches::default(), MergeScratch::default());
            let matched = |group: &[((u8, u32), u16, u16)]| -> Vec<(u32, CompactMatch)> {
                let claim = |&((table, rule), first, more): &_| {
                    let last = u16::saturating_add(first, more);
                    (rule, CompactMatch::Ports { table, first, last })
                };
                group.iter().map(claim).collect()
            };
            let claimed: Vec<_> = groups.iter().map(|group| matched(group)).collect();
            let all: Vec<FirstMatch> =
                claimed.iter().map(|matched| firsts.add(matched, &mut scratch).unwrap()).collect();
            for table in 0..WITH_PORTS {
                let pieces = firsts.merge_all(&all, table, &mut scratch);
                prop_assert!(pieces.windows(2).all(|two| two[0].start < two[1].start));
                for port in (0..40).chain(65_500..=NO_KEY) {
                    let first = claimed.iter().flatten().filter_map(|(rule, claimed)| match claimed {
                        CompactMatch::Ports { table: of, first, last } => {
                            let is_it = usize::from(*of) == table
                                && (u32::from(*first)..=u32::from(*last)).contains(&port);
                            is_it.then_some(*rule)
                        }
                        CompactMatch::Interned(_) => None,
                    });
                    let found = pieces.iter().rev().find(|piece| piece.start <= port);
                    prop_assert_eq!(found.map_or(NO_RULE, |it| it.rule), first.min().unwrap_or(NO_RULE));
                }
            }
            let known = [(0, CompactMatch::Interned(0))];
            prop_assert!(firsts.add(&known, &mut scratch).is_none());
        }
    }
}
