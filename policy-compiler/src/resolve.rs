//! Which policies speak for a local endpoint, and what they ask of the two ends of a packet.
//!
//! A *list* is the policies that select an endpoint at one [`Stage`] and in one direction, tier by tier, with what happens
//! where no rule decides: [`Steps`] in the order in which they are judged. All that a list asks of an address is a
//! [`Predicate`] or, where the answer is a set of ports, a [`Question`]. Lists are interned: endpoints that the same policies
//! select share one. Resolution looks at no address, of the local end or of a peer; see [`compile`](crate::compile).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use ahash::{AHashMap, AHashSet};
use ipnet::IpNet;

use crate::model::{
    Action, DefaultAction, Direction, End, Entity, Family, Hook, IcmpMatch, Model, NAMESPACE,
    Noted, ObjectName, Policy, PolicyKind, PolicyName, PortMatch, Protocol, Reason, Rule, RuleName,
    Verdict,
};
use crate::selector::{LabelSource, Selector};

/// Where on a packet's way an endpoint's policies are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// At a pod.
    Pod,
    /// At a host endpoint, traffic of the host's own processes.
    Host,
    /// At a host endpoint, forwarded traffic.
    Forward,
    /// At a host endpoint, before destination NAT.
    PreDnat,
    /// At a host endpoint, before connection tracking.
    Untracked,
}

impl Stage {
    /// Those of a host endpoint, in the order in which a packet that arrives meets them.
    pub const OF_HOST: [Self; 4] = [Self::Untracked, Self::PreDnat, Self::Forward, Self::Host];

    fn asks(self, hook: Hook, direction: Direction) -> bool {
        match self {
            Self::Pod | Self::Host => matches!(hook, Hook::Endpoint | Hook::Forward),
            Self::Forward => hook == Hook::Forward,
            Self::PreDnat => hook == Hook::PreDnat && direction == Direction::Ingress,
            Self::Untracked => hook == Hook::Untracked,
        }
    }

    /// Whether a tier's default action ends the search (Calico: not before connection tracking and NAT).
    fn ends_tiers(self) -> bool {
        matches!(self, Self::Pod | Self::Host | Self::Forward)
    }

    /// Whether Calico's failsafe ports come first.
    fn failsafe(self) -> bool {
        matches!(self, Self::Host | Self::PreDnat | Self::Untracked)
    }
}

/// Something that is true or false of an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Predicate {
    /// It is of this family.
    Family(Family),
    /// Some member that has it matches.
    Members(Selector),
    /// It is in one of these.
    Nets(BTreeSet<IpNet>),
    /// It is an endpoint of the service.
    Service(ObjectName),
    /// Some member that has it matches (without a selector: whichever) and gives a port name this number.
    NamesPort {
        /// Which members.
        selector: Option<Selector>,
        /// The name.
        name: String,
        /// The protocol.
        protocol: Protocol,
        /// The number.
        port: u16,
    },
    /// It is an endpoint of the service with this port; `None` is every port of the protocol.
    ServicePort {
        /// The service.
        service: ObjectName,
        /// The protocol.
        protocol: Protocol,
        /// The number.
        port: Option<u16>,
    },
}

impl fmt::Display for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Family(Family::V4) => f.write_str("IPv4"),
            Self::Family(Family::V6) => f.write_str("IPv6"),
            Self::Members(selector) => write!(f, "members {selector}"),
            Self::Nets(nets) => {
                let nets: Vec<String> = nets.iter().map(ToString::to_string).collect();
                write!(f, "in {}", nets.join(", "))
            }
            Self::Service(service) => write!(f, "endpoints of service {service}"),
            Self::NamesPort { selector: None, name, protocol, port } => {
                write!(f, "members whose {name} is {protocol} {port}")
            }
            Self::NamesPort { selector: Some(selector), name, protocol, port } => {
                write!(f, "members {selector} whose {name} is {protocol} {port}")
            }
            Self::ServicePort { service, protocol, port: Some(port) } => {
                write!(f, "endpoints of service {service} with {protocol} {port}")
            }
            Self::ServicePort { service, protocol, port: None } => {
                write!(f, "endpoints of service {service} with every {protocol} port")
            }
        }
    }
}

