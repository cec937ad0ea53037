//! The steps of a list, and the walk over the steps that match, up to the first decision.

use std::sync::Arc;

use super::rule::ResolvedRule;
use crate::model::{Decision, Noted, PolicyName};

/// What a rule that matches does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Ends the search.
    Decide(Arc<Decision>),
    /// Goes on behind the tier.
    Pass(Arc<Noted>),
    /// Goes on with the next rule.
    Log(Arc<Noted>),
    /// Goes on with the next rule; of one staged policy only the first that matches is noted, besides those before it that log.
    /// Behind its rules one may stand that matches every packet: what the end of its tier would do.
    Staged(Arc<Noted>),
}

/// A rule of a list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Step {
    /// Index of its tier in [`Steps::ends`].
    pub tier: u32,
    /// When it matches.
    pub rule: Arc<ResolvedRule>,
    /// What it does then.
    pub outcome: Outcome,
}

/// The rules of a list in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Steps {
    /// The rules, ascending by tier.
    pub steps: Vec<Step>,
    /// For each tier what happens behind its last rule: a decision, or `None`: the next tier. The last is a decision.
    pub ends: Vec<Option<Arc<Decision>>>,
}

impl Steps {
    /// Where the first decision stands, given the indexes of the rules that match, ascending; rules noted on the way are
    /// handed to `note`. `None` for steps that do not end in a decision, which are never made.
    pub fn walk<'s>(
        &'s self,
        matching: impl IntoIterator<Item = usize>,
        mut note: impl FnMut(&'s Noted),
    ) -> Option<Decided> {
        let mut tier = 0;
        let mut staged: Option<&Arc<PolicyName>> = None;
        for index in matching {
            let Some(step) = self.steps.get(index) else { continue };
            if step.tier < tier {
                continue;
            }
            if let Some(end) = self.end(tier, step.tier) {
                return Some(end);
            }
            tier = step.tier;
            match &step.outcome {
                Outcome::Decide(_) => return Some(Decided::Step(index)),
                Outcome::Pass(noted) => {
                    note(noted);
                    tier += 1;
                }
                // Behind the rule that matches a staged policy says no more.
                Outcome::Log(noted) | Outcome::Staged(noted) if staged == Some(noted.policy()) => {}
                Outcome::Log(noted) => note(noted),
                Outcome::Staged(noted) => {
                    staged = Some(noted.policy());
                    note(noted);
                }
            }
        }
        self.end(tier, self.ends.len() as u32)
    }

    /// The first decision at the ends of the tiers from `tier` up to, but not with, `to`.
    fn end(&self, tier: u32, to: u32) -> Option<Decided> {
        let ends = self.ends.get(tier as usize..to as usize)?;
        let at = ends.iter().position(Option::is_some)?;
        Some(Decided::End(tier as usize + at))
    }

    /// The decision that stands there, with nothing noted.
    pub fn decision(&self, decided: Decided) -> Option<&Arc<Decision>> {
        match decided {
            Decided::Step(index) => match &self.steps.get(index)?.outcome {
                Outcome::Decide(decision) => Some(decision),
                Outcome::Pass(_) | Outcome::Log(_) | Outcome::Staged(_) => None,
            },
            Decided::End(tier) => self.ends.get(tier)?.as_ref(),
        }
    }
}

/// Where a decision stands in [`Steps`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decided {
    /// At the step of this index.
    Step(usize),
    /// At the end of the tier of this index.
    End(usize),
}
