//! Resolves the policies of a model into the lists of endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};

use ahash::AHashMap;
use ipnet::IpNet;

use super::cache::{PodPolicies, ResolveCache};
use super::list::{List, Lists, LocalName, Resolved, ResolvedList};
use super::order::{NamedPolicy, OrderedPolicy, PolicyDelta, PolicyOrder};
use super::policy_rules::PolicyRules;
use super::predicate::{PortSet, PortSetId, Predicate, PredicateId};
use super::rule::{Ports, ResolvedEnd, ResolvedEntity, ResolvedRule};
use super::size::PricedSizes;
use super::stage::Stage;
use super::steps::{RuleEffect, Step, Steps};
use super::terms::terms_of;
use crate::common::{Pinned, SmallList, StableHasher};
use crate::model::{
    Action, DefaultAction, Direction, Endpoint, Entity, Family, Model, Noted, PolicyKind,
    PolicyName, PortMatch, Protocol, Reason, Rule, RuleEnd, RuleName, Verdict,
};
use crate::selector::Selector;

/// Resolves the policies of the endpoints `local`. A name that is not in the model is left out, so that nothing passes
/// for it. The caller sets `pods_stand` if these pods, and the labels that they inherit, have not changed since the
/// last resolution with this cache.
pub(crate) fn resolve(
    model: &Model,
    local: &BTreeSet<LocalName>,
    cache: &mut ResolveCache,
    order: &mut PolicyOrder,
    pods_stand: bool,
) -> Resolved {
    let changes = order.refresh(model, local);
    let mut resolver = Resolver::new(model, cache, order);
    // The delta covers everything since the last refresh. The cache can use it only if the cache was filled at that
    // refresh.
    let changes = changes.filter(|_| resolver.cache.pods_at + 1 == order.turn);
    let mut before = std::mem::take(&mut resolver.cache.pods).into_iter().peekable();
    let mut pods = Vec::with_capacity(before.len());
    for name in local {
        while before.next_if(|(other, _)| **other < *name).is_some() {}
        let before = before.next_if(|(other, _)| **other == *name);
        let pod = match &before {
            Some((_, chosen)) if pods_stand => Some(Arc::clone(&chosen.pod)),
            _ => model.endpoints.get(name).map(Arc::clone),
        };
        if let Some(pod) = pod {
            pods.push(resolver.pod(name, pod, before, changes.as_ref()));
        } else {
            resolver.host(name);
        }
    }
    let Resolver { resolved, cache, .. } = resolver;
    cache.pods = pods.into_iter().collect();
    cache.pods_at = order.turn;
    cache.end_turn(&resolved.lists);
    resolved
}

struct Resolver<'m, 'k> {
    model: &'m Model,
    order: &'m PolicyOrder,
    cache: &'k mut ResolveCache,
    resolved: Resolved,
    /// The index of each list.
    indexes: AHashMap<Pinned<Arc<ResolvedList>>, usize>,
}

impl<'m, 'k> Resolver<'m, 'k> {
    fn new(model: &'m Model, cache: &'k mut ResolveCache, order: &'m PolicyOrder) -> Self {
        cache.begin_turn(model);
        let (resolved, indexes) = (Resolved::default(), AHashMap::new());
        let mut resolver = Self { model, order, cache, resolved, indexes };
        for family in Family::ALL {
            resolver.predicate(Predicate::Family(family));
        }
        resolver
    }

    /// Resolves the policies of a pod. `before` is the pod's result of the last resolution, and `changes` are the
    /// policies that have changed since then.
    fn pod(
        &mut self,
        name: &LocalName,
        pod: Arc<Endpoint>,
        before: Option<(Arc<LocalName>, PodPolicies)>,
        changes: Option<&PolicyDelta>,
    ) -> (Arc<LocalName>, PodPolicies) {
        let view = || self.model.pod_view(name, &pod);
        let (name, mut chosen, touched) = match (before, changes) {
            (Some((name, mut chosen)), Some(changes)) => {
                let touched = changes.apply(&mut chosen.selecting, view);
                (name, chosen, touched)
            }
            (before, _) => {
                let selecting = self.order.selecting(&view());
                let name = before.map_or_else(|| Arc::new(name.clone()), |(name, _)| name);
                let (pod, lists) = (Arc::clone(&pod), BTreeMap::new());
                (name, PodPolicies { pod, selecting, lists }, [true; 2])
            }
        };
        chosen.pod = pod;
        for direction in Direction::ALL {
            if touched[direction as usize] {
                let before = chosen.lists.get(&(Stage::Pod, direction));
                let before = before.map(Arc::downgrade).unwrap_or_default();
                let list = self.list(Stage::Pod, direction, &chosen.selecting, &[], before);
                chosen.lists.insert((Stage::Pod, direction), list);
            }
        }
        self.add_endpoint(&name, &chosen.lists);
        (name, chosen)
    }