/// Index of a predicate; the two families are the first.
pub type PredicateId = u32;

/// What is asked of an address whose answer is a set of protocols and ports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Question {
    /// Which numbers do the members that match give this name?
    Named {
        /// Which members; `None` is whichever.
        selector: Option<Selector>,
        /// The name.
        name: String,
    },
    /// Which ports has the address as an endpoint of this service?
    Service(ObjectName),
}

/// Index of a question in [`Resolved::questions`].
pub type QuestionId = u32;

/// Ports as a rule names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ports {
    /// Both ends included.
    Range(u16, u16),
    /// Those that answer a question about the end's address.
    Answer(QuestionId),
}

/// An [`Entity`] as predicates: all of `wanted` hold, none of `unwanted`, and the port, where `ports` is not empty, is one
/// of these.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ResolvedEntity {
    /// True of the address.
    pub wanted: Vec<PredicateId>,
    /// False of it.
    pub unwanted: Vec<PredicateId>,
    /// The end's port is one of these; `None` is every packet.
    pub ports: Option<Vec<Ports>>,
}

/// An [`End`] as predicates.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ResolvedEnd {
    /// Any of these.
    pub entities: Vec<ResolvedEntity>,
    /// The end's port is none of these.
    pub not_ports: Vec<Ports>,
}

/// A rule as predicates.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ResolvedRule {
    /// See [`Rule::protocol`].
    pub protocol: Option<u8>,
    /// See [`Rule::not_protocol`].
    pub not_protocol: Option<u8>,
    /// See [`Rule::icmp`].
    pub icmp: Option<IcmpMatch>,
    /// See [`Rule::not_icmp`].
    pub not_icmp: Option<IcmpMatch>,
    /// The families that it can match; entities narrow them by predicates.
    pub families: [bool; 2],
    /// The local end.
    pub local: ResolvedEnd,
    /// The peer.
    pub peer: ResolvedEnd,
}

/// What a rule that matches does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Ends the search.
    Decide(Reason),
    /// Goes on behind the tier.
    Pass(Noted),
    /// Goes on with the next rule.
    Log(Noted),
    /// Goes on with the next rule; of one staged policy only the first that matches is noted, besides those before it that log.
    Staged(Noted),
}

/// A rule of a list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Step {
    /// Index of its tier in [`Steps::ends`].
    pub tier: u32,
    /// When it matches.
    pub rule: ResolvedRule,
    /// What it does then.
    pub outcome: Outcome,
}

/// The rules of a list in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Steps {
    /// The rules, ascending by tier.
    pub steps: Vec<Step>,
    /// For each tier what happens behind its last rule: a decision, or `None`: the next tier. The last is a decision.
    pub ends: Vec<Option<Reason>>,
}

