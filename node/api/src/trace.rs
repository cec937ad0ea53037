//! The steps by which a connection passes or not: the policies that were evaluated, in order, and the first failed term of
//! each rule that did not match.
//!
//! The oracle writes traces; the agent's socket, `manx policy explain` and the proof of tables carry them. They consist
//! only of text and numbers, so that a client can read them without the oracle.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The steps of a connection's verdict, from its source to its destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// The source.
    pub from: String,
    /// The destination.
    pub to: String,
    /// The packet.
    pub packet: String,
    /// Whether the connection passes by the policy that is enforced.
    pub allowed: bool,
    /// Whether the connection would pass if all policy were enforced. Host endpoint policy is enforced only in part.
    pub intended: bool,
    /// The reason why Manx has no route for the connection. Absent if there is a route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_route: Option<String>,
    /// The steps at the source.
    pub egress: SideTrace,
    /// The interface by which the connection leaves the source's node, if a host endpoint may be there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaving: Option<InterfaceTrace>,
    /// The interface by which the connection arrives at the destination's node, if a host endpoint may be there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arriving: Option<InterfaceTrace>,
    /// The steps at the destination.
    pub ingress: SideTrace,
    /// The verdicts that staged policies would have given.
    pub staged: Vec<String>,
}

/// The steps and the verdict of one policy direction: egress at the source, ingress at the destination, or one stage at
/// an interface.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SideTrace {
    /// Whether the policy here allows the connection.
    pub allowed: bool,
    /// The rule, or the reason, that decided.
    pub why: String,
    /// The rule that decided, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<DecidingRule>,
    /// The tier whose end decided, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier_end: Option<String>,
    /// The policies that are not valid and therefore deny the endpoint everything.
    pub broken: Vec<UnusablePolicy>,
    /// The tiers with a policy for the endpoint in this direction, up to the one that decided.
    pub tiers: Vec<TierSteps>,
    /// The profiles, if no policy decided.
    pub profiles: Vec<PolicySteps>,
}

/// The rule of a policy or profile that decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecidingRule {
    /// The kind of its object.
    pub kind: String,
    /// The API version of the rule's object.
    pub api_version: String,
    /// The object's namespace; empty if it has none.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The list that contains the rule: `ingress` or `egress`.
    pub direction: String,
    /// Its index in the list.
    pub index: usize,
    /// The place of the rule's object: file, line and column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

/// A policy that cannot be evaluated, because it is not valid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnusablePolicy {
    /// Its name.
    pub policy: String,
    /// The reason why the policy is not valid.
    pub reason: String,
}

/// The steps in one tier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TierSteps {
    /// Its name.
    pub name: String,
    /// Its order; `None` is last.
    pub order: Option<f64>,
    /// `Deny` or `Pass`.
    pub default_action: String,
    /// The evaluated policies, in order.
    pub policies: Vec<PolicySteps>,
}

/// The steps in one policy or profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PolicySteps {
    /// Its name.
    pub name: String,
    /// The policy's order in its tier; `None` is last. Profiles have no order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<f64>,
    /// Whether the policy is staged. The verdict of a staged policy is only reported.
    pub staged: bool,
    /// The place where the policy is written: file, line and column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// The evaluated rules, in order.
    pub rules: Vec<RuleStep>,
}

/// A rule that was evaluated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleStep {
    /// Its index in its list.
    pub rule: usize,
    /// Its action.
    pub action: String,
    /// The first term that the packet does not fit; `None` if the rule matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// The steps at an interface of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InterfaceTrace {
    /// The node.
    pub node: String,
    /// The interface.
    pub interface: String,
    /// The host endpoint whose policy applies to the interface, if there is one.
    pub host_endpoint: Option<String>,
    /// Whether the connection passes by the policy that is enforced at the interface.
    pub allowed: bool,
    /// Whether the connection would pass if all policy of the host endpoint were enforced.
    pub intended: bool,
    /// The places where policy applies to the connection, in order.
    pub stages: Vec<StageTrace>,
}

/// The steps at one stage: a place on the path through an interface where policy applies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageTrace {
    /// `doNotTrack`, `preDNAT`, `applyOnForward` (forwarded traffic) or `normal` (traffic of the node's own processes).
    pub stage: String,
    /// Whether a node enforces the verdict of this stage.
    pub enforced: bool,
    /// Whether this stage decides. Otherwise the next stage follows.
    pub decides: bool,
    /// The steps and the result.
    #[serde(flatten)]
    pub side: SideTrace,
}

impl Trace {
    /// The steps at every place on the path.
    pub fn sides_mut(&mut self) -> impl Iterator<Item = &mut SideTrace> {
        let interfaces = [&mut self.leaving, &mut self.arriving].into_iter().flatten();
        let stages = interfaces.flat_map(|interface| &mut interface.stages);
        [&mut self.egress, &mut self.ingress].into_iter().chain(stages.map(|stage| &mut stage.side))
    }

    /// This trace, for a connection without a route. If `counts` is true, the connection is denied; otherwise the trace
    /// only reports the missing route.
    #[must_use]
    pub fn without_route(self, why: String, counts: bool) -> Self {
        let [allowed, intended] = [self.allowed, self.intended].map(|passes| passes && !counts);
        Self { allowed, intended, no_route: Some(why), ..self }
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
            writeln!(f, "no route: {why}")?;
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
    /// Writes the steps; rules are numbered by their index in the list of `direction`.
    pub fn write(&self, f: &mut fmt::Formatter<'_>, direction: &str) -> fmt::Result {
        for broken in &self.broken {
            writeln!(f, "  {}: {}", broken.policy, broken.reason)?;
        }
        for tier in &self.tiers {
            let order = order(tier.order);
            writeln!(f, "  tier {}, order {order}, then {}", tier.name, tier.default_action)?;
            for policy in &tier.policies {
                let order = self::order(policy.order);
                let staged = if policy.staged { ", staged" } else { "" };
                let place = policy.place.as_ref();
                let place = place.map(|place| format!(" ({place})")).unwrap_or_default();
                writeln!(f, "    {}, order {order}{staged}{place}", policy.name)?;
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

impl InterfaceTrace {
    /// Writes each stage and its steps.
    fn write(&self, f: &mut fmt::Formatter<'_>, direction: &str) -> fmt::Result {
        let Self { node, interface, host_endpoint, stages, .. } = self;
        for StageTrace { stage, enforced, side, .. } in stages {
            write!(f, "\n{direction} of node {node} by {interface}")?;
            if let Some(host) = host_endpoint {
                write!(f, ", host endpoint {host}")?;
            }
            let enforced = if *enforced { "" } else { ", NOT ENFORCED" };
            writeln!(f, ", {stage}{enforced}: {}", side.why)?;
            side.write(f, direction)?;
        }
        Ok(())
    }
}
