//! The slow, obvious judge: it evaluates the model directly, tier by tier, policy by policy, rule by rule, without
//! tables.
//!
//! From resolution and compilation it shares only the model, that is, the matching of one selector and the labels of a
//! member. The semantics are those of Kubernetes (API reference: NetworkPolicy, ClusterNetworkPolicy) and Calico
//! (Calico documentation: policy resources, host endpoints); `docs/policy-semantics.md` has them line by line.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::ControlFlow;

use ipnet::IpNet;

use crate::model::{
    Action, Decision, DefaultAction, Direction, Entity, Family, Hook, HostEndpoint, ICMP, ICMPV6,
    L4Header, LabelView, Model, NamedPort, Noted, ObjectName, Policy, PolicyKind, PolicyName,
    PortMatch, Protocol, Reason, Rule, RuleEnd, RuleName, ServiceEndpoints, Transport, Verdict,
    compare_policies,
};
use crate::resolve::{LocalName, Stage};
use crate::selector::Selector;

/// The reference judge for one cluster.
#[derive(Debug)]
pub struct Reference<'m> {
    model: &'m Model,
    /// For each address, the pods and host endpoints that have it.
    by_address: BTreeMap<IpAddr, Vec<EndpointName<'m>>>,
}

#[derive(Debug, Clone)]
enum EndpointName<'m> {
    Pod(&'m ObjectName),
    Host(&'m str),
}

/// A member that has an address of the packet.
struct Candidate<'a> {
    view: LabelView<'a>,
    named_ports: Vec<&'a NamedPort>,
}

/// The result of one policy.
enum PolicyEnd {
    /// No rule except `Log` rules matches.
    NoMatch,
    /// A rule of a staged policy matches. The rule is noted, and the evaluation continues with the next policy.
    Staged,
    /// A `Pass` rule matches, so the rest of the tier is skipped.
    Pass,
    /// This rule decides.
    Verdict(RuleName, Verdict),
}

/// For one peer, the results of all terms of some rules.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signature {
    terms: Vec<bool>,
    ports: Vec<BTreeSet<(Protocol, u16)>>,
}

/// The policies of one endpoint, at one stage and in one direction, in order.
pub type Policies<'m> = Vec<(&'m PolicyName, &'m Policy)>;

/// A packet with one local end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// The address of the local end.
    pub local: IpAddr,
    /// The address of the other end.
    pub peer: IpAddr,
    /// Its protocol and L4 header.
    pub transport: Transport,
}

impl<'m> Reference<'m> {
    /// Creates a judge for `model`.
    pub fn new(model: &'m Model) -> Self {
        let mut by_address: BTreeMap<IpAddr, Vec<EndpointName<'m>>> = BTreeMap::new();
        for (name, pod) in &model.endpoints {
            for address in &pod.addresses {
                by_address.entry(*address).or_default().push(EndpointName::Pod(name));
            }
        }
        for (name, host) in &model.host_endpoints {
            for address in &host.addresses {
                by_address.entry(*address).or_default().push(EndpointName::Host(name));
            }
        }
        Self { model, by_address }
    }