    /// Resolves a host endpoint, if the name is one.
    fn host(&mut self, name: &LocalName) {
        let model = self.model;
        let host = model.host_endpoints.get(&name.name);
        let Some(host) = host.filter(|_| name.namespace.is_empty()) else { return };
        let broken = host.broken.then_some(name.name.as_str());
        let selecting = self.order.selecting(&Model::host_view(host));
        let mut lists = BTreeMap::new();
        for stage in Stage::OF_HOST {
            for direction in Direction::ALL {
                let list = match broken {
                    Some(host) => self.broken_host_list(stage, direction, host),
                    None => self.list(stage, direction, &selecting, &host.profiles, Weak::new()),
                };
                lists.insert((stage, direction), list);
            }
        }
        self.add_endpoint(&Arc::new(name.clone()), &lists);
    }

    /// Adds an endpoint with its lists.
    fn add_endpoint(&mut self, name: &Arc<LocalName>, lists: &Lists<Arc<ResolvedList>>) {
        let all = &mut self.resolved.lists;
        let indexes = lists.iter().map(|(at, list)| {
            let index = *self.indexes.entry(Pinned(Arc::clone(list))).or_insert_with(|| {
                all.push(Arc::clone(list));
                all.len() - 1
            });
            (*at, index)
        });
        let indexes = indexes.collect();
        self.resolved.endpoints.push((Arc::clone(name), indexes));
    }

    fn list(
        &mut self,
        stage: Stage,
        direction: Direction,
        selecting: &[Arc<OrderedPolicy>],
        profiles: &[String],
        before: Weak<ResolvedList>,
    ) -> Arc<ResolvedList> {
        let applying: Vec<_> = selecting
            .iter()
            .map(|placed| placed.named())
            .filter(|(_, policy)| {
                policy.broken
                    || (stage.includes(policy.hook, direction) && policy.rules(direction).is_some())
            })
            .collect();
        let profiles = if stage == Stage::Host { profiles.to_vec() } else { Vec::new() };
        let policies = applying.iter().map(|(name, _)| Arc::clone(name)).collect();
        let list = List { stage, direction, policies, profiles, broken_host: None };
        self.intern(list, &applying, before)
    }

    /// The list of a host endpoint that is not valid: every global policy that may deny forwarded traffic may select
    /// it.
    fn broken_host_list(
        &mut self,
        stage: Stage,
        direction: Direction,
        host: &str,
    ) -> Arc<ResolvedList> {
        let may_deny = self.model.policies.iter().filter(|(name, policy)| {
            stage == Stage::Forward
                && name.kind == PolicyKind::Global
                && policy.may_deny_forwarded(direction)
        });
        let policies = may_deny.map(|(name, _)| Arc::new(name.clone())).collect();
        let (profiles, broken_host) = (Vec::new(), Some(host.to_owned()));
        let list = List { stage, direction, policies, profiles, broken_host };
        self.intern(list, &[], Weak::new())
    }

