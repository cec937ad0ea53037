//! The policies of all APIs, each with the defaults of its API applied, ready to be evaluated.

use std::collections::{BTreeMap, BTreeSet};

use super::built_in::{self, BUILT_IN};
use super::direction::Direction;
use super::members::{Member, Role};
use super::prepare::{Preparer, Unknown};
use super::rules::Rule;
use super::set::Set;
use manx_objects::State;
use manx_objects::contents::Stored;
use manx_objects::object::calico::StagedAction;
use manx_objects::object::cluster::ClusterTier;
use manx_objects::object::{
    self, Kind, NetworkPolicy, Object, ObjectKey, PolicyType, Subject, calico,
};

/// The point on a packet's path where a policy applies. At a pod, [`Hook::Forward`] is the same as [`Hook::Normal`].
/// Policies with the other two hooks do not apply to pods, because they are for host endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hook {
    /// For pods, and for the host's own processes.
    Normal,
    /// Like `Normal`, and also for traffic that the host forwards (`applyOnForward`).
    Forward,
    /// Before destination NAT (`preDNAT`).
    PreDnat,
    /// Before connection tracking (`doNotTrack`).
    Untracked,
}

#[derive(Debug)]
pub(super) struct Policy {
    pub(super) key: ObjectKey,
    pub(super) tier: String,
    /// The order. An absent order is infinite.
    pub(super) order: f64,
    /// The members that the policy selects.
    pub(super) subject: Set,
    /// The ingress rules, or `None` if the policy does not apply to ingress.
    pub(super) ingress: Option<Vec<Rule>>,
    pub(super) egress: Option<Vec<Rule>>,
    pub(super) staged: bool,
    pub(super) hook: Hook,
    /// The reason why the policy denies before all tiers, if it does.
    pub(super) broken: Option<String>,
}

impl Policy {
    /// Returns the rules of a direction, if the policy applies to it.
    pub(super) fn rules(&self, direction: Direction) -> Option<&[Rule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }

    fn empty(key: &ObjectKey, subject: Set) -> Self {
        Self {
            key: key.clone(),
            tier: built_in::DEFAULT.to_owned(),
            order: f64::INFINITY,
            subject,
            ingress: None,
            egress: None,
            staged: key.kind.staged(),
            hook: Hook::Normal,
            broken: None,
        }
    }
}

/// The order of Kubernetes' policies in the tier `default`.
const KUBERNETES_ORDER: f64 = 1000.0;

/// Returns all policies: valid ones, and the replacements of invalid ones, which deny.
pub(super) fn read(objects: &BTreeMap<ObjectKey, Stored>, preparer: &Preparer<'_>) -> Vec<Policy> {
    let invalid_tiers: BTreeSet<&str> = objects
        .iter()
        .filter(|(key, stored)| key.kind == Kind::Tier && matches!(stored.state, State::Invalid(_)))
        .map(|(key, _)| key.name.as_str())
        // Objects cannot change a built-in tier.
        .filter(|name| BUILT_IN.iter().all(|(built_in, ..)| built_in != name))
        .collect();
    let mut policies = Vec::new();
    for (key, stored) in objects {
        let policy = match &stored.state {
            State::Valid(object) => match &**object {
                Object::NetworkPolicy(wire) => kubernetes(key, wire),
                Object::ClusterNetworkPolicy(wire) => Some(cluster(key, wire, preparer)),
                Object::CalicoPolicy(wire) => calico(key, wire, preparer),
                _ => None,
            },
            State::Invalid(invalid) => self::invalid(key, invalid.subject.as_ref()),
        };
        let Some(mut policy) = policy else { continue };
        if policy.broken.is_none() && invalid_tiers.contains(policy.tier.as_str()) {
            policy.broken = Some(format!("its tier {} is not valid", policy.tier));
        }
        // The effect of an invalid staged policy is not known, so there is nothing to report.
        if !(policy.staged && policy.broken.is_some()) {
            policies.push(policy);
        }
    }
    policies
}

/// Converts a Kubernetes policy. Without `policyTypes`, it applies to ingress, and also to egress if it has egress
/// rules. Returns `None` if the policy is staged and must not be evaluated.
fn kubernetes(key: &ObjectKey, wire: &NetworkPolicy) -> Option<Policy> {
    if !is_evaluated(key, wire.staged_action) {
        return None;
    }
    let selector = wire.pod_selector.clone();
    let subject = Set::new(Some(&key.namespace), move |member| member.is_pod_of(&selector));
    let rules = |listed: &Option<Vec<object::Rule>>| -> Vec<Rule> {
        let rules = listed.as_deref().unwrap_or(&[]).iter().enumerate();
        rules.map(|(index, rule)| Preparer::kubernetes(index, rule, &key.namespace)).collect()
    };
    let (ingress, egress) = (rules(&wire.ingress), rules(&wire.egress));
    let named = wire.policy_types.as_deref().unwrap_or(&[]);
    let (in_speaks, out_speaks) = if named.is_empty() {
        (true, !egress.is_empty())
    } else {
        (named.contains(&PolicyType::Ingress), named.contains(&PolicyType::Egress))
    };
    let mut policy = Policy::empty(key, subject);
    policy.order = KUBERNETES_ORDER;
    policy.ingress = in_speaks.then_some(ingress);
    policy.egress = out_speaks.then_some(egress);
    Some(policy)
}

/// A staged policy is evaluated if its action is Set, which is the default. It is not evaluated for Delete, Learn and
/// Ignore.
fn is_evaluated(key: &ObjectKey, action: Option<StagedAction>) -> bool {
    !key.kind.staged() || action.is_none_or(|action| action == StagedAction::Set)
}

