//! The oracle as a judge of compiled tables: its boundaries and its results, converted to the
//! model's types.

use std::collections::BTreeSet;
use std::net::IpAddr;

use manx_policy_compiler::check::{Atoms, Bounds, Witnesses};
use manx_policy_compiler::check::{Depth, Expected, Judge};
use manx_policy_compiler::model::{
    Direction, L4Header, Noted, Reason, RuleName, Transport, Verdict,
};
use manx_policy_compiler::resolve::{LocalName, Stage};

use manx_calculation::import::policy_name;
use manx_objects::object::Kind;
use manx_oracle::{Oracle, Packet, Place, Staged, VerdictReason};

/// Judges packets from the objects alone.
pub(super) struct ByObjects<'a> {
    pub(super) oracle: &'a Oracle,
    /// At [`Depth::Every`], members are distinguished by every property on which a rule could
    /// depend, even if no rule uses it.
    depth: Depth,
}

impl<'a> ByObjects<'a> {
    pub(super) const fn new(oracle: &'a Oracle, depth: Depth) -> Self {
        Self { oracle, depth }
    }
}

/// An endpoint, as the oracle and the model name it.
pub(super) struct JudgedPoint<'a> {
    stage: Stage,
    direction: Direction,
    seen: manx_oracle::EnforcementPoint<'a>,
}

impl<'a> Judge for ByObjects<'a> {
    type LocalEnd = JudgedPoint<'a>;
    type Key = manx_oracle::Key;
    type AddressClass = manx_oracle::AddressClass;

    fn local_end(
        &self,
        endpoint: &LocalName,
        stage: Stage,
        direction: Direction,
    ) -> JudgedPoint<'a> {
        let place = match stage {
            Stage::Pod => Place::Pod,
            Stage::Host => Place::Host,
            Stage::Forward => Place::Forward,
            Stage::PreDnat => Place::PreDnat,
            Stage::Untracked => Place::Untracked,
        };
        let LocalName { namespace, name } = endpoint;
        let seen = self.oracle.end(namespace, name, place, side(direction));
        JudgedPoint { stage, direction, seen }
    }

    /// Forwarded traffic of a host may have any address at either end.
    fn addresses(&self, end: &Self::LocalEnd, peers: &Witnesses) -> BTreeSet<IpAddr> {
        if end.stage == Stage::Forward {
            peers.iter().collect()
        } else {
            self.oracle.addresses(&end.seen)
        }
    }

    fn atoms(&self, ends: &[&Self::LocalEnd]) -> Atoms {
        let mut atoms = Atoms::default();
        let occupants = match self.depth {
            Depth::Every => self.oracle.all_occupants(),
            Depth::Distinct => {
                let ends: Vec<_> = ends.iter().map(|end| &end.seen).collect();
                self.oracle.occupants(&ends)
            }
        };
        for (net, number) in occupants {
            atoms.member(net, number);
        }
        for net in ends.iter().flat_map(|end| self.oracle.nets(&end.seen)) {
            atoms.bound(net);
        }
        atoms
    }

    fn bounds(&self, end: &Self::LocalEnd) -> Bounds {
        let limits = self.oracle.limits(&end.seen);
        let mut bounds = Bounds::default();
        limits.protocols.into_iter().for_each(|number| bounds.protocol(number));
        limits.icmp.into_iter().for_each(|(kind, code)| bounds.icmp(kind, code));
        limits.sources.into_iter().for_each(|(first, last)| bounds.sources(first, last));
        limits.destinations.into_iter().for_each(|(first, last)| bounds.destinations(first, last));
        bounds
    }

    fn key(&self, end: &Self::LocalEnd, local: IpAddr) -> manx_oracle::Key {
        self.oracle.key(&end.seen, local)
    }

    fn address_class(&self, end: &Self::LocalEnd, peer: IpAddr) -> manx_oracle::AddressClass {
        self.oracle.address_class(&end.seen, peer)
    }

    fn judge(
        &self,
        end: &Self::LocalEnd,
        local: IpAddr,
        peer: IpAddr,
        transports: &[Transport],
    ) -> Vec<Expected> {
        let packets = transports.iter().map(|transport| packet(*transport));
        let verdicts = self.oracle.judge_end(&end.seen, local, peer, packets);
        verdicts.into_iter().map(|(verdict, staged)| self.expected(end, verdict, &staged)).collect()
    }
}