    pub(crate) fn model(&self) -> &'m Model {
        self.model
    }

    /// The policies that select an endpoint and apply at a stage and in a direction. `None` if the endpoint is not in
    /// the model.
    pub fn policies(
        &self,
        local: &LocalName,
        stage: Stage,
        direction: Direction,
    ) -> Option<Policies<'m>> {
        let mut policies: Policies<'m> = self
            .model
            .policies
            .iter()
            .map(|(name, policy)| (name, policy.as_ref()))
            .filter(|(name, policy)| {
                if self.host(local).is_some_and(|host| host.broken) {
                    // It is unknown which policies select the endpoint, so every global policy that may deny forwarded
                    // traffic counts.
                    return stage == Stage::Forward
                        && name.kind == PolicyKind::Global
                        && policy.may_deny_forwarded(direction);
                }
                let here = match (stage, policy.hook) {
                    (Stage::Pod | Stage::Host, Hook::Endpoint | Hook::Forward)
                    | (Stage::Forward, Hook::Forward)
                    | (Stage::Untracked, Hook::Untracked) => true,
                    (Stage::PreDnat, Hook::PreDnat) => direction == Direction::Ingress,
                    _ => false,
                };
                (policy.broken || (here && policy.rules(direction).is_some()))
                    && self.selects(policy, local)
            })
            .collect();
        if !self.exists(local) {
            return None;
        }
        policies.sort_by(|a, b| {
            let tiers = [a, b].map(|(_, policy)| self.model.tier_sort_key(&policy.tier));
            tiers[0].cmp(&tiers[1]).then_with(|| compare_policies(*a, *b))
        });
        Some(policies)
    }

    /// The decision about a packet at a pod. It is [`Reason::Unknown`] for a pod that is not in the model, or for a
    /// peer about which too little is known.
    pub fn judge(&self, pod: &ObjectName, direction: Direction, packet: &Packet) -> Decision {
        match self.policies(pod, Stage::Pod, direction) {
            Some(policies) => self.judge_by(&policies, pod, Stage::Pod, direction, packet),
            None => Reason::Unknown(direction).into(),
        }
    }

    /// Like [`judge`](Self::judge), at any stage, with the endpoint's [policies](Self::policies) given.
    pub fn judge_by(
        &self,
        policies: &Policies<'m>,
        local: &LocalName,
        stage: Stage,
        direction: Direction,
        packet: &Packet,
    ) -> Decision {
        if [packet.peer, packet.local].iter().any(|end| self.model.unknown.contains(end)) {
            return Reason::Unknown(direction).into();
        }
        let own = self.candidates(packet.local, Some((local, stage)));
        let peer = self.candidates(packet.peer, None);
        let evaluation = Evaluation { reference: self, direction, packet, own: &own, peer: &peer };
        let mut noted = Vec::new();
        let reason = self.decide(policies, local, stage, &evaluation, &mut noted);
        Decision { reason, noted }
    }

    /// For a peer, the results of all terms of the policies' rules, independent of the packet's ports. The law: these
    /// policies make the same decisions for peers with equal signatures.
    pub fn signature(
        &self,
        policies: &Policies<'m>,
        local: &LocalName,
        stage: Stage,
        direction: Direction,
        peer: IpAddr,
    ) -> Signature {
        let candidates = self.candidates(peer, None);
        let mut signature = Signature { terms: Vec::new(), ports: Vec::new() };
        signature.terms.push(self.model.unknown.contains(&peer));
        if matches!(stage, Stage::Host | Stage::PreDnat | Stage::Untracked) {
            let failsafe = self.model.failsafe.ports[direction as usize].iter();
            signature
                .terms
                .extend(failsafe.map(|(_, _, net)| net.is_none_or(|net| net.contains(&peer))));
        }
        let host = self.host(local).filter(|_| stage == Stage::Host);
        let profiles = host.into_iter().flat_map(|host| &host.profiles);
        let profiles = profiles.filter_map(|name| self.model.profiles.get(name));
        let rules = policies.iter().filter_map(|(_, policy)| policy.rules(direction));
        let rules = rules.chain(profiles.map(|profile| profile.rules(direction))).flatten();
        for rule in rules {
            let (_, end) = rule.ends(direction);
            self.terms_of(end, peer, &candidates, direction, &mut signature);
        }
        signature
    }

    fn terms_of(
        &self,
        end: &RuleEnd,
        peer: IpAddr,
        candidates: &[Candidate<'_>],
        direction: Direction,
        signature: &mut Signature,
    ) {
        let named = |ports: &[PortMatch], selector: Option<&Selector>| {
            let meant: Vec<&Candidate<'_>> = candidates
                .iter()
                .filter(|it| selector.is_none_or(|selector| selector.matches(&it.view)))
                .collect();
            let names = ports.iter().filter_map(|port| match port {
                PortMatch::Named(name) => Some(name),
                PortMatch::Range { .. } => None,
            });
            let numbers = names.map(|name| -> BTreeSet<(Protocol, u16)> {
                let all = meant.iter().flat_map(|it| &it.named_ports);
                all.filter(|port| port.name == *name).map(|p| (p.protocol, p.port)).collect()
            });
            numbers.collect::<Vec<_>>()
        };
        signature.ports.extend(named(&end.not_ports, None));
        for entity in end.entities.iter().flatten() {
            let matches = |selector: &Selector| {
                candidates.iter().any(|candidate| selector.matches(&candidate.view))
            };
            signature.terms.extend([
                entity.selector.as_ref().is_none_or(matches),
                entity.not_selector.as_ref().is_some_and(matches),
                within(peer, &entity.nets),
                within(peer, &entity.not_nets),
            ]);
            signature.ports.extend(named(&end.ports, entity.selector.as_ref()));
            if let Some(service) = &entity.service {
                let endpoints =
                    self.model.services.get(service).into_iter().flat_map(|it| it.iter());
                let serving: Vec<_> = endpoints.filter(|it| it.addresses.contains(&peer)).collect();
                signature.terms.push(!serving.is_empty());
                if direction == Direction::Egress {
                    let ports = serving.iter().flat_map(|some| &some.ports);
                    signature.ports.push(ports.copied().collect());
                }
            }
        }
        if end.entities.is_none() {
            signature.ports.extend(named(&end.ports, None));
        }
    }

    fn decide(
        &self,
        policies: &Policies<'m>,
        local: &LocalName,
        stage: Stage,
        evaluation: &Evaluation<'_>,
        noted: &mut Vec<Noted>,
    ) -> Reason {
        let direction = evaluation.direction;
        if matches!(stage, Stage::Host | Stage::PreDnat | Stage::Untracked)
            && self.is_failsafe(direction, evaluation.packet)
        {
            return Reason::Failsafe(direction);
        }
        if self.host(local).is_some_and(|host| host.broken) {
            return if stage == Stage::Host || !policies.is_empty() {
                Reason::BrokenHost(direction, local.name.clone())
            } else {
                Reason::NoHostPolicy(direction)
            };
        }
        let broken = policies.iter().find(|(name, policy)| policy.broken && !name.kind.staged());
        if let Some((name, _)) = broken {
            return Reason::Broken(direction, (*name).clone());
        }
        let sound: Vec<_> = policies.iter().filter(|(_, policy)| !policy.broken).collect();
        let mut first_enforced = None;
        for tier in sound.chunk_by(|(_, one), (_, other)| one.tier == other.tier) {
            match self.decide_tier(tier, stage, evaluation, noted) {
                ControlFlow::Break(reason) => return reason,
                ControlFlow::Continue(first) => first_enforced = first_enforced.or(first),
            }
        }
        match stage {
            Stage::Pod => Reason::NotIsolated(direction),
            Stage::Forward => match first_enforced {
                Some(first) => Reason::Isolated(direction, first.clone()),
                None => Reason::NoHostPolicy(direction),
            },
            Stage::PreDnat | Stage::Untracked => Reason::NoHostPolicy(direction),
            Stage::Host => self.by_profiles(local, evaluation),
        }
    }

    /// Evaluates the policies of one tier in order. Returns `Break` with the reason if the tier decides. Otherwise the
    /// next tier may decide, and the result is the first enforced policy that was evaluated.
    fn decide_tier<'p>(
        &self,
        policies: &[&(&'p PolicyName, &Policy)],
        stage: Stage,
        evaluation: &Evaluation<'_>,
        noted: &mut Vec<Noted>,
    ) -> ControlFlow<Reason, Option<&'p PolicyName>> {
        let direction = evaluation.direction;
        let denies = matches!(stage, Stage::Pod | Stage::Host | Stage::Forward)
            && policies.first().is_some_and(|(_, policy)| {
                self.model.tier(&policy.tier).default_action == DefaultAction::Deny
            });
        let all_staged = policies.iter().all(|(name, _)| name.kind.staged());
        let mut first = None;
        for (name, policy) in policies {
            if !name.kind.staged() {
                first.get_or_insert(*name);
            }
            match decide_policy(name, policy, evaluation, noted) {
                PolicyEnd::Verdict(rule, verdict) => {
                    return ControlFlow::Break(Reason::Rule(rule, verdict));
                }
                PolicyEnd::Pass => return ControlFlow::Continue(first),
                PolicyEnd::NoMatch if all_staged && denies => {
                    noted.push(Noted::TierEnd(direction, (*name).clone().into()));
                }
                PolicyEnd::NoMatch | PolicyEnd::Staged => {}
            }
        }
        match first {
            Some(first) if denies => ControlFlow::Break(Reason::Isolated(direction, first.clone())),
            _ => ControlFlow::Continue(first),
        }
    }

    fn by_profiles(&self, local: &LocalName, evaluation: &Evaluation<'_>) -> Reason {
        let direction = evaluation.direction;
        let host = self.model.host_endpoints.get(&local.name);
        for name in host.into_iter().flat_map(|host| &host.profiles) {
            let Some(profile) = self.model.profiles.get(name) else {
                return Reason::MissingProfile(direction, name.clone());
            };
            let mut rules = profile.rules(direction).iter().filter(|r| r.action != Action::Log);
            if let Some(rule) = rules.find(|rule| evaluation.rule_matches(rule)) {
                let verdict = match rule.action {
                    Action::Allow => Verdict::Allow,
                    _ => Verdict::Deny,
                };
                return Reason::Profile(direction, name.clone(), rule.index, verdict);
            }
        }
        Reason::NoProfile(direction)
    }

    fn is_failsafe(&self, direction: Direction, packet: &Packet) -> bool {
        let L4Header::Ports { destination, .. } = packet.transport.l4 else { return false };
        self.model.failsafe.ports[direction as usize].iter().any(|(protocol, port, net)| {
            protocol.number() == packet.transport.protocol
                && *port == destination
                && net.is_none_or(|net| net.contains(&packet.peer))
        })
    }

    fn exists(&self, local: &LocalName) -> bool {
        self.model.endpoints.contains_key(local) || self.host(local).is_some()
    }

    fn host(&self, local: &LocalName) -> Option<&'m HostEndpoint> {
        let host = self.model.host_endpoints.get(&local.name);
        host.filter(|_| local.namespace.is_empty()).map(AsRef::as_ref)
    }

    fn selects(&self, policy: &Policy, local: &LocalName) -> bool {
        if let Some((name, pod)) = self.model.endpoints.get_key_value(local) {
            return policy.selector.matches(&self.model.pod_view(name, pod));
        }
        self.host(local).is_some_and(|host| policy.selector.matches(&Model::host_view(host)))
    }

    /// The members that have an address. At the local end of a pod's packet, the only pod is the local pod itself, even
    /// if another pod has the address too.
    fn candidates(
        &self,
        address: IpAddr,
        local: Option<(&LocalName, Stage)>,
    ) -> Vec<Candidate<'_>> {
        let pod = |name: &'m ObjectName| {
            self.model.endpoints.get(name).map(|pod| Candidate {
                view: self.model.pod_view(name, pod),
                named_ports: pod.named_ports.iter().collect(),
            })
        };
        let mut candidates: Vec<Candidate<'_>> = if let Some((name, Stage::Pod)) = local {
            let own = self.model.endpoints.get_key_value(name);
            own.and_then(|(name, _)| pod(name)).into_iter().collect()
        } else {
            let endpoints = self.by_address.get(&address).into_iter().flatten();
            endpoints
                .filter_map(|endpoint| match endpoint {
                    EndpointName::Pod(name) => pod(name),
                    EndpointName::Host(name) => {
                        self.model.host_endpoints.get(*name).map(|host| Candidate {
                            view: Model::host_view(host),
                            named_ports: host.named_ports.iter().collect(),
                        })
                    }
                })
                .collect()
        };
        for (name, set) in &self.model.network_sets {
            if set.nets.iter().any(|net| net.contains(&address)) {
                let view = self.model.set_view(name, set);
                candidates.push(Candidate { view, named_ports: Vec::new() });
            }
        }
        candidates
    }
}

