//! Step by step: which policies were asked, and of each rule that was passed over the first term that failed.
//!
//! It is the search of `decide` with somebody who writes down, so that what is told is what was done.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::decide::Watch;
use super::host::Crossing;
use super::interface::InterfaceTrace;
use super::policies::Policy;
use super::rules::{Direction, Mismatch, Rule};
use super::tiers::Tier;
use super::verdict::{RuleName, Verdict, VerdictReason, name};
use super::words::term;
use super::{Oracle, Packet, Party};
use crate::manifest::object::ObjectKey;

/// The whole story of a connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// Who asks.
    pub from: String,
    /// Who is asked.
    pub to: String,
    /// With what.
    pub packet: String,
    /// Whether it passes, by all that is enforced.
    pub allowed: bool,
    /// Whether it would pass if all policy were enforced: that of host endpoints is in part only.
    pub intended: bool,
    /// Why the packet gets nowhere whatever policy says, if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_route: Option<String>,
    /// At the source.
    pub egress: SideTrace,
    /// Where it leaves the source's node, if a host endpoint may be there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaving: Option<InterfaceTrace>,
    /// Where it arrives at the destination's node, if a host endpoint may be there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arriving: Option<InterfaceTrace>,
    /// At the destination.
    pub ingress: SideTrace,
    /// What staged policies would have decided.
    pub staged: Vec<String>,
}

/// What happened at one end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SideTrace {
    /// Whether it lets the connection pass.
    pub allowed: bool,
    /// What decided.
    pub why: String,
    /// The rule that decided, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<DecidingRule>,
    /// The tier whose end decided, if it is one's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier_end: Option<String>,
    /// The policies that deny the endpoint everything, and why nobody can evaluate them.
    pub broken: Vec<UnusablePolicy>,
    /// The tiers that have a policy for the endpoint in this direction, as far as the search went.
    pub tiers: Vec<TierSteps>,
    /// The profiles, where no policy decided.
    pub profiles: Vec<PolicySteps>,
}

/// The rule of a policy or profile that decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecidingRule {
    /// The kind of its object.
    pub kind: String,
    /// The API version of its object.
    pub api_version: String,
    /// The object's namespace; empty where it has none.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// Which of its lists: `ingress` or `egress`.
    pub direction: String,
    /// Its index in the list.
    pub index: usize,
}

/// A policy that nobody can evaluate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnusablePolicy {
    /// Its name.
    pub policy: String,
    /// Why.
    pub reason: String,
}

/// What happened in one tier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TierSteps {
    /// Its name.
    pub name: String,
    /// Its order; `None` is last.
    pub order: Option<f64>,
    /// `Deny` or `Pass`.
    pub default_action: String,
    /// The policies that were asked, in order.
    pub policies: Vec<PolicySteps>,
}

/// What happened in one policy or profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PolicySteps {
    /// Its name.
    pub name: String,
    /// Its order in its tier; `None` is last, and what profiles have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<f64>,
    /// Whether it is only reported on.
    pub staged: bool,
    /// The rules that were asked, in order.
    pub rules: Vec<RuleStep>,
}