/// Converts a cluster-wide policy. It applies to the directions in which it has rules. A rule that cannot be evaluated
/// stays in the list, so that the other rules keep their indexes.
fn cluster(
    key: &ObjectKey,
    wire: &object::ClusterNetworkPolicy,
    preparer: &Preparer<'_>,
) -> Policy {
    let pods = wire.subject.clone();
    let subject = Set::new(None, move |member| {
        member.is_pod_in(&pods.namespaces) && member.is_pod_of(&pods.pods)
    });
    let rules = |listed: &[object::cluster::ClusterRule]| -> Option<Vec<Rule>> {
        let rules = listed.iter().enumerate();
        (!listed.is_empty())
            .then(|| rules.map(|(index, rule)| preparer.cluster(index, rule)).collect())
    };
    let mut policy = Policy::empty(key, subject);
    policy.tier = match wire.tier {
        ClusterTier::Admin => built_in::KUBE_ADMIN.to_owned(),
        ClusterTier::Baseline => built_in::KUBE_BASELINE.to_owned(),
    };
    policy.order = f64::from(wire.priority);
    policy.ingress = rules(&wire.ingress);
    policy.egress = rules(&wire.egress);
    policy
}

/// Converts a Calico policy. Returns `None` if the policy is staged and must not be evaluated.
fn calico(key: &ObjectKey, wire: &calico::Policy, preparer: &Preparer<'_>) -> Option<Policy> {
    if !is_evaluated(key, wire.staged_action) {
        return None;
    }
    let namespace = key.kind.namespaced().then_some(key.namespace.as_str());
    let (in_speaks, out_speaks) = match wire.types.as_deref().unwrap_or(&[]) {
        // A policy without types applies to ingress unless it has only egress rules, and to egress if it has egress
        // rules.
        [] => (!wire.ingress.is_empty() || wire.egress.is_empty(), !wire.egress.is_empty()),
        types => (types.contains(&PolicyType::Ingress), types.contains(&PolicyType::Egress)),
    };
    let rules = |speaks: bool, listed: &[calico::Rule]| -> Result<Option<Vec<Rule>>, Unknown> {
        let rules = listed.iter().enumerate();
        speaks
            .then(|| rules.map(|(index, rule)| preparer.calico(index, rule, namespace)).collect())
            .transpose()
    };
    let (subject, broken) = match Preparer::subject(&wire.subject, namespace) {
        Ok(subject) => (subject, None),
        Err(unknown) => (Set::new(namespace, Member::is_endpoint), Some(unknown.0)),
    };
    let mut policy = Policy::empty(key, subject);
    policy.broken = broken;
    match (rules(in_speaks, &wire.ingress), rules(out_speaks, &wire.egress)) {
        (Ok(ingress), Ok(egress)) => (policy.ingress, policy.egress) = (ingress, egress),
        (Err(unknown), _) | (_, Err(unknown)) => policy.broken = Some(unknown.0),
    }
    policy.tier = wire.tier.clone().unwrap_or_else(|| built_in::DEFAULT.to_owned());
    policy.order = wire.order.map_or(f64::INFINITY, calico::Order::value);
    policy.hook = match (wire.do_not_track, wire.pre_dnat, wire.apply_on_forward) {
        (true, ..) => Hook::Untracked,
        (_, true, _) => Hook::PreDnat,
        (_, _, true) => Hook::Forward,
        _ => Hook::Normal,
    };
    if policy.hook == Hook::PreDnat {
        policy.egress = None;
    }
    Some(policy)
}

/// Returns the replacement of an invalid policy. The replacement of a Kubernetes NetworkPolicy isolates, in both
/// directions, the pods that the policy may select. The replacement of every other enforced policy denies all traffic
/// of the endpoints that the policy may select. There is no replacement for a staged policy. Returns `None` if the
/// object is not a policy.
fn invalid(key: &ObjectKey, subject: Option<&Subject>) -> Option<Policy> {
    let namespace = key.kind.namespaced().then_some(key.namespace.as_str());
    let pods_only = match key.kind {
        Kind::NetworkPolicy
        | Kind::ClusterNetworkPolicy
        | Kind::AdminNetworkPolicy
        | Kind::BaselineAdminNetworkPolicy => true,
        Kind::CalicoNetworkPolicy | Kind::GlobalNetworkPolicy => false,
        _ => return None,
    };
    let every_endpoint =
        || {
            Set::new(namespace, move |member| {
                if pods_only { member.role == Role::Pod } else { member.is_endpoint() }
            })
        };
    let selected = match subject {
        Some(Subject::Kubernetes(selector)) => {
            let selector = selector.clone();
            Some(Set::new(namespace, move |member| member.is_pod_of(&selector)))
        }
        Some(Subject::Cluster(pods)) => {
            let pods = pods.clone();
            Some(Set::new(None, move |member| {
                member.is_pod_in(&pods.namespaces) && member.is_pod_of(&pods.pods)
            }))
        }
        Some(Subject::Calico(subject)) => Preparer::subject(subject, namespace).ok(),
        None => None,
    };
    let mut policy = Policy::empty(key, selected.unwrap_or_else(every_endpoint));
    if key.kind == Kind::NetworkPolicy {
        policy.order = KUBERNETES_ORDER;
        (policy.ingress, policy.egress) = (Some(Vec::new()), Some(Vec::new()));
    } else {
        policy.broken = Some("it is not valid".to_owned());
    }
    Some(policy)
}