/// A packet at an endpoint, and the members that have its two addresses.
struct Evaluation<'a> {
    reference: &'a Reference<'a>,
    direction: Direction,
    packet: &'a Packet,
    own: &'a [Candidate<'a>],
    peer: &'a [Candidate<'a>],
}

impl Evaluation<'_> {
    fn rule_matches(&self, rule: &Rule) -> bool {
        let Transport { protocol, l4 } = self.packet.transport;
        let family = Family::from_address(self.packet.peer);
        if rule.family.is_some_and(|only| only != family)
            || rule.protocol.is_some_and(|only| only != protocol)
            || rule.not_protocol == Some(protocol)
            || (rule.protocol == Some(ICMP) && family == Family::V6)
            || (rule.protocol == Some(ICMPV6) && family == Family::V4)
        {
            return false;
        }
        // ICMP of the other family (such as ICMP over IPv6) is treated like any protocol without types and codes.
        let is_icmp = protocol == if family == Family::V4 { ICMP } else { ICMPV6 };
        if let Some(wanted) = rule.icmp {
            let covered = match l4 {
                L4Header::Icmp { kind, code } => wanted.covers(kind, code),
                _ => wanted.kind.is_none(),
            };
            if !is_icmp || !covered {
                return false;
            }
        }
        if let (Some(unwanted), true) = (rule.not_icmp, is_icmp) {
            match l4 {
                L4Header::Icmp { kind, code } if !unwanted.covers(kind, code) => {}
                // A packet that does not show its type may have the excluded type, so it does not match.
                _ => return false,
            }
        }
        let (local, peer) = rule.ends(self.direction);
        let (source, destination) = match (Protocol::from_number(protocol), l4) {
            (Some(of), L4Header::Ports { source, destination }) => {
                (Some((of, source)), Some((of, destination)))
            }
            _ => (None, None),
        };
        let (own_port, peer_port) = match self.direction {
            Direction::Ingress => (destination, source),
            Direction::Egress => (source, destination),
        };
        self.end_matches(local, self.packet.local, self.own, own_port, false)
            && self.end_matches(
                peer,
                self.packet.peer,
                self.peer,
                peer_port,
                self.direction == Direction::Egress,
            )
    }

    fn end_matches(
        &self,
        end: &RuleEnd,
        address: IpAddr,
        candidates: &[Candidate<'_>],
        port: Option<(Protocol, u16)>,
        service_ports: bool,
    ) -> bool {
        if !end.not_ports.is_empty() {
            let excepted = |port| {
                end.not_ports.iter().any(|wanted| port_matches(wanted, port, candidates, |_| true))
            };
            // The port of a later fragment is unknown, so it may be an excluded one. A packet of a protocol without
            // ports has no port that could be excluded.
            let has_ports = Protocol::from_number(self.packet.transport.protocol).is_some();
            if has_ports && port.is_none_or(excepted) {
                return false;
            }
        }
        let entity_matches = |entity: &Entity| {
            let meant = |candidate: &Candidate<'_>| {
                entity.selector.as_ref().is_none_or(|selector| selector.matches(&candidate.view))
            };
            let port_fits = end.ports.is_empty()
                || port.is_some_and(|port| {
                    end.ports.iter().any(|wanted| port_matches(wanted, port, candidates, meant))
                });
            let excepted = entity.not_selector.as_ref().is_some_and(|selector| {
                candidates.iter().any(|candidate| selector.matches(&candidate.view))
            });
            port_fits
                && !excepted
                && (entity.selector.is_none() || candidates.iter().any(meant))
                && entity.allows_family(Family::from_address(address))
                && (entity.nets.is_empty() || within(address, &entity.nets))
                && !within(address, &entity.not_nets)
                && self.service_matches(entity, address, port, service_ports)
        };
        match &end.entities {
            None => entity_matches(&Entity::default()),
            Some(entities) => entities.iter().any(entity_matches),
        }
    }

    fn service_matches(
        &self,
        entity: &Entity,
        address: IpAddr,
        port: Option<(Protocol, u16)>,
        with_ports: bool,
    ) -> bool {
        let Some(service) = &entity.service else { return true };
        let serves = |some: &ServiceEndpoints| {
            some.addresses.contains(&address)
                && (!with_ports || port.is_some_and(|port| some.ports.contains(&port)))
        };
        let endpoints = self.reference.model.services.get(service);
        endpoints.is_some_and(|endpoints| endpoints.iter().any(serves))
    }
}

