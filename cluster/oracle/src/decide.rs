//! Evaluates the policies of an endpoint: invalid policies first, then the tiers in order, then the profiles.

use super::direction::Direction;
use super::members::Role;
use super::oracle::Oracle;
use super::place::Chain;
use super::policies::Policy;
use super::profiles::Profile;
use super::rules::{Flow, Mismatch, Rule};
use super::selecting::Placed;
use super::tiers::Tier;
use super::verdict::{RuleName, Verdict, VerdictReason};
use manx_objects::object::calico::Action;
use manx_objects::object::{Kind, ObjectKey};

/// An observer of the steps of the evaluation. It cannot change the verdict.
pub(super) trait Watch {
    /// The evaluation enters a tier.
    fn tier(&mut self, _tier: &Tier) {}
    /// The evaluation enters a policy that selects the endpoint in this direction.
    fn policy(&mut self, _policy: &Policy) {}
    /// A rule of the policy was evaluated.
    fn rule(&mut self, _rule: &Rule, _mismatch: Option<Mismatch>) {}
    /// If enforced, this staged policy would make the end of its tier deny: no rule of the policy decides, and all
    /// policies of the tier that apply here are staged.
    fn staged_tier_end(&mut self, _policy: &Policy) {}
    /// The evaluation enters a profile.
    fn profile(&mut self, _name: &str) {}
}

/// The observer that does nothing.
impl Watch for () {}

/// The result of the evaluation of all tiers.
pub(super) enum Outcome {
    Decided(VerdictReason),
    /// No policy applied.
    NobodyAsked,
    /// Policies applied, but none decided.
    Passed,
}

impl Oracle {
    /// Returns the verdict of an endpoint's policies and profiles on a packet.
    pub(super) fn decide(
        &self,
        endpoint: usize,
        selecting: &[Placed],
        flow: &Flow<'_>,
        watch: &mut impl Watch,
    ) -> Verdict {
        let mut through = Vec::new();
        let why = match self.denied_by_broken(selecting) {
            Some(why) => why,
            None => match self.tiers(Chain::Endpoint, selecting, flow, &mut through, watch) {
                Outcome::Decided(why) => why,
                Outcome::NobodyAsked | Outcome::Passed => {
                    self.profiles(endpoint, flow, &mut through, watch)
                }
            },
        };
        Verdict { why, through }
    }

    /// Returns the reason to deny all traffic of the endpoint, if policies that select it cannot be evaluated.
    pub(super) fn denied_by_broken(&self, selecting: &[Placed]) -> Option<VerdictReason> {
        let broken = self.broken(selecting);
        let broken: Vec<ObjectKey> =
            broken.into_iter().map(|policy| self.policies[policy].key.clone()).collect();
        (!broken.is_empty()).then_some(VerdictReason::InvalidPolicies(broken))
    }

    /// Evaluates the tiers in order. A tier counts only if one of its enforced policies selects the endpoint in this
    /// direction.
    pub(super) fn tiers(
        &self,
        chain: Chain,
        selecting: &[Placed],
        flow: &Flow<'_>,
        through: &mut Vec<RuleName>,
        watch: &mut impl Watch,
    ) -> Outcome {
        let mut enforced = false;
        for (index, tier) in self.tiers.iter().enumerate() {
            let mut asked = Vec::new();
            let mut passed = false;
            watch.tier(tier);
            let denies = !tier.passes && chain.ends_tiers();
            let here = selecting.iter().filter(|it| it.tier == index);
            let here = here.map(|it| &self.policies[it.policy]);
            let here = here.filter(|policy| chain.asks(policy.hook));
            let here = here.filter_map(|policy| Some((policy, policy.rules(flow.direction)?)));
            let only_staged = here.clone().all(|(policy, _)| policy.staged);
            for (policy, rules) in here {
                watch.policy(policy);
                if policy.staged {
                    // Staged rules are evaluated only for the observer.
                    let decides = first_match(rules, flow, watch, |_, _| {}).is_some();
                    if only_staged && denies && !decides {
                        watch.staged_tier_end(policy);
                    }
                    continue;
                }
                enforced = true;
                asked.push(&policy.key);
                let note = |rule: &Rule, _| through.push(name(&policy.key, flow.direction, rule));
                match first_match(rules, flow, watch, note) {
                    Some((rule, Action::Pass)) => {
                        through.push(name(&policy.key, flow.direction, rule));
                        passed = true;
                        break;
                    }
                    Some((rule, action)) => {
                        let rule = name(&policy.key, flow.direction, rule);
                        let allowed = action == Action::Allow;
                        return Outcome::Decided(VerdictReason::Rule { rule, allowed });
                    }
                    None => {}
                }
            }
            if !passed && !asked.is_empty() && denies {
                return Outcome::Decided(VerdictReason::TierEnd {
                    tier: tier.name.clone(),
                    policies: asked.into_iter().cloned().collect(),
                });
            }
        }
        if enforced { Outcome::Passed } else { Outcome::NobodyAsked }
    }

    /// Returns the result of the endpoint's profiles, for a packet that no policy decided. Every pod has the profile of
    /// its namespace, and then the profile of its service account.
    fn profiles(
        &self,
        endpoint: usize,
        flow: &Flow<'_>,
        through: &mut Vec<RuleName>,
        watch: &mut impl Watch,
    ) -> VerdictReason {
        let member = &self.members.list[endpoint];
        if let (Role::Pod, Some(namespace)) = (member.role, &member.namespace) {
            let profile = format!("kns.{namespace}");
            watch.profile(&profile);
            return VerdictReason::DefaultProfile(profile);
        }
        for profile in &member.profiles {
            watch.profile(profile);
            let rules = match self.profiles.find(profile, flow.direction) {
                Profile::Open => return VerdictReason::DefaultProfile(profile.clone()),
                Profile::Missing => return VerdictReason::MissingProfile(profile.clone()),
                Profile::Empty => continue,
                Profile::Rules(rules) => rules,
            };
            let key = ObjectKey::new(Kind::Profile, "", profile);
            let note = |rule: &Rule, _| through.push(name(&key, flow.direction, rule));
            if let Some((rule, action)) = first_match(rules, flow, watch, note) {
                let allowed = action == Action::Allow;
                return VerdictReason::Rule { rule: name(&key, flow.direction, rule), allowed };
            }
        }
        VerdictReason::NoProfile
    }
}

/// Returns the first rule that matches and is not a Log rule. Log rules that match before it are passed to `note`.
fn first_match<'a>(
    rules: &'a [Rule],
    flow: &Flow<'_>,
    watch: &mut impl Watch,
    mut note: impl FnMut(&Rule, Action),
) -> Option<(&'a Rule, Action)> {
    for rule in rules {
        let mismatch = rule.mismatch(flow);
        watch.rule(rule, mismatch);
        match (mismatch, rule.action) {
            (Some(_), _) => {}
            (None, Action::Log) => note(rule, rule.action),
            (None, action) => return Some((rule, action)),
        }
    }
    None
}

fn name(policy: &ObjectKey, direction: Direction, rule: &Rule) -> RuleName {
    RuleName { policy: policy.clone(), direction, index: rule.index }
}
