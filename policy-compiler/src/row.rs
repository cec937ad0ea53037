//! What happens to each packet between a chain and a class: the rules that match, laid over each other.

use std::rc::Rc;

use crate::claim::{Claim, KEYED, Keys, OTHERS};
use crate::image::PathId;
use crate::ranges::Ranges;

/// What an interval of keys leads to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Cell {
    /// One path.
    Path(PathId),
    /// A path by source port: the first port of each interval, ascending from 0.
    BySource(Vec<(u16, PathId)>),
}

/// A row: for every packet the path that decides it. Equal rows are equal values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RowContent {
    /// For each table the first key of each interval, ascending from 0, and where it leads; neighbours differ.
    pub(crate) tables: [Vec<(u16, Cell)>; OTHERS + 1],
    /// For each of [`KEYED`] the path of packets that do not show their keys.
    pub(crate) bare: [PathId; KEYED.len()],
}

impl RowContent {
    /// The row of rules in order, each with one of its claims; `decide` says where the rules lead that match one packet,
    /// ascending and distinct.
    pub(crate) fn build(
        claims: &[(usize, Rc<Claim>)],
        mut decide: impl FnMut(&[usize]) -> PathId,
    ) -> Self {
        let of_table = |table: usize| -> Vec<(usize, &Keys)> {
            claims
                .iter()
                .filter_map(|(rule, claim)| Some((*rule, claim.0[table].as_ref()?)))
                .collect()
        };
        let tables = std::array::from_fn(|table| intervals(&of_table(table), &mut decide));
        let bare = std::array::from_fn(|table| {
            let mut rules: Vec<usize> = of_table(table)
                .iter()
                .filter(|(_, keys)| keys.bare)
                .map(|(rule, _)| *rule)
                .collect();
            rules.dedup();
            decide(&rules)
        });
        Self { tables, bare }
    }
}

/// Sweeps over the keys with the claims that are in force at each.
fn intervals(
    claims: &[(usize, &Keys)],
    decide: &mut impl FnMut(&[usize]) -> PathId,
) -> Vec<(u16, Cell)> {
    sweep(claims.iter().map(|(_, keys)| &keys.set), |in_force| {
        let here: Vec<_> = in_force.iter().filter_map(|index| claims.get(*index)).collect();
        if here.iter().all(|(_, keys)| keys.sources.is_all()) {
            return Cell::Path(decide(&rules(here.iter().map(|(rule, _)| *rule))));
        }
        let by_source = sweep(here.iter().map(|(_, keys)| &keys.sources), |in_force| {
            decide(&rules(
                in_force.iter().filter_map(|index| here.get(*index)).map(|(rule, _)| *rule),
            ))
        });
        match by_source.as_slice() {
            [(_, path)] => Cell::Path(*path),
            _ => Cell::BySource(by_source),
        }
    })
}

fn rules(ascending: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut rules: Vec<usize> = ascending.collect();
    rules.dedup();
    rules
}

/// The intervals of keys over which the same of `sets` contain the key, with what `value` makes of the sets' indexes,
/// ascending; neighbours with equal values are one.
fn sweep<'a, T: PartialEq>(
    sets: impl Iterator<Item = &'a Ranges>,
    mut value: impl FnMut(&[usize]) -> T,
) -> Vec<(u16, T)> {
    let mut edges: Vec<(u32, usize, bool)> = Vec::new();
    let mut in_force: Vec<usize> = Vec::new();
    let mut count = 0;
    for (index, set) in sets.enumerate() {
        count = index + 1;
        if set.is_all() {
            in_force.push(index);
            continue;
        }
        for (first, last) in set.iter() {
            edges.push((u32::from(first), index, true));
            edges.push((u32::from(last) + 1, index, false));
        }
    }
    if in_force.len() == count {
        return vec![(0, value(&in_force))];
    }
    edges.sort_unstable();
    let mut intervals: Vec<(u16, T)> = Vec::new();
    if edges.first().is_none_or(|edge| edge.0 > 0) {
        intervals.push((0, value(&in_force)));
    }
    for at_one_key in edges.chunk_by(|a, b| a.0 == b.0) {
        for (_, index, opens) in at_one_key {
            match (in_force.binary_search(index), opens) {
                (Err(at), true) => in_force.insert(at, *index),
                (Ok(at), false) => {
                    in_force.remove(at);
                }
                _ => {}
            }
        }
        let Some(start) = at_one_key.first().and_then(|edge| u16::try_from(edge.0).ok()) else {
            break;
        };
        let next = value(&in_force);
        if intervals.last().is_none_or(|(_, last)| *last != next) {
            intervals.push((start, next));
        }
    }
    intervals
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys() -> impl Strategy<Value = Keys> {
        let range = || {
            let port = prop_oneof![0u16..20, 65_520u16..=65_535];
            prop_oneof![
                1 => Just(Ranges::all()),
                3 => prop::collection::vec((port.clone(), port), 0..3).prop_map(Ranges::of),
            ]
        };
        (range(), range(), any::<bool>()).prop_map(|(keys, sources, bare)| Keys {
            set: keys,
            sources,
            bare,
        })
    }

    proptest! {
        #[test]
        fn a_row_leads_each_packet_to_the_rules_that_claim_it(
            all in prop::collection::vec((0usize..2, keys()), 0..8),
        ) {
            let mut rule = 0;
            let claims: Vec<(usize, Rc<Claim>)> = all.iter().map(|(step, keys)| {
                rule += step;
                (rule, Rc::new(Claim(std::array::from_fn(|_| Some(keys.clone())))))
            }).collect();
            let mut paths: Vec<Vec<usize>> = Vec::new();
            let row = RowContent::build(&claims, |rules| {
                let at = paths.iter().position(|known| known == rules);
                PathId(at.unwrap_or_else(|| { paths.push(rules.to_vec()); paths.len() - 1 }) as u32)
            });
            let has = |ranges: &Ranges, key| ranges.iter().any(|(a, b)| (a..=b).contains(&key));
            let at = |intervals: &[(u16, PathId)], key: u16| {
                intervals[intervals.partition_point(|i| i.0 <= key) - 1].1
            };
            for key in (0..=21).chain(65_518..=65_535) {
                for source in [0, 5, 19, 20, 65_535] {
                    let mut expected: Vec<usize> = claims.iter().filter(|(_, claim)| {
                        let keys = claim.0[0].as_ref().unwrap();
                        has(&keys.set, key) && has(&keys.sources, source)
                    }).map(|(rule, _)| *rule).collect();
                    expected.dedup();
                    let cells = &row.tables[0];
                    let cell = &cells[cells.partition_point(|i| i.0 <= key) - 1].1;
                    let found = match cell {
                        Cell::Path(path) => *path,
                        Cell::BySource(sources) => at(sources, source),
                    };
                    prop_assert_eq!(&paths[found.0 as usize], &expected);
                }
            }
            let mut bare: Vec<usize> = claims.iter()
                .filter(|(_, claim)| claim.0[0].as_ref().unwrap().bare).map(|(rule, _)| *rule).collect();
            bare.dedup();
            prop_assert_eq!(&paths[row.bare[0].0 as usize], &bare);
        }
    }
}
