//! Determines when no further rule matters, while matching rules are collected in order.

use crate::resolve::RuleEffect;

/// The effect of a matching rule on the evaluation.
#[derive(Debug, Clone, Copy)]
pub(super) enum StepEffect {
    Decide,
    Pass,
    GoOn,
}

impl From<&RuleEffect> for StepEffect {
    fn from(outcome: &RuleEffect) -> Self {
        match outcome {
            RuleEffect::Decide(_) => Self::Decide,
            RuleEffect::Pass(_) => Self::Pass,
            RuleEffect::Log(_) | RuleEffect::Staged(_) => Self::GoOn,
        }
    }
}

/// Tracks which further rules can matter. After a rule that decides every packet, only rules of later tiers can matter,
/// and only if a Pass rule of the same tier matches before it.
#[derive(Debug, Default)]
pub(super) struct UntilDecided {
    /// The last tier in which a rule decides every packet that reaches the rule.
    decided: Option<u32>,
    /// The last tier in which a Pass rule matches.
    passed: Option<u32>,
}

impl UntilDecided {
    /// Whether no further rule of the tier matters.
    pub(super) fn skips(&self, tier: u32) -> bool {
        self.decided == Some(tier)
    }

    /// Adds a matching rule. Returns whether no further rule matters.
    pub(super) fn ends(&mut self, does: StepEffect, tier: u32, every_packet: bool) -> bool {
        match does {
            StepEffect::Pass => self.passed = Some(tier),
            StepEffect::Decide if every_packet => {
                if self.passed != Some(tier) {
                    return true;
                }
                self.decided = Some(tier);
            }
            StepEffect::Decide | StepEffect::GoOn => {}
        }
        false
    }
}