/// Evaluates the rules of a policy in order, up to the first that matches and is not a `Log` rule. Notes the matching
/// rules that give no verdict.
fn decide_policy(
    name: &PolicyName,
    policy: &Policy,
    evaluation: &Evaluation<'_>,
    noted: &mut Vec<Noted>,
) -> PolicyEnd {
    let direction = evaluation.direction;
    for rule in policy.rules(direction).unwrap_or_default() {
        if !evaluation.rule_matches(rule) {
            continue;
        }
        let index = rule.index;
        let rule_name = RuleName { policy: name.clone().into(), direction, index };
        match rule.action {
            Action::Log => noted.push(Noted::Rule(rule_name, Action::Log)),
            action if name.kind.staged() => {
                noted.push(Noted::Rule(rule_name, action));
                return PolicyEnd::Staged;
            }
            Action::Pass => {
                noted.push(Noted::Rule(rule_name, Action::Pass));
                return PolicyEnd::Pass;
            }
            Action::Allow => return PolicyEnd::Verdict(rule_name, Verdict::Allow),
            Action::Deny => return PolicyEnd::Verdict(rule_name, Verdict::Deny),
        }
    }
    PolicyEnd::NoMatch
}

fn within<'n>(address: IpAddr, nets: impl IntoIterator<Item = &'n IpNet>) -> bool {
    nets.into_iter().any(|net| net.contains(&address))
}

fn port_matches(
    wanted: &PortMatch,
    (protocol, number): (Protocol, u16),
    candidates: &[Candidate<'_>],
    meant: impl Fn(&Candidate<'_>) -> bool,
) -> bool {
    match wanted {
        PortMatch::Range { first, last } => (*first..=*last).contains(&number),
        PortMatch::Named(name) => {
            candidates.iter().filter(|candidate| meant(candidate)).any(|it| {
                it.named_ports.iter().any(|named| {
                    named.name == *name && named.protocol == protocol && named.port == number
                })
            })
        }
    }
}
