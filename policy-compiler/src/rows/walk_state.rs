//! The position of a walk over rows: the predicates that were entered, and the clauses that match there.

use ahash::RandomState;

use super::clauses::Clauses;
use crate::common::BitSet;

/// The position of a walk.
pub(super) struct WalkState {
    /// For each clause, the number of required predicates that were not entered, plus the number of excluded predicates
    /// that were. The clause matches if this is 0.
    lacking: Vec<u32>,
    /// For each group, the clauses that match.
    active: Vec<BitSet>,
    /// The exclusive or of the hashes of all clauses that match, and of all predicates for ports that were entered.
    pub(super) hash: u128,
    /// The changes since the position without predicates, in order.
    pub(super) flips: Vec<Flip>,
}

#[derive(Clone, Copy)]
pub(super) enum Flip {
    Clause(u32),
    /// A predicate for a port of the peer was entered.
    Port,
}

/// A predicate that was entered.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    pub(super) rank: u32,
    /// The number of flips before the predicate was entered.
    pub(super) flips: usize,
}

impl WalkState {
    /// The state before any predicate is entered.
    pub(super) fn new(clauses: &Clauses<'_>, hashes: &[RandomState; 2]) -> Self {
        let mut state = Self {
            lacking: vec![0; clauses.all.len()],
            active: vec![BitSet::default(); clauses.groups.len()],
            hash: 0,
            flips: Vec::new(),
        };
        for clause in clauses.wanting.all() {
            state.lacking[*clause as usize] += 1;
        }
        for clause in 0..clauses.all.len() as u32 {
            if state.matches(clause) {
                state.flip(clause, clauses, hashes);
            }
        }
        state.flips.clear();
        state
    }

    pub(super) fn matches(&self, clause: u32) -> bool {
        self.lacking[clause as usize] == 0
    }

    /// Enters a predicate. Returns the number of steps.
    pub(super) fn enter(
        &mut self,
        rank: u32,
        clauses: &Clauses<'_>,
        hashes: &[RandomState; 2],
    ) -> usize {
        let wanting = clauses.wanting.group(rank as usize);
        let excluding = clauses.excluding.group(rank as usize);
        for clause in wanting {
            self.lacking[*clause as usize] -= 1;
            if self.matches(*clause) {
                self.flip(*clause, clauses, hashes);
            }
        }
        for clause in excluding {
            if self.matches(*clause) {
                self.flip(*clause, clauses, hashes);
            }
            self.lacking[*clause as usize] += 1;
        }
        if clauses.looks_at_ports && clauses.of_ports[rank as usize] {
            self.hash ^= hash(u64::from(rank) << 32, hashes);
            self.flips.push(Flip::Port);
        }
        1 + wanting.len() + excluding.len()
    }

    /// Undoes the effect of [`enter`](Self::enter). Returns the number of steps.
    pub(super) fn leave(
        &mut self,
        Frame { rank, flips }: Frame,
        clauses: &Clauses<'_>,
        hashes: &[RandomState; 2],
    ) -> usize {
        let wanting = clauses.wanting.group(rank as usize);
        let excluding = clauses.excluding.group(rank as usize);
        for clause in excluding {
            self.lacking[*clause as usize] -= 1;
            if self.matches(*clause) {
                self.flip(*clause, clauses, hashes);
            }
        }
        for clause in wanting {
            if self.matches(*clause) {
                self.flip(*clause, clauses, hashes);
            }
            self.lacking[*clause as usize] += 1;
        }
        if clauses.looks_at_ports && clauses.of_ports[rank as usize] {
            self.hash ^= hash(u64::from(rank) << 32, hashes);
        }
        self.flips.truncate(flips);
        1 + wanting.len() + excluding.len()
    }

    /// Adds a clause to the active clauses, or removes it if it is active.
    fn flip(&mut self, clause: u32, clauses: &Clauses<'_>, hashes: &[RandomState; 2]) {
        let active = &mut self.active[clauses.all[clause as usize].group as usize];
        if active.contains(clause) {
            active.remove(clause);
        } else {
            active.insert(clause);
        }
        self.hash ^= hash(clause.into(), hashes);
        self.flips.push(Flip::Clause(clause));
    }
}

fn hash(number: u64, hashes: &[RandomState; 2]) -> u128 {
    let [high, low] = hashes.each_ref().map(|it| u128::from(it.hash_one(number)));
    high << 64 | low
}

/// Reads the clauses that match, in ascending order.
pub(super) struct Active<'s> {
    /// For each group, the parts of a row that it tests, its matching clauses, and the next clause to read.
    groups: Vec<(u16, &'s BitSet, Option<u32>)>,
}

impl<'s> Active<'s> {
    pub(super) fn new(clauses: &Clauses<'_>, state: &'s WalkState) -> Self {
        let groups = clauses.groups.iter().zip(&state.active);
        Self { groups: groups.map(|(parts, set)| (*parts, set, set.next(0))).collect() }
    }

    /// The next matching clause that tests any part of a row outside `done`.
    pub(super) fn next(&mut self, done: u16) -> Option<u32> {
        let open = self.groups.iter_mut().filter(|(parts, ..)| parts & !done != 0);
        let (_, set, next) = open.filter(|group| group.2.is_some()).min_by_key(|group| group.2)?;
        let number = (*next)?;
        *next = set.next(number + 1);
        Some(number)
    }
}