impl ByObjects<'_> {
    fn expected(
        &self,
        end: &JudgedPoint<'_>,
        verdict: manx_oracle::Verdict,
        staged: &[Staged],
    ) -> Expected {
        let reasons = self.reasons(end, verdict.why);
        let through = verdict.through.iter().filter(|rule| rule.policy.kind != Kind::Profile);
        let noted = |one: &Staged| match one {
            Staged::Rule(rule, does) => Some(Noted::Rule(rule_name(rule)?, *does)),
            Staged::TierEnd(side, policy) => {
                Some(Noted::TierEnd(direction(*side), policy_name(policy)?.into()))
            }
        };
        Expected::Among {
            reasons,
            through: through.filter_map(rule_name).collect(),
            staged: staged.iter().filter_map(noted).collect(),
        }
    }

    /// Returns the reasons in the model's types. Returns no reason if tables cannot express it.
    fn reasons(&self, end: &JudgedPoint<'_>, why: VerdictReason) -> Vec<Reason> {
        let direction = end.direction;
        let one = match why {
            VerdictReason::DefaultProfile(_) if end.stage == Stage::Pod => {
                Some(Reason::NotIsolated(direction))
            }
            VerdictReason::DefaultProfile(profile) => {
                Some(Reason::Profile(direction, profile, 0, Verdict::Allow))
            }
            VerdictReason::NoEndpoint | VerdictReason::InvalidPeer => {
                Some(Reason::Unknown(direction))
            }
            VerdictReason::InvalidPolicies(policies) => {
                let named = policies.iter().filter_map(policy_name);
                return named.map(|name| Reason::Broken(direction, name)).collect();
            }
            VerdictReason::InvalidHostEndpoints(hosts) => {
                return hosts.into_iter().map(|it| Reason::BrokenHost(direction, it)).collect();
            }
            VerdictReason::Rule { rule, allowed } => {
                let verdict = if allowed { Verdict::Allow } else { Verdict::Deny };
                if rule.policy.kind == Kind::Profile {
                    let index = rule.index as u32;
                    Some(Reason::Profile(direction, rule.policy.name, index, verdict))
                } else {
                    rule_name(&rule).map(|rule| Reason::Rule(rule, verdict))
                }
            }
            VerdictReason::TierEnd { policies, .. } => {
                let first = policies.first().and_then(policy_name);
                first.map(|first| Reason::Isolated(direction, first))
            }
            VerdictReason::NotForwarded => {
                let first = self.oracle.first_asked(&end.seen).and_then(policy_name);
                first.map(|first| Reason::Isolated(direction, first))
            }
            VerdictReason::MissingProfile(profile) => {
                Some(Reason::MissingProfile(direction, profile))
            }
            VerdictReason::NoProfile => Some(Reason::NoProfile(direction)),
            VerdictReason::Failsafe => Some(Reason::Failsafe(direction)),
            VerdictReason::NoForwardPolicy => Some(Reason::NoHostPolicy(direction)),
            VerdictReason::NoPod
            | VerdictReason::Itself
            | VerdictReason::OwnNode
            | VerdictReason::EndpointToHost { .. }
            | VerdictReason::NoHostEndpoint => None,
        };
        one.into_iter().collect()
    }
}

/// Converts the model's direction to the oracle's.
pub(super) const fn side(direction: Direction) -> manx_oracle::Direction {
    match direction {
        Direction::Ingress => manx_oracle::Direction::Ingress,
        Direction::Egress => manx_oracle::Direction::Egress,
    }
}

/// Converts the oracle's direction to the model's.
const fn direction(side: manx_oracle::Direction) -> Direction {
    match side {
        manx_oracle::Direction::Ingress => Direction::Ingress,
        manx_oracle::Direction::Egress => Direction::Egress,
    }
}

/// Converts the model's packet to the oracle's.
pub(super) const fn packet(transport: Transport) -> Packet {
    let l4 = match transport.l4 {
        L4Header::Nothing => manx_oracle::L4Header::Nothing,
        L4Header::Ports { source, destination } => {
            manx_oracle::L4Header::Ports { source, destination }
        }
        L4Header::Icmp { kind, code } => manx_oracle::L4Header::Icmp { kind, code },
    };
    Packet { protocol: transport.protocol, l4 }
}

fn rule_name(rule: &manx_oracle::RuleName) -> Option<RuleName> {
    let policy = policy_name(&rule.policy)?.into();
    let index = u32::try_from(rule.index).ok()?;
    Some(RuleName { policy, direction: direction(rule.direction), index })
}