    fn intern(
        &mut self,
        list: List,
        applying: &[NamedPolicy<'_>],
        before: Weak<ResolvedList>,
    ) -> Arc<ResolvedList> {
        if let Some(known) = self.cache.list(&list, applying) {
            return Arc::clone(known);
        }
        let made = Arc::new(self.build_list(list, applying, before));
        self.cache.insert_list(&made, applying);
        made
    }

    fn build_list(
        &mut self,
        list: List,
        applying: &[NamedPolicy<'_>],
        before: Weak<ResolvedList>,
    ) -> ResolvedList {
        let rules: Vec<Arc<PolicyRules>> =
            applying.iter().map(|policy| self.rules(list.direction, *policy)).collect();
        let (steps, of_policies_at, tiers) = self.steps(&list, applying, &rules);
        // The terms of policies are already collected. Only the few steps that do not come from policies are read here.
        let Range { start, end } = of_policies_at;
        let of_rest = steps.steps[..start].iter().chain(&steps.steps[end..]);
        let [mut local, mut peer] = terms_of(of_rest);
        for rules in &rules {
            local.extend(&rules.terms[0]);
            peer.extend(&rules.terms[1]);
        }
        local.sort();
        peer.sort();
        let around = self.hash_context(&list, applying);
        ResolvedList {
            list: Arc::new(list),
            steps: Arc::new(steps),
            local,
            peer,
            context_hash: around,
            revision: OnceLock::new(),
            priced_sizes: PricedSizes::new(&rules),
            policy_rules: rules,
            policy_steps: of_policies_at,
            tiers,
            predecessor: before,
            index: OnceLock::new(),
        }
    }

    /// The rules of a policy. There are none if the policy is not valid.
    fn rules(&mut self, direction: Direction, applying: NamedPolicy<'_>) -> Arc<PolicyRules> {
        if let Some(known) = self.cache.rules(direction, applying) {
            return known;
        }
        let (name, policy) = applying;
        let rules = policy.rules(direction).filter(|_| !policy.broken).unwrap_or_default();
        let steps =
            rules.iter().map(|rule| self.step(direction, rule, outcome(name, direction, rule)));
        let steps = steps.collect();
        let tier_end = name.kind.staged().then(|| {
            let noted = Noted::TierEnd(direction, Arc::clone(name));
            let everything = Rule::every_packet(0, Action::Deny);
            self.step(direction, &everything, RuleEffect::Staged(Arc::new(noted)))
        });
        self.cache.insert_rules(direction, applying, steps, tier_end)
    }

    /// Builds the steps of a list. Also returns the range of the steps that come from policies, and the names of the
    /// policies' tiers.
    fn steps(
        &mut self,
        list: &List,
        policies: &[NamedPolicy<'_>],
        rules: &[Arc<PolicyRules>],
    ) -> (Steps, Range<usize>, Vec<String>) {
        let (stage, direction) = (list.stage, list.direction);
        let mut steps = Steps::default();
        if stage.failsafe() {
            let model = self.model;
            for (protocol, port, net) in &model.failsafe.ports[direction as usize] {
                let rule = failsafe(*protocol, *port, *net, direction);
                let outcome = decide(Reason::Failsafe(direction));
                steps.steps.push(self.step(direction, &rule, outcome));
            }
        }
        let everything = Rule::every_packet(0, Action::Deny);
        for (name, _) in
            policies.iter().filter(|(name, policy)| policy.broken && !name.kind.staged())
        {
            let reason = Reason::Broken(direction, PolicyName::clone(name));
            steps.steps.push(self.step(direction, &everything, decide(reason)));
        }
        steps.ends.push(None);
        let first_of_policies = steps.steps.len();
        let mut tiers = Vec::new();
        let sound: Vec<_> =
            policies.iter().zip(rules).filter(|((_, policy), _)| !policy.broken).collect();
        for of_tier in sound.chunk_by(|a, b| a.0.1.tier == b.0.1.tier) {
            let tier = steps.ends.len() as u32;
            tiers.extend(of_tier.first().map(|((_, policy), _)| policy.tier.clone()));
            let denies = of_tier.first().is_some_and(|((_, policy), _)| {
                stage.ends_tiers()
                    && self.model.tier(&policy.tier).default_action == DefaultAction::Deny
            });
            let enforced = of_tier.iter().find(|((name, _), _)| !name.kind.staged());
            for (_, rules) in of_tier {
                let tier_end = rules.tier_end.iter().filter(|_| denies && enforced.is_none());
                let all = rules.steps.iter().chain(tier_end);
                steps.steps.extend(all.map(|step| Step { tier, ..step.clone() }));
            }
            let end = enforced.filter(|_| denies);
            steps.ends.push(end.map(|(_, rules)| Arc::clone(&rules.isolated)));
        }
        let of_policies = first_of_policies..steps.steps.len();
        let enforced = sound.iter().find(|((name, _), _)| !name.kind.staged());
        let first = enforced.map(|((name, _), _)| PolicyName::clone(name));
        let last = self.fallback(list, first, &mut steps);
        steps.ends.push(Some(Arc::new(last.into())));
        (steps, of_policies, tiers)
    }

    /// Adds the profiles' rules. Returns the decision that follows if no rule decides. `first` is the first enforced
    /// policy.
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
                let tier = steps.ends.len() as u32;
                let step = self.step(direction, rule, decide(reason));
                steps.steps.push(Step { tier, ..step });
            }
        }
        Reason::NoProfile(direction)
    }