/// One rule that was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleStep {
    /// Its index.
    pub rule: usize,
    /// What it does.
    pub action: String,
    /// The first term that the packet does not fit; `None`: it matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl Oracle {
    /// Tells what [`Oracle::judge`] does at either end, and [`Oracle::judge_shared`] at the interfaces on the way:
    /// `leaving` the source's node, and `arriving` at the destination's.
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

    /// Tells what one end says: `local`, of what it sends to `peer` or gets from it.
    pub fn explain_side(
        &self,
        direction: Direction,
        local: &Party,
        peer: &Party,
        packet: Packet,
    ) -> SideTrace {
        let mut writer = Writer::new(direction);
        // A pod that speaks to itself is not judged.
        let verdict = if super::is_same_pod(local, peer) {
            Verdict::from(VerdictReason::Itself)
        } else {
            self.side(direction, local, peer, packet, &mut writer)
        };
        self.side_trace(&verdict, writer)
    }

    pub(super) fn side_trace(&self, verdict: &Verdict, mut writer: Writer) -> SideTrace {
        writer.tiers.retain(|tier| !tier.policies.is_empty());
        let (rule, tier_end) = match &verdict.why {
            VerdictReason::Rule { rule, .. } => (Some(DecidingRule::new(rule)), None),
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

impl Trace {
    /// The same where nothing passes, since no route leads there.
    #[must_use]
    pub fn without_route(self, why: String) -> Self {
        Self { allowed: false, intended: false, no_route: Some(why), ..self }
    }
}

impl DecidingRule {
    fn new(rule: &RuleName) -> Self {
        let ObjectKey { kind, namespace, name } = &rule.policy;
        Self {
            kind: kind.name().to_owned(),
            api_version: kind.api_versions()[0].to_owned(),
            namespace: namespace.clone(),
            name: name.clone(),
            direction: rule.direction.to_string(),
            index: rule.index,
        }
    }
}

/// Writes down each step.
pub(super) struct Writer {
    direction: Direction,
    tiers: Vec<TierSteps>,
    profiles: Vec<PolicySteps>,
}

impl Writer {
    pub(super) const fn new(direction: Direction) -> Self {
        Self { direction, tiers: Vec::new(), profiles: Vec::new() }
    }

    /// Whether a policy was asked.
    pub(super) fn has_steps(&self) -> bool {
        self.tiers.iter().any(|tier| !tier.policies.is_empty())
    }

    /// What is told where none of them decides and more are asked behind.
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
            rules: Vec::new(),
        };
        if let Some(tier) = self.tiers.last_mut() {
            tier.policies.push(steps);
        }
    }

    fn profile(&mut self, name: &str) {
        let name = name.to_owned();
        self.profiles.push(PolicySteps { name, order: None, staged: false, rules: Vec::new() });
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

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match (self.allowed, self.intended) {
            (true, true) => "ALLOWED",
            (false, false) => "DENIED",
            (true, false) => "ALLOWED, because what denies it is NOT ENFORCED",
            (false, true) => "DENIED, because what allows it is NOT ENFORCED",
        };
        writeln!(f, "{} -> {}, {}: {verdict}", self.from, self.to, self.packet)?;
        if let Some(why) = &self.no_route {
            writeln!(f, "\nno route: {why}")?;
        }
        writeln!(f, "\negress of {}: {}", self.from, self.egress.why)?;
        self.egress.write(f, "egress")?;
        self.leaving.iter().try_for_each(|interface| interface.write(f, "egress"))?;
        self.arriving.iter().try_for_each(|interface| interface.write(f, "ingress"))?;
        writeln!(f, "\ningress of {}: {}", self.to, self.ingress.why)?;
        self.ingress.write(f, "ingress")?;
        if !self.staged.is_empty() {
            writeln!(f, "\nstaged, not enforced")?;
        }
        for staged in &self.staged {
            writeln!(f, "  {staged}")?;
        }
        Ok(())
    }
}

impl SideTrace {
    /// Writes the steps, the rules by their place in the list of `direction`.
    pub(crate) fn write(&self, f: &mut fmt::Formatter<'_>, direction: &str) -> fmt::Result {
        for broken in &self.broken {
            writeln!(f, "  {}: {}", broken.policy, broken.reason)?;
        }
        for tier in &self.tiers {
            let order = order(tier.order);
            writeln!(f, "  tier {}, order {order}, then {}", tier.name, tier.default_action)?;
            for policy in &tier.policies {
                let order = self::order(policy.order);
                let staged = if policy.staged { ", staged" } else { "" };
                writeln!(f, "    {}, order {order}{staged}", policy.name)?;
                steps(f, "      ", direction, &policy.rules)?;
            }
        }
        for profile in &self.profiles {
            writeln!(f, "  profile {}", profile.name)?;
            steps(f, "    ", direction, &profile.rules)?;
        }
        Ok(())
    }
}

fn order(order: Option<f64>) -> String {
    order.map_or("last".to_owned(), |order| order.to_string())
}

fn steps(
    f: &mut fmt::Formatter<'_>,
    indent: &str,
    direction: &str,
    steps: &[RuleStep],
) -> fmt::Result {
    for RuleStep { rule, action, failed } in steps {
        write!(f, "{indent}{direction}[{rule}] {action}: ")?;
        match failed {
            Some(failed) => writeln!(f, "no match: {failed}")?,
            None => writeln!(f, "matches")?,
        }
    }
    Ok(())
}
