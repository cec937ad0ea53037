//! Numbers for all that lists ask.

use ahash::AHashMap;

use super::{Predicate, PredicateId, Question, QuestionId};

/// The numbers of predicates and questions.
#[derive(Debug, Default)]
pub(crate) struct Vocabulary {
    predicate_ids: AHashMap<Predicate, PredicateId>,
    question_ids: AHashMap<Question, QuestionId>,
    /// By number, in order of first use; first the families.
    pub(crate) predicates: Vec<Predicate>,
    /// By number.
    pub(crate) questions: Vec<Question>,
}

impl Vocabulary {
    pub(super) fn predicate(&mut self, predicate: Predicate) -> PredicateId {
        let all = &mut self.predicates;
        *self.predicate_ids.entry(predicate).or_insert_with_key(|predicate| {
            all.push(predicate.clone());
            all.len() as u32 - 1
        })
    }

    pub(super) fn question(&mut self, question: Question) -> QuestionId {
        let all = &mut self.questions;
        *self.question_ids.entry(question).or_insert_with_key(|question| {
            all.push(question.clone());
            all.len() as u32 - 1
        })
    }
}