    /// A rule as a step of tier 0.
    fn step(&mut self, direction: Direction, rule: &Rule, outcome: RuleEffect) -> Step {
        let rule = self.rule(direction, rule);
        Step { tier: 0, rule: Arc::new(rule), outcome }
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

    /// Resolves an end of a rule. If `service_ports` is true, a service also restricts the port to the service's ports.
    /// This holds only for the destination of an egress rule.
    fn end(&mut self, end: &RuleEnd, service_ports: bool) -> ResolvedEnd {
        let any = [Entity::default()];
        let entities = end.entities.as_deref().unwrap_or(&any);
        // The resolved ports are shared between entities: by all entities if all ports are numbers, or else by entities
        // with the same selector, because the meaning of a port name depends on the selector.
        let numbers = end.ports.iter().all(|port| matches!(port, PortMatch::Range { .. }));
        let mut known: AHashMap<Option<&Selector>, Option<Arc<[Ports]>>> = AHashMap::new();
        let mut resolved = Vec::new();
        for entity in entities {
            let selector = entity.selector.as_ref().filter(|_| !numbers);
            let ports = known.entry(selector).or_insert_with(|| self.ports(end, selector)).clone();
            self.entity(entity, ports, service_ports, &mut resolved);
        }
        let not_ports = end.not_ports.iter().map(|port| self.port(port, None)).collect();
        ResolvedEnd { entities: resolved.into_iter().collect(), not_ports }
    }

    /// Adds the resolved entities of an entity: one for each of its nets, or a single one if it has no nets.
    fn entity(
        &mut self,
        entity: &Entity,
        mut ports: Option<Arc<[Ports]>>,
        service_ports: bool,
        resolved: &mut Vec<ResolvedEntity>,
    ) {
        let (mut wanted, mut unwanted) = (SmallList::default(), Vec::new());
        if let Some(selector) = &entity.selector {
            wanted.push(self.predicate(Predicate::Members(selector.clone())));
        }
        if let Some(selector) = &entity.not_selector {
            unwanted.push(self.predicate(Predicate::Members(selector.clone())));
        }
        if let Some(service) = &entity.service {
            if service_ports {
                let port_set = self.port_set(PortSet::Service(service.clone()));
                ports = Some(Arc::new([Ports::Set(port_set)]));
            } else {
                wanted.push(self.predicate(Predicate::Service(service.clone())));
            }
        }
        unwanted.extend(entity.not_nets.iter().map(|net| self.net(net)));
        unwanted.sort_unstable();
        unwanted.dedup();
        let families = Family::ALL.map(|family| entity.allows_family(family));
        let around = ResolvedEntity { families, wanted, unwanted: unwanted.into(), ports };
        if entity.nets.is_empty() {
            return resolved.push(around);
        }
        for net in &entity.nets {
            let mut of_net = around.clone();
            let family = Family::from_address(net.addr());
            of_net.families = Family::ALL.map(|it| it == family && families[it as usize]);
            // A net of length 0 contains every address of its family, so it needs no predicate.
            if net.prefix_len() > 0 {
                of_net.wanted.push(self.net(net));
            }
            resolved.push(of_net);
        }
    }

    /// The ports of an end, for an entity with this selector. `None` if the end does not test ports.
    fn ports(&mut self, end: &RuleEnd, selector: Option<&Selector>) -> Option<Arc<[Ports]>> {
        let ports = end.ports.iter().map(|port| self.port(port, selector));
        (!end.ports.is_empty()).then(|| ports.collect())
    }

    fn net(&mut self, net: &IpNet) -> PredicateId {
        self.predicate(Predicate::Net(net.trunc()))
    }

    fn port(&mut self, port: &PortMatch, selector: Option<&Selector>) -> Ports {
        match port {
            PortMatch::Range { first, last } => Ports::Range(*first, *last),
            PortMatch::Named(name) => {
                let port_set = PortSet::Named { selector: selector.cloned(), name: name.clone() };
                Ports::Set(self.port_set(port_set))
            }
        }
    }

    fn predicate(&mut self, predicate: Predicate) -> PredicateId {
        self.cache.vocabulary.predicate(predicate)
    }

    fn port_set(&mut self, port_set: PortSet) -> PortSetId {
        self.cache.vocabulary.port_set(port_set)
    }

    /// See [`ResolvedList::context_hash`].
    fn hash_context(&self, list: &List, policies: &[NamedPolicy<'_>]) -> u64 {
        let mut hasher = StableHasher::default();
        let List { stage, direction, policies: names, profiles, broken_host } = list;
        (stage, direction, names.len(), profiles, broken_host).hash(&mut hasher);
        if broken_host.is_some() {
            names.hash(&mut hasher);
        }
        for (_, policy) in policies {
            (policy.broken, &policy.tier, self.model.tier(&policy.tier)).hash(&mut hasher);
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

fn decide(reason: Reason) -> RuleEffect {
    RuleEffect::Decide(Arc::new(reason.into()))
}

fn outcome(policy: &Arc<PolicyName>, direction: Direction, rule: &Rule) -> RuleEffect {
    let name = RuleName { policy: Arc::clone(policy), direction, index: rule.index };
    let noted = |rule: RuleName, action| Arc::new(Noted::Rule(rule, action));
    match rule.action {
        Action::Log => RuleEffect::Log(noted(name, Action::Log)),
        action if policy.kind.staged() => RuleEffect::Staged(noted(name, action)),
        Action::Allow => decide(Reason::Rule(name, Verdict::Allow)),
        Action::Deny => decide(Reason::Rule(name, Verdict::Deny)),
        Action::Pass => RuleEffect::Pass(noted(name, Action::Pass)),
    }
}

/// A rule that allows a failsafe port at the destination, if the peer is in `net`.
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
