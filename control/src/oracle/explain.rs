//! Step by step: which policies were asked, and of each rule that was passed over the first term that failed.
//!
//! It is the search of `decide` with somebody who writes down, so that what is told is what was done.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::decide::Watch;
use super::policies::Policy;
use super::rules::{Direction, Mismatch, Rule};
use super::tiers::Tier;
use super::verdict::{Explanation, Verdict, name};
use super::words::term;
use super::{Oracle, Packet, Party};

/// The whole story of a connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Story {
    /// Who asks.
    pub from: String,
    /// Who is asked.
    pub to: String,
    /// With what.
    pub packet: String,
    /// Whether it passes.
    pub allowed: bool,
    /// At the source.
    pub egress: Side,
    /// At the destination.
    pub ingress: Side,
    /// What staged policies would have decided.
    pub staged: Vec<String>,
}

/// What happened at one end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// Whether it lets the connection pass.
    pub allowed: bool,
    /// What decided.
    pub why: String,
    /// The policies that deny the endpoint everything, and why nobody can evaluate them.
    pub broken: Vec<Broken>,
    /// The tiers that have a policy for the endpoint in this direction, as far as the search went.
    pub tiers: Vec<TierSteps>,
    /// The profiles, where no policy decided.
    pub profiles: Vec<Steps>,
}

/// A policy that nobody can evaluate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broken {
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
    pub policies: Vec<Steps>,
}

/// What happened in one policy or profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Steps {
    /// Its name.
    pub name: String,
    /// Its order in its tier; `None` is last, and what profiles have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<f64>,
    /// Whether it is only reported on.
    pub staged: bool,
    /// The rules that were asked, in order.
    pub rules: Vec<Step>,
}

/// One rule that was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Its index.
    pub rule: usize,
    /// What it does.
    pub action: String,
    /// The first term that the packet does not fit; `None`: it matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl Oracle {
    /// Tells what [`Oracle::judge`] does.
    pub fn explain(&self, from: &Party, to: &Party, packet: Packet) -> Story {
        let judgement = self.judge(from, to, packet);
        let side = |direction, local, peer| self.explain_side(direction, local, peer, packet);
        Story {
            from: from.to_string(),
            to: to.to_string(),
            packet: packet.to_string(),
            allowed: judgement.allowed(),
            egress: side(Direction::Egress, from, to),
            ingress: side(Direction::Ingress, to, from),
            staged: self.staged(from, to, packet).iter().map(ToString::to_string).collect(),
        }
    }

    /// Tells what one end says: `local`, of what it sends to `peer` or gets from it.
    pub fn explain_side(
        &self,
        direction: Direction,
        local: &Party,
        peer: &Party,
        packet: Packet,
    ) -> Side {
        let mut writer = Writer { direction, ..Writer::default() };
        // A pod that speaks to itself is not judged.
        let verdict = if super::is_same_pod(local, peer) {
            Verdict::from(Explanation::Itself)
        } else {
            self.side(direction, local, peer, packet, &mut writer)
        };
        self.told(&verdict, writer)
    }

    fn told(&self, verdict: &Verdict, mut writer: Writer) -> Side {
        writer.tiers.retain(|tier| !tier.policies.is_empty());
        let keys = match &verdict.why {
            Explanation::InvalidPolicies(keys) => keys.as_slice(),
            _ => &[],
        };
        let broken = self.policies.iter().filter(|policy| keys.contains(&policy.key));
        Side {
            allowed: verdict.allows(),
            why: verdict.to_string(),
            broken: broken
                .map(|policy| Broken {
                    policy: name(&policy.key),
                    reason: policy.broken.clone().unwrap_or_default(),
                })
                .collect(),
            tiers: writer.tiers,
            profiles: writer.profiles,
        }
    }
}

struct Writer {
    direction: Direction,
    tiers: Vec<TierSteps>,
    profiles: Vec<Steps>,
}

impl Default for Writer {
    fn default() -> Self {
        Self { direction: Direction::Ingress, tiers: Vec::new(), profiles: Vec::new() }
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
        let steps = Steps {
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
        self.profiles.push(Steps { name, order: None, staged: false, rules: Vec::new() });
    }

    fn rule(&mut self, rule: &Rule, mismatch: Option<Mismatch>) {
        let in_tier = self.tiers.last_mut().and_then(|tier| tier.policies.last_mut());
        let Some(steps) = self.profiles.last_mut().or(in_tier) else { return };
        steps.rules.push(Step {
            rule: rule.index,
            action: format!("{:?}", rule.action),
            failed: mismatch.map(|mismatch| term(rule, mismatch, self.direction)),
        });
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.allowed { "ALLOWED" } else { "DENIED" };
        writeln!(f, "{} -> {}, {}: {verdict}", self.from, self.to, self.packet)?;
        for (name, party, side) in
            [("egress", &self.from, &self.egress), ("ingress", &self.to, &self.ingress)]
        {
            writeln!(f, "\n{name} of {party}: {}", side.why)?;
            side.write(f, name)?;
        }
        if !self.staged.is_empty() {
            writeln!(f, "\nstaged, not enforced")?;
        }
        for staged in &self.staged {
            writeln!(f, "  {staged}")?;
        }
        Ok(())
    }
}

impl Side {
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

fn steps(f: &mut fmt::Formatter<'_>, indent: &str, direction: &str, steps: &[Step]) -> fmt::Result {
    for Step { rule, action, failed } in steps {
        write!(f, "{indent}{direction}[{rule}] {action}: ")?;
        match failed {
            Some(failed) => writeln!(f, "no match: {failed}")?,
            None => writeln!(f, "matches")?,
        }
    }
    Ok(())
}
