//! Calico's policies and profiles, with Calico's defaults applied.
//!
//! Source: Calico's API reference, NetworkPolicy and GlobalNetworkPolicy.

use std::sync::Arc;

use manx_policy_compiler::model::{
    Action, Entity, Family, Hook, Labels, Model, NAMESPACE, ObjectName, Order, Policy, PortMatch,
    Profile, Rule, RuleEnd, SERVICE_ACCOUNT,
};
use manx_policy_compiler::selector::{Selector, SelectorError};

use super::DEFAULT_TIER;
use super::invalid_references::InvalidReferences;
use manx_objects::object::PolicyType;
use manx_objects::object::calico::{self, EntityRule, StagedAction, Subject};

/// The reason why the meaning of a policy or profile is not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unknown {
    #[error("its tier {0} is not valid")]
    Tier(String),
    #[error("a selector cannot be read: {0}")]
    Selector(#[from] SelectorError),
    #[error("a rule may refer to a network set that is not valid")]
    Set,
    #[error(
        "a rule names a service of namespace {0}, which has an EndpointSlice that is not valid"
    )]
    Service(String),
}

/// The context in which rules are imported.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    /// The model. Only its namespaces and their labels are used here.
    pub(super) model: &'a Model,
    pub(super) invalid: &'a InvalidReferences<'a>,
    /// The namespace of the policy.
    pub(super) namespace: Option<&'a str>,
}

/// Returns whether a staged policy is evaluated. This is so if its action is Set, which is the default, but not for
/// Delete, Learn and Ignore.
pub fn is_evaluated(action: Option<StagedAction>) -> bool {
    matches!(action, None | Some(StagedAction::Set))
}

/// Imports a policy. If the policy is broken, also returns the reason.
pub(super) fn import(wire: &calico::Policy, context: Context<'_>) -> (Policy, Option<Unknown>) {
    let mut policy = broken(Some(&wire.subject), context.namespace);
    policy.tier = wire.tier.clone().unwrap_or_else(|| DEFAULT_TIER.to_owned());
    policy.order = wire.order.unwrap_or(Order::LAST);
    policy.hook = match (wire.do_not_track, wire.pre_dnat, wire.apply_on_forward) {
        (true, _, _) => Hook::Untracked,
        (_, true, _) => Hook::PreDnat,
        (_, _, true) => Hook::Forward,
        _ => Hook::Endpoint,
    };
    match directions(wire, context) {
        Ok((ingress, egress)) => {
            policy.broken = false;
            policy.ingress = ingress;
            policy.egress = egress.filter(|_| policy.hook != Hook::PreDnat);
            (policy, None)
        }
        Err(unknown) => (policy, Some(unknown)),
    }
}

/// Returns the replacement of an invalid policy, which denies all packets of the endpoints that the policy may select.
/// `wire` is the subject of the policy, if it is known.
pub(super) fn broken(wire: Option<&Subject>, namespace: Option<&str>) -> Policy {
    let all = || namespace.map_or_else(Selector::all, |own| Selector::equals(NAMESPACE, own));
    Policy {
        tier: DEFAULT_TIER.to_owned(),
        order: Order::LAST,
        selector: wire.and_then(|wire| subject(wire, namespace).ok()).unwrap_or_else(all),
        hook: Hook::Endpoint,
        ingress: None,
        egress: None,
        broken: true,
    }
}

type Directions = (Option<Vec<Rule>>, Option<Vec<Rule>>);

/// Returns the directions to which a policy applies. Without `types` it applies to ingress unless it has only egress
/// rules, and to egress if it has egress rules.
fn directions(wire: &calico::Policy, context: Context<'_>) -> Result<Directions, Unknown> {
    let tier = wire.tier.as_deref().unwrap_or(DEFAULT_TIER);
    if context.invalid.tier(tier) {
        return Err(Unknown::Tier(tier.to_owned()));
    }
    // This checks that the subject can be parsed.
    subject(&wire.subject, context.namespace)?;
    let (ingress, egress) = match wire.types.as_deref() {
        None | Some([]) => {
            (!wire.ingress.is_empty() || wire.egress.is_empty(), !wire.egress.is_empty())
        }
        Some(types) => (types.contains(&PolicyType::Ingress), types.contains(&PolicyType::Egress)),
    };
    Ok((
        ingress.then(|| rules(&wire.ingress, context)).transpose()?,
        egress.then(|| rules(&wire.egress, context)).transpose()?,
    ))
}

pub(super) fn profile(wire: &calico::Profile, context: Context<'_>) -> Result<Profile, Unknown> {
    Ok(Profile { ingress: rules(&wire.ingress, context)?, egress: rules(&wire.egress, context)? })
}

/// Returns one of the profiles that Calico makes by itself: one for every namespace, one for every service account, and
/// one that allows everything.
pub(super) fn built_in_profile(name: &str, model: &Model) -> Option<Arc<Profile>> {
    let open = || {
        let rules = vec![Rule::every_packet(0, Action::Allow)];
        Profile { ingress: rules.clone(), egress: rules }
    };
    let namespace = name.strip_prefix("kns.");
    let profile = if name == "projectcalico-default-allow"
        || namespace.is_some_and(|namespace| model.namespaces.contains_key(namespace))
    {
        open()
    } else if name.starts_with("ksa.") {
        Profile::default()
    } else {
        return None;
    };
    Some(Arc::new(profile))
}

