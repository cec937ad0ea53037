//! The steps of an evaluation: the policies that applied and, for each rule that did not match, the first term that
//! failed.
//!
//! The evaluation is the one in `decide`, with an observer that records the steps. So the explanation shows what was
//! really evaluated.

use manx_api::trace::{
    DecidingRule, PolicySteps, RuleStep, SideTrace, TierSteps, Trace, UnusablePolicy,
};

use super::crossing::Crossing;
use super::decide::Watch;
use super::direction::Direction;
use super::oracle::Oracle;
use super::packet::Packet;
use super::party::{Party, is_same_pod};
use super::policies::Policy;
use super::rules::{Mismatch, Rule};
use super::tiers::Tier;
use super::verdict::{RuleName, Verdict, VerdictReason, name};
use super::words::term;
use manx_objects::object::ObjectKey;

impl Oracle {
    /// Explains the verdicts of [`Oracle::judge`] at both ends, and of [`Oracle::judge_shared`] at the interfaces
    /// between them: `leaving` the source's node, and `arriving` at the destination's node.
    pub fn explain(
        &self,
        (from, leaving): (&Party, Option<Crossing<'_>>),
        (to, arriving): (&Party, Option<Crossing<'_>>),
        packet: Packet,
    ) -> Trace {
        let side = |direction, local, peer| self.explain_side(direction, local, peer, packet);
        let (egress, ingress) =
            (side(Direction::Egress, from, to), side(Direction::Ingress, to, from));
        let mut staged = self.staged(from, to, packet);
        let mut at = |crossing: Option<Crossing<'_>>| {
            let (interface, mut of_host) = self.explain_host(&crossing?)?;
            staged.append(&mut of_host);
            Some(interface)
        };
        let (leaving, arriving) = (at(leaving), at(arriving));
        let ends = egress.allowed && ingress.allowed;
        let on_the_way = || leaving.iter().chain(&arriving);
        Trace {
            from: from.to_string(),
            to: to.to_string(),
            packet: packet.to_string(),
            allowed: ends && on_the_way().all(|interface| interface.allowed),
            intended: ends && on_the_way().all(|interface| interface.intended),
            no_route: None,
            egress,
            leaving,
            arriving,
            ingress,
            staged: staged.iter().map(ToString::to_string).collect(),
        }
    }

    /// Explains the verdict of one end, `local`, on the packets that it sends to `peer` or receives from it.
    pub fn explain_side(
        &self,
        direction: Direction,
        local: &Party,
        peer: &Party,
        packet: Packet,
    ) -> SideTrace {
        let mut writer = Writer::new(direction);
        // Traffic from a pod to itself is not judged.
        let verdict = if is_same_pod(local, peer) {
            Verdict::from(VerdictReason::Itself)
        } else {
            self.side(direction, local, peer, packet, &mut writer)
        };
        self.side_trace(&verdict, writer)
    }

    pub(super) fn side_trace(&self, verdict: &Verdict, mut writer: Writer) -> SideTrace {
        writer.tiers.retain(|tier| !tier.policies.is_empty());
        let (rule, tier_end) = match &verdict.why {
            VerdictReason::Rule { rule, .. } => (Some(deciding_rule(rule)), None),
            VerdictReason::TierEnd { tier, .. } => (None, Some(tier.clone())),
            _ => (None, None),
        };
        let keys = match &verdict.why {
            VerdictReason::InvalidPolicies(keys) => keys.as_slice(),
            _ => &[],
        };
        let broken = self.policies.iter().filter(|policy| keys.contains(&policy.key));
        SideTrace {
            allowed: verdict.allows(),
            why: verdict.to_string(),
            rule,
            tier_end,
            broken: broken
                .map(|policy| UnusablePolicy {
                    policy: name(&policy.key),
                    reason: policy.broken.clone().unwrap_or_default(),
                })
                .collect(),
            tiers: writer.tiers,
            profiles: writer.profiles,
        }
    }
}

fn deciding_rule(rule: &RuleName) -> DecidingRule {
    let ObjectKey { kind, namespace, name } = &rule.policy;
    DecidingRule {
        kind: kind.name().to_owned(),
        api_version: kind.api_versions()[0].to_owned(),
        namespace: namespace.clone(),
        name: name.clone(),
        direction: rule.direction.to_string(),
        index: rule.index,
        place: None,
    }
}

/// Records each step of the evaluation.
pub(super) struct Writer {
    direction: Direction,
    tiers: Vec<TierSteps>,
    profiles: Vec<PolicySteps>,
}

impl Writer {
    pub(super) const fn new(direction: Direction) -> Self {
        Self { direction, tiers: Vec::new(), profiles: Vec::new() }
    }

    /// Returns whether a policy applied.
    pub(super) fn has_steps(&self) -> bool {
        self.tiers.iter().any(|tier| !tier.policies.is_empty())
    }

    /// Returns the trace of a place where no policy decides. The next place is then evaluated.
    pub(super) fn undecided(mut self) -> SideTrace {
        self.tiers.retain(|tier| !tier.policies.is_empty());
        SideTrace {
            allowed: true,
            why: "no rule decides, the next are asked".to_owned(),
            rule: None,
            tier_end: None,
            broken: Vec::new(),
            tiers: self.tiers,
            profiles: self.profiles,
        }
    }
}

impl Watch for Writer {
    fn tier(&mut self, tier: &Tier) {
        self.tiers.push(TierSteps {
            name: tier.name.clone(),
            order: tier.order,
            default_action: if tier.passes { "Pass" } else { "Deny" }.to_owned(),
            policies: Vec::new(),
        });
    }

    fn policy(&mut self, policy: &Policy) {
        let steps = PolicySteps {
            name: name(&policy.key),
            order: policy.order.is_finite().then_some(policy.order),
            staged: policy.staged,
            place: None,
            rules: Vec::new(),
        };
        if let Some(tier) = self.tiers.last_mut() {
            tier.policies.push(steps);
        }
    }

    fn profile(&mut self, name: &str) {
        let name = name.to_owned();
        let steps =
            PolicySteps { name, order: None, staged: false, place: None, rules: Vec::new() };
        self.profiles.push(steps);
    }

    fn rule(&mut self, rule: &Rule, mismatch: Option<Mismatch>) {
        let in_tier = self.tiers.last_mut().and_then(|tier| tier.policies.last_mut());
        let Some(steps) = self.profiles.last_mut().or(in_tier) else { return };
        steps.rules.push(RuleStep {
            rule: rule.index,
            action: format!("{:?}", rule.action),
            failed: mismatch.map(|mismatch| term(rule, mismatch, self.direction)),
        });
    }
}
