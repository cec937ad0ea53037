//! The steps of a list, and the walk over the matching steps to the first decision.

use std::sync::Arc;

use super::rule::ResolvedRule;
use crate::model::{Decision, Noted, PolicyName};

/// The effect of a matching rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RuleEffect {
    /// It ends the evaluation.
    Decide(Arc<Decision>),
    /// The rule is noted, and the evaluation continues with the next tier.
    Pass(Arc<Noted>),
    /// The evaluation continues with the next rule.
    Log(Arc<Noted>),
    /// The rule belongs to a staged policy, so the evaluation continues with the next rule. The first matching rule of
    /// the policy is noted, and so are matching Log rules before it. After the policy's rules there may be a step that
    /// matches every packet and stands for the end of the tier.
    Staged(Arc<Noted>),
}

/// A rule of a list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Step {
    /// The index of its tier in [`Steps::ends`].
    pub tier: u32,
    /// The conditions under which it matches.
    pub rule: Arc<ResolvedRule>,
    /// The effect if it matches.
    pub outcome: RuleEffect,
}

impl Step {
    /// The size of the rule and of its terms for both ends.
    pub(super) fn size(&self) -> usize {
        1 + self.rule.local.size() + self.rule.peer.size()
    }
}

/// The rules of a list in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Steps {
    /// The rules, in ascending order of tier.
    pub steps: Vec<Step>,
    /// For each tier, the decision after its last rule. `None` means that the next tier follows. The last entry is a
    /// decision.
    pub ends: Vec<Option<Arc<Decision>>>,
}

impl Steps {
    /// Finds the first decision, given the indexes of the matching rules in ascending order. Calls `note` for each rule
    /// that is noted before the decision. Returns `None` if the steps do not end in a decision, which steps from this
    /// crate always do.
    pub fn walk<'s>(
        &'s self,
        matching: impl IntoIterator<Item = usize>,
        mut note: impl FnMut(&'s Noted),
    ) -> Option<DecisionPlace> {
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
                RuleEffect::Decide(_) => return Some(DecisionPlace::Step(index)),
                RuleEffect::Pass(noted) => {
                    note(noted);
                    tier += 1;
                }
                // After its first matching rule, a staged policy notes no further rule.
                RuleEffect::Log(noted) | RuleEffect::Staged(noted)
                    if staged == Some(noted.policy()) => {}
                RuleEffect::Log(noted) => note(noted),
                RuleEffect::Staged(noted) => {
                    staged = Some(noted.policy());
                    note(noted);
                }
            }
        }
        self.end(tier, self.ends.len() as u32)
    }

    /// The first decision among the ends of the tiers from `tier` to `to`, without `to` itself.
    fn end(&self, tier: u32, to: u32) -> Option<DecisionPlace> {
        let ends = self.ends.get(tier as usize..to as usize)?;
        let at = ends.iter().position(Option::is_some)?;
        Some(DecisionPlace::End(tier as usize + at))
    }

    /// The decision at this place, without noted rules.
    pub fn decision(&self, decided: DecisionPlace) -> Option<&Arc<Decision>> {
        match decided {
            DecisionPlace::Step(index) => match &self.steps.get(index)?.outcome {
                RuleEffect::Decide(decision) => Some(decision),
                RuleEffect::Pass(_) | RuleEffect::Log(_) | RuleEffect::Staged(_) => None,
            },
            DecisionPlace::End(tier) => self.ends.get(tier)?.as_ref(),
        }
    }
}

/// The place of a decision in [`Steps`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionPlace {
    /// At the step with this index.
    Step(usize),
    /// At the end of the tier with this index.
    End(usize),
}