impl Steps {
    /// Where the first decision stands, given the indexes of the rules that match, ascending; rules noted on the way are
    /// handed to `note`. `None` for steps that do not end in a decision, which [`resolve`] never makes.
    pub fn walk<'s>(
        &'s self,
        matching: impl IntoIterator<Item = usize>,
        mut note: impl FnMut(&'s Noted),
    ) -> Option<Decided> {
        let mut tier = 0;
        let mut staged: Option<&PolicyName> = None;
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
                Outcome::Log(noted) | Outcome::Staged(noted)
                    if staged == Some(&noted.rule.policy) => {}
                Outcome::Log(noted) => note(noted),
                Outcome::Staged(noted) => {
                    staged = Some(&noted.rule.policy);
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

    /// The reason that stands there.
    pub fn reason(&self, decided: Decided) -> Option<&Reason> {
        match decided {
            Decided::Step(index) => match &self.steps.get(index)?.outcome {
                Outcome::Decide(reason) => Some(reason),
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

/// What decides for one endpoint, stage and direction.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct List {
    /// The stage.
    pub stage: Stage,
    /// The direction.
    pub direction: Direction,
    /// The policies that select the endpoint, in order, the staged ones among them.
    pub policies: Vec<PolicyName>,
    /// The profiles behind them.
    pub profiles: Vec<String>,
    /// The host endpoint, if it is not valid: its policies are then those that it may have, and their rules are not asked.
    pub broken_host: Option<String>,
}

/// A list, its rules, and what they ask.
#[derive(Debug, Clone)]
pub struct ResolvedList {
    /// What it is.
    pub list: List,
    /// Its rules.
    pub steps: Arc<Steps>,
    /// The predicates over the local end, ascending.
    pub local: Vec<PredicateId>,
    /// The questions to the local end, ascending.
    pub local_questions: Vec<QuestionId>,
    /// A hash of all that its policies say: the same for the same policies in any process that was built alike, and
    /// different (up to 64 bits) for others.
    pub revision: u64,
}

/// A local endpoint: a pod, or, without a namespace, a host endpoint.
pub type LocalName = ObjectName;

/// What a set of local endpoints needs of the policies.
#[derive(Debug, Clone, Default)]
pub struct Resolved {
    /// For each local endpoint that the model has, the index of its list for each stage and direction.
    pub endpoints: BTreeMap<LocalName, BTreeMap<(Stage, Direction), usize>>,
    /// The distinct lists, in order of first use.
    pub lists: Vec<ResolvedList>,
    /// The distinct predicates, in order of first use; first the families.
    pub predicates: Vec<Predicate>,
    /// The distinct questions, in order of first use.
    pub questions: Vec<Question>,
}

/// The numbers of predicates and questions.
#[derive(Debug, Default)]
pub(crate) struct Vocabulary {
    predicates: AHashMap<Predicate, PredicateId>,
    question_ids: AHashMap<Question, QuestionId>,
    all: Vec<Predicate>,
    /// By number.
    pub(crate) questions: Vec<Question>,
}

impl Vocabulary {
    fn predicate(&mut self, predicate: Predicate) -> PredicateId {
        let all = &mut self.all;
        *self.predicates.entry(predicate).or_insert_with_key(|predicate| {
            all.push(predicate.clone());
            all.len() as u32 - 1
        })
    }

    fn question(&mut self, question: Question) -> QuestionId {
        let all = &mut self.questions;
        *self.question_ids.entry(question).or_insert_with_key(|question| {
            all.push(question.clone());
            all.len() as u32 - 1
        })
    }
}

/// Which policies may select one of some local endpoints, by where they are in memory: as long as one is kept here, nothing
/// else is there.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    local: BTreeSet<LocalName>,
    known: AHashMap<usize, (Arc<Policy>, bool)>,
}

impl Candidates {
    /// Forgets what is not of these endpoints, and most of the policies that are no more.
    fn keep(&mut self, model: &Model, local: &BTreeSet<LocalName>) {
        if self.local != *local || self.known.len() > model.policies.len() * 2 {
            *self = Self { local: local.clone(), known: AHashMap::new() };
            self.known.reserve(model.policies.len());
        }
    }

    /// Whether a policy may select one of them, whose namespaces `here` knows.
    fn may_select(&mut self, policy: &Arc<Policy>, here: &impl Fn(&str) -> bool) -> bool {
        let known = self.known.entry(Arc::as_ptr(policy).addr());
        known.or_insert_with(|| (Arc::clone(policy), policy.selector.may_match(NAMESPACE, here))).1
    }
}

/// Resolves the policies of `local`; names that the model does not have are left out, so that nothing passes for them.
pub fn resolve(model: &Model, local: &BTreeSet<LocalName>) -> Resolved {
    resolve_in(model, local, &mut Vocabulary::default(), &mut Candidates::default())
}

/// The same in the numbers of a vocabulary, to which what is new is added.
pub(crate) fn resolve_in(
    model: &Model,
    local: &BTreeSet<LocalName>,
    vocabulary: &mut Vocabulary,
    candidates: &mut Candidates,
) -> Resolved {
    let mut resolver = Resolver::new(model, local, vocabulary, candidates);
    for name in local {
        let lists = resolver.endpoint(name);
        if let Some(lists) = lists {
            resolver.resolved.endpoints.insert(name.clone(), lists);
        }
    }
    let Resolver { mut resolved, vocabulary, .. } = resolver;
    resolved.predicates.clone_from(&vocabulary.all);
    resolved.questions.clone_from(&vocabulary.questions);
    resolved
}

/// The policies, sorted for evaluation, and found by the namespace that their selector asks for.
struct Ordered<'m> {
    /// Tier by tier, in order.
    all: Vec<(&'m PolicyName, &'m Policy)>,
    /// Indexes of those that may select an endpoint of a namespace.
    by_namespace: AHashMap<String, Vec<usize>>,
    /// Indexes of those that name none.
    anywhere: Vec<usize>,
}

impl<'m> Ordered<'m> {
    /// The policies that may select one of `local`; the others, as a rule nearly all, are not even sorted.
    fn new(model: &'m Model, local: &BTreeSet<LocalName>, known: &mut Candidates) -> Self {
        let namespaces: AHashSet<&str> = local.iter().map(|name| name.namespace.as_str()).collect();
        let here = |namespace: &str| namespaces.contains(namespace);
        known.keep(model, local);
        let candidates =
            model.policies.iter().filter(|(_, policy)| known.may_select(policy, &here));
        let mut all: Vec<_> = candidates
            .map(|(name, policy)| {
                let tier = model.tier_place(&policy.tier);
                ((tier, policy.order, name.sort_key()), name, policy.as_ref())
            })
            .collect();
        all.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let mut ordered =
            Self { all: Vec::new(), by_namespace: AHashMap::new(), anywhere: Vec::new() };
        for (index, (_, name, policy)) in all.into_iter().enumerate() {
            ordered.all.push((name, policy));
            match policy.selector.required_values(NAMESPACE) {
                Some(namespaces) => {
                    for namespace in namespaces {
                        ordered.by_namespace.entry(namespace.to_owned()).or_default().push(index);
                    }
                }
                None => ordered.anywhere.push(index),
            }
        }
        ordered
    }

    /// The policies that select a member, in order.
    fn selecting(&self, view: &impl LabelSource) -> Vec<(&'m PolicyName, &'m Policy)> {
        let namespaced = view.label(NAMESPACE).and_then(|name| self.by_namespace.get(name));
        let mut indexes: Vec<usize> =
            namespaced.into_iter().flatten().chain(&self.anywhere).copied().collect();
        indexes.sort_unstable();
        let candidates = indexes.into_iter().filter_map(|index| self.all.get(index).copied());
        candidates.filter(|(_, policy)| policy.selector.matches(view)).collect()
    }
}

struct Resolver<'m, 'v> {
    model: &'m Model,
    ordered: Ordered<'m>,
    lists: AHashMap<List, usize>,
    vocabulary: &'v mut Vocabulary,
    resolved: Resolved,
}

impl<'m, 'v> Resolver<'m, 'v> {
    fn new(
        model: &'m Model,
        local: &BTreeSet<LocalName>,
        vocabulary: &'v mut Vocabulary,
        candidates: &mut Candidates,
    ) -> Self {
        let mut resolver = Self {
            model,
            ordered: Ordered::new(model, local, candidates),
            lists: AHashMap::new(),
            vocabulary,
            resolved: Resolved::default(),
        };
        for family in Family::ALL {
            resolver.predicate(Predicate::Family(family));
        }
        resolver
    }

    fn endpoint(&mut self, name: &LocalName) -> Option<BTreeMap<(Stage, Direction), usize>> {
        let model = self.model;
        let mut broken = None;
        let (selecting, stages, profiles): (_, &[Stage], &[String]) =
            if let Some(pod) = model.endpoints.get(name) {
                (self.ordered.selecting(&model.pod_view(name, pod)), &[Stage::Pod], &[])
            } else {
                let host = model.host_endpoints.get(&name.name);
                let host = host.filter(|_| name.namespace.is_empty())?;
                broken = host.broken.then_some(name.name.as_str());
                let inherited = model.inherited(host);
                let view = Model::host_view(host, &inherited);
                (self.ordered.selecting(&view), &Stage::OF_HOST, &host.profiles)
            };
        let mut lists = BTreeMap::new();
        for stage in stages {
            for direction in Direction::ALL {
                let index = match broken {
                    Some(host) => self.list_of_broken(*stage, direction, host),
                    None => self.list(*stage, direction, &selecting, profiles),
                };
                lists.insert((*stage, direction), index);
            }
        }
        Some(lists)
    }

    fn list(
        &mut self,
        stage: Stage,
        direction: Direction,
        selecting: &[(&'m PolicyName, &'m Policy)],
        profiles: &[String],
    ) -> usize {
        let speaking: Vec<_> = selecting
            .iter()
            .copied()
            .filter(|(_, policy)| {
                policy.broken
                    || (stage.asks(policy.hook, direction) && policy.rules(direction).is_some())
            })
            .collect();
        let profiles = if stage == Stage::Host { profiles.to_vec() } else { Vec::new() };
        let policies = speaking.iter().map(|(name, _)| (*name).clone()).collect();
        let list = List { stage, direction, policies, profiles, broken_host: None };
        self.intern(list, &speaking)
    }

    /// Of a host endpoint that is not valid: every global policy that may deny what it forwards may select it.
    fn list_of_broken(&mut self, stage: Stage, direction: Direction, host: &str) -> usize {
        let may_deny = self.model.policies.iter().filter(|(name, policy)| {
            stage == Stage::Forward
                && name.kind == PolicyKind::Global
                && policy.may_deny_forwarded(direction)
        });
        let policies = may_deny.map(|(name, _)| name.clone()).collect();
        let (profiles, broken_host) = (Vec::new(), Some(host.to_owned()));
        self.intern(List { stage, direction, policies, profiles, broken_host }, &[])
    }

    fn intern(&mut self, list: List, speaking: &[(&'m PolicyName, &'m Policy)]) -> usize {
        if let Some(index) = self.lists.get(&list) {
            return *index;
        }
        let index = self.resolved.lists.len();
        let steps = self.steps(&list, speaking);
        let (local, local_questions) = asked_of_local(&steps);
        let revision = self.revision(&list, speaking);
        self.lists.insert(list.clone(), index);
        let steps = Arc::new(steps);
        let resolved = ResolvedList { list, steps, local, local_questions, revision };
        self.resolved.lists.push(resolved);
        index
    }

    fn steps(&mut self, list: &List, policies: &[(&'m PolicyName, &'m Policy)]) -> Steps {
        let (stage, direction) = (list.stage, list.direction);
        let mut steps = Steps::default();
        if stage.failsafe() {
            let model = self.model;
            for (protocol, port, net) in &model.failsafe.ports[direction as usize] {
                let rule = failsafe(*protocol, *port, *net, direction);
                self.step(
                    &mut steps,
                    direction,
                    &rule,
                    Outcome::Decide(Reason::Failsafe(direction)),
                );
            }
        }
        let everything = Rule::every_packet(0, Action::Deny);
        for (name, _) in
            policies.iter().filter(|(name, policy)| policy.broken && !name.kind.staged())
        {
            let reason = Reason::Broken(direction, (*name).clone());
            self.step(&mut steps, direction, &everything, Outcome::Decide(reason));
        }
        steps.ends.push(None);
        let sound: Vec<_> = policies.iter().filter(|(_, policy)| !policy.broken).collect();
        for tier in sound.chunk_by(|a, b| a.1.tier == b.1.tier) {
            for (name, policy) in tier {
                for rule in policy.rules(direction).unwrap_or_default() {
                    let outcome = outcome(name, direction, rule);
                    self.step(&mut steps, direction, rule, outcome);
                }
            }
            let enforced = tier.iter().find(|(name, _)| !name.kind.staged());
            let end = enforced.filter(|(_, policy)| {
                stage.ends_tiers()
                    && self.model.tier(&policy.tier).default_action == DefaultAction::Deny
            });
            steps.ends.push(end.map(|(name, _)| Reason::Isolated(direction, (*name).clone())));
        }
        let first =
            sound.iter().find(|(name, _)| !name.kind.staged()).map(|(name, _)| (*name).clone());
        let last = self.fallback(list, first, &mut steps);
        steps.ends.push(Some(last));
        steps
    }

    /// The profiles' rules, and what happens behind them. `first` is the first enforced policy.
    fn fallback(&mut self, list: &List, first: Option<PolicyName>, steps: &mut Steps) -> Reason {
        let direction = list.direction;
        if let Some(host) = &list.broken_host {
            return if list.stage == Stage::Host || !list.policies.is_empty() {
                Reason::BrokenHost(direction, host.clone())
            } else {
                Reason::NoHostPolicy(direction)
            };
        }
        match (list.stage, first) {
            (Stage::Pod, _) => return Reason::NotIsolated(direction),
            (Stage::Forward, Some(first)) => return Reason::Isolated(direction, first),
            (Stage::Forward | Stage::PreDnat | Stage::Untracked, _) => {
                return Reason::NoHostPolicy(direction);
            }
            (Stage::Host, _) => {}
        }
        for name in &list.profiles {
            let Some(profile) = self.model.profiles.get(name) else {
                return Reason::MissingProfile(direction, name.clone());
            };
            for rule in profile.rules(direction) {
                let verdict = match rule.action {
                    Action::Allow => Verdict::Allow,
                    Action::Deny | Action::Pass => Verdict::Deny,
                    Action::Log => continue,
                };
                let reason = Reason::Profile(direction, name.clone(), rule.index, verdict);
                self.step(steps, direction, rule, Outcome::Decide(reason));
            }
        }
        Reason::NoProfile(direction)
    }

    fn step(&mut self, steps: &mut Steps, direction: Direction, rule: &Rule, outcome: Outcome) {
        let rule = self.rule(direction, rule);
        steps.steps.push(Step { tier: steps.ends.len() as u32, rule, outcome });
    }

    fn rule(&mut self, direction: Direction, rule: &Rule) -> ResolvedRule {
        let (local, peer) = rule.ends(direction);
        let mut families = [false; 2];
        rule.families().for_each(|family| families[family as usize] = true);
        ResolvedRule {
            protocol: rule.protocol,
            not_protocol: rule.not_protocol,
            icmp: rule.icmp,
            not_icmp: rule.not_icmp,
            families,
            local: self.end(local, false),
            peer: self.end(peer, direction == Direction::Egress),
        }
    }

    /// `service_ports`: whether a service at this end is meant with its ports: the destination of egress.
    fn end(&mut self, end: &End, service_ports: bool) -> ResolvedEnd {
        let whoever = [Entity::default()];
        let entities = end.entities.as_deref().unwrap_or(&whoever);
        let entities =
            entities.iter().map(|entity| self.entity(entity, end, service_ports)).collect();
        let not_ports = end.not_ports.iter().map(|port| self.port(port, None)).collect();
        ResolvedEnd { entities, not_ports }
    }

    fn entity(&mut self, entity: &Entity, end: &End, service_ports: bool) -> ResolvedEntity {
        let mut resolved = ResolvedEntity::default();
        for family in Family::ALL.into_iter().filter(|family| !entity.speaks_of(*family)) {
            resolved.unwanted.push(family as u32);
        }
        if let Some(selector) = &entity.selector {
            resolved.wanted.push(self.predicate(Predicate::Members(selector.clone())));
        }
        if let Some(selector) = &entity.not_selector {
            resolved.unwanted.push(self.predicate(Predicate::Members(selector.clone())));
        }
        if !entity.nets.is_empty() {
            resolved.wanted.push(self.predicate(Predicate::Nets(entity.nets.clone())));
        }
        if !entity.not_nets.is_empty() {
            resolved.unwanted.push(self.predicate(Predicate::Nets(entity.not_nets.clone())));
        }
        if !end.ports.is_empty() {
            let selector = entity.selector.as_ref();
            resolved.ports = Some(end.ports.iter().map(|port| self.port(port, selector)).collect());
        }
        if let Some(service) = &entity.service {
            if service_ports {
                let question = self.question(Question::Service(service.clone()));
                resolved.ports = Some(vec![Ports::Answer(question)]);
            } else {
                resolved.wanted.push(self.predicate(Predicate::Service(service.clone())));
            }
        }
        resolved
    }

    fn port(&mut self, port: &PortMatch, selector: Option<&Selector>) -> Ports {
        match port {
            PortMatch::Range { first, last } => Ports::Range(*first, *last),
            PortMatch::Named(name) => {
                let question = Question::Named { selector: selector.cloned(), name: name.clone() };
                Ports::Answer(self.question(question))
            }
        }
    }

    fn predicate(&mut self, predicate: Predicate) -> PredicateId {
        self.vocabulary.predicate(predicate)
    }

    fn question(&mut self, question: Question) -> QuestionId {
        self.vocabulary.question(question)
    }

    /// Hashes with constant keys (`SipHash` with zeroes), because the value must not differ between processes; those who
    /// write policies gain nothing from a collision but late enforcement of their own change.
    fn revision(&self, list: &List, policies: &[(&PolicyName, &Policy)]) -> u64 {
        let mut hasher = DefaultHasher::new();
        list.hash(&mut hasher);
        for (_, policy) in policies {
            (policy.broken, &policy.tier, self.model.tier(&policy.tier)).hash(&mut hasher);
            policy.rules(list.direction).hash(&mut hasher);
        }
        for profile in &list.profiles {
            self.model.profiles.get(profile).hash(&mut hasher);
        }
        if list.stage.failsafe() {
            self.model.failsafe.hash(&mut hasher);
        }
        hasher.finish()
    }
}

fn outcome(policy: &PolicyName, direction: Direction, rule: &Rule) -> Outcome {
    let name = RuleName { policy: policy.clone(), direction, index: rule.index };
    let noted = |rule: RuleName, action| Noted { rule, action };
    match rule.action {
        Action::Log => Outcome::Log(noted(name, Action::Log)),
        action if policy.kind.staged() => Outcome::Staged(noted(name, action)),
        Action::Allow => Outcome::Decide(Reason::Rule(name, Verdict::Allow)),
        Action::Deny => Outcome::Decide(Reason::Rule(name, Verdict::Deny)),
        Action::Pass => Outcome::Pass(noted(name, Action::Pass)),
    }
}

/// A rule that allows a failsafe port: the destination's, with a peer in `net`.
fn failsafe(protocol: Protocol, port: u16, net: Option<IpNet>, direction: Direction) -> Rule {
    let mut rule = Rule::every_packet(0, Action::Allow);
    rule.protocol = Some(protocol.number());
    rule.destination.ports = vec![PortMatch::Range { first: port, last: port }];
    if let Some(net) = net {
        let entity = Entity { nets: BTreeSet::from([net]), ..Entity::default() };
        match direction {
            Direction::Ingress => rule.source.entities = Some(vec![entity]),
            Direction::Egress => rule.destination.entities = Some(vec![entity]),
        }
    }
    rule
}

/// What the steps ask of the local end.
fn asked_of_local(steps: &Steps) -> (Vec<PredicateId>, Vec<QuestionId>) {
    let (mut predicates, mut questions) = (BTreeSet::new(), BTreeSet::new());
    for end in steps.steps.iter().map(|step| &step.rule.local) {
        let ports = |ports: &[Ports]| -> Vec<QuestionId> {
            let answers = ports.iter().filter_map(|ports| match ports {
                Ports::Answer(question) => Some(*question),
                Ports::Range(..) => None,
            });
            answers.collect()
        };
        questions.extend(ports(&end.not_ports));
        for entity in &end.entities {
            predicates.extend(entity.wanted.iter().chain(&entity.unwanted));
            questions.extend(ports(entity.ports.as_deref().unwrap_or_default()));
        }
    }
    (predicates.into_iter().collect(), questions.into_iter().collect())
}
