//! The predicates and port sets that the rules of an image use.

use crate::model::Family;
use crate::resolve::{Resolved, Stage, Terms, Vocabulary};

/// The predicates and port sets that rules use, by number.
#[derive(Debug, Default)]
pub(crate) struct TermsInUse {
    pub(crate) predicates: Vec<bool>,
    pub(crate) port_sets: Vec<bool>,
}

impl TermsInUse {
    /// The terms that rules use for peers.
    pub(crate) fn of_peers(resolved: &Resolved, vocabulary: &Vocabulary) -> Self {
        Self::collect(resolved, vocabulary, false)
    }

    /// The terms that rules use for either end. The predicates of both address families always count as used.
    pub(crate) fn of_either_end(resolved: &Resolved, vocabulary: &Vocabulary) -> Self {
        let mut all = Self::collect(resolved, vocabulary, true);
        for family in Family::ALL {
            all.predicates[family as usize] = true;
        }
        all
    }

    fn collect(resolved: &Resolved, vocabulary: &Vocabulary, local: bool) -> Self {
        let mut all = Self {
            predicates: vec![false; vocabulary.predicates.len()],
            port_sets: vec![false; vocabulary.port_sets.len()],
        };
        for list in &resolved.lists {
            all.add_terms(&list.peer);
            // At a host endpoint, the local end may have any address. So its terms are evaluated for all addresses, as
            // for a peer.
            if local || list.list.stage != Stage::Pod {
                all.add_terms(&list.local);
            }
        }
        all
    }

    fn add_terms(&mut self, asked: &Terms) {
        asked.predicates.iter().for_each(|it| self.predicates[*it as usize] = true);
        asked.port_sets.iter().for_each(|it| self.port_sets[*it as usize] = true);
    }
}