/// Returns the endpoints that a policy selects. A namespaced policy selects only endpoints of its namespace.
///
/// In a global policy, a selector of namespaces or service accounts changes the meaning of `all()` in the policy's
/// other selector. With a selector of namespaces, the member must then have a namespace; otherwise it must have a
/// service account. So no host endpoint matches. Calico replaces only the exact text `all()`. So `all( )` keeps its
/// meaning, and an absent selector is not affected, because it does not contain the text. Source: `libcalico-go`, the
/// conversion of `GlobalNetworkPolicy`.
fn subject(wire: &Subject, namespace: Option<&str>) -> Result<Selector, SelectorError> {
    let parse_account = match namespace {
        None => Selector::parse_subjects_account,
        Some(_) => Selector::parse_service_account,
    };
    let narrowed = match (namespace, &wire.namespace_selector, &wire.service_account_selector) {
        (None, Some(_), _) => Some(NAMESPACE),
        (None, None, Some(_)) => Some(SERVICE_ACCOUNT),
        _ => None,
    };
    let selector = wire.selector.as_deref().map(|text| match narrowed {
        Some(label) => Selector::parse(&text.replace("all()", &format!("has({label})"))),
        None => Selector::parse(text),
    });
    let parts = [
        namespace.map(|own| Selector::equals(NAMESPACE, own)),
        selector.transpose()?,
        wire.namespace_selector.as_deref().map(Selector::parse_namespace).transpose()?,
        wire.service_account_selector.as_deref().map(parse_account).transpose()?,
    ];
    Ok(Selector::and(parts.into_iter().flatten()))
}

fn rules(wire: &[calico::Rule], context: Context<'_>) -> Result<Vec<Rule>, Unknown> {
    let rules = (0..).zip(wire).map(|(index, it)| rule(index, it, context));
    rules.filter_map(Result::transpose).collect()
}

/// Returns `None` if the rule has an HTTP match and allows, because HTTP cannot be inspected here; such a rule allows
/// nothing. A Deny with an HTTP match denies everything that its other terms match.
fn rule(index: u32, wire: &calico::Rule, context: Context<'_>) -> Result<Option<Rule>, Unknown> {
    let source = end(&wire.source, context)?;
    let destination = end(&wire.destination, context)?;
    if wire.http && wire.action != Action::Deny {
        return Ok(None);
    }
    Ok(Some(Rule {
        index,
        action: wire.action,
        family: wire.ip_version.map(|version| if version == 4 { Family::V4 } else { Family::V6 }),
        protocol: wire.protocol,
        not_protocol: wire.not_protocol,
        icmp: wire.icmp,
        not_icmp: wire.not_icmp,
        source,
        destination,
    }))
}

fn end(wire: &EntityRule, context: Context<'_>) -> Result<RuleEnd, Unknown> {
    let entity = entity(wire, context)?;
    let ports = |wire: &[calico::Port]| wire.iter().map(port).collect();
    Ok(RuleEnd {
        entities: (entity != Entity::default()).then(|| vec![entity]),
        ports: ports(&wire.ports),
        not_ports: ports(&wire.not_ports),
    })
}

fn port(wire: &calico::Port) -> PortMatch {
    match wire {
        calico::Port::Range(first, last) => PortMatch::Range { first: *first, last: *last },
        calico::Port::Name(name) => PortMatch::Named(name.clone()),
    }
}

/// In a namespaced policy, every selector is limited to the policy's namespace, unless the rule has a
/// `namespaceSelector`. A `notSelector` alone also limits the rule to the namespace, although the labels that it
/// excludes may occur in any namespace.
fn entity(wire: &EntityRule, context: Context<'_>) -> Result<Entity, Unknown> {
    let selector = wire.selector.as_deref().map(Selector::parse).transpose()?;
    let not_selector = wire.not_selector.as_deref().map(Selector::parse).transpose()?;
    let there = wire.namespace_selector.as_deref().map(Selector::parse_namespace).transpose()?;
    let run_as = wire.service_accounts.as_ref();
    let names = run_as.filter(|run_as| !run_as.names.is_empty());
    let names = names.map(|it| Selector::is_in(SERVICE_ACCOUNT, it.names.iter().cloned()));
    let run_as = run_as
        .and_then(|it| it.selector.as_deref())
        .map(Selector::parse_service_account)
        .transpose()?;
    // If a selector of accounts matches members without an account, it also matches network sets.
    let no_labels = Labels::new();
    let accounts_take_sets = names.is_none() && run_as.iter().any(|it| it.matches(&no_labels));
    let asks_for_sets =
        selector.is_some() || not_selector.is_some() || there.is_some() || accounts_take_sets;
    let selects = selector.is_some() || there.is_some() || names.is_some() || run_as.is_some();
    let own = context.namespace.filter(|_| there.is_none());
    let own = own.map(|own| Selector::equals(NAMESPACE, own));
    let positive = (selects || (not_selector.is_some() && context.namespace.is_some()))
        .then(|| Selector::and([own, there, selector, names, run_as].into_iter().flatten()));
    let rests_on_invalid = [&positive, &not_selector]
        .into_iter()
        .flatten()
        .any(|selector| context.invalid.set(selector, context.model));
    if rests_on_invalid || (asks_for_sets && context.invalid.any_set()) {
        return Err(Unknown::Set);
    }
    let service = match &wire.service {
        None => None,
        Some(service) => {
            let namespace = service.namespace.as_deref().or(context.namespace).unwrap_or_default();
            if context.invalid.service(namespace) {
                return Err(Unknown::Service(namespace.to_owned()));
            }
            Some(ObjectName::new(namespace, &service.name))
        }
    };
    Ok(Entity {
        selector: positive,
        not_selector,
        nets: wire.nets.iter().copied().collect(),
        not_nets: wire.not_nets.iter().copied().collect(),
        service,
    })
}
