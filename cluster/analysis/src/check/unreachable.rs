//! Finds rules of ordered policies that no packet reaches, because earlier rules decide every packet that they match.
//!
//! The check is exact for the ends of the input, and for later pods without labels: see `cells`. These are not
//! reported: rules of Kubernetes' policies, which only add to each other; rules of staged policies, which are not
//! enforced; and rules of baseline policies, whose purpose is to be overridden. Rules that repeat the effect of an
//! earlier policy, and two policies of one priority (see `priorities`), are not reported either.

use std::collections::{BTreeMap, HashSet};

use manx_objects::code::Code;
use manx_objects::object::{Kind, ObjectKey};
use manx_policy_compiler::model::{Action, Direction, Family, Hook, Rule};

use super::cells::{Cells, Pair, RuleAt, Taker, Tally};
use super::priorities::leaves_open;
use super::report::Report;

/// Reports the rules that no packet reaches.
pub(super) fn check<'a>(cells: &Cells<'_, 'a>, report: &mut Report<'a>) {
    for (policy, placed) in cells.policies.iter().enumerate() {
        let is_ordered = placed.key.kind != Kind::NetworkPolicy
            && matches!(placed.policy.hook, Hook::Endpoint | Hook::Forward);
        if !is_ordered || report.has_told(placed.key, "metadata.namespace") {
            continue;
        }
        for direction in Direction::ALL {
            let rules = placed.policy.rules(direction).unwrap_or_default();
            let mut indexes: Vec<u32> = rules.iter().map(|rule| rule.index).collect();
            indexes.dedup();
            let mut found: Vec<(RuleAt, Tally)> = Vec::new();
            for index in &indexes {
                let at = RuleAt { policy, direction, index: *index };
                let Some(tally) = unreachable(cells, at) else { continue };
                if !report.has_told(placed.key, &at.field()) {
                    found.push((at, tally));
                }
            }
            if cells.is_spent() {
                return;
            }
            tell(cells, placed.key, &found, indexes.len(), report);
        }
    }
}

/// Returns the rules and tier ends that decide every packet that a rule matches. Returns `None` if the rule decides
/// some packets, if it matches none, or if it is not to be reported.
fn unreachable(cells: &Cells<'_, '_>, at: RuleAt) -> Option<Tally> {
    let entities = |rule: &Rule| {
        let ends = [&rule.source, &rule.destination].into_iter();
        ends.flat_map(|end| end.entities.iter().flatten()).any(|entity| entity.service.is_some())
    };
    if cells.rules(at).any(entities) {
        return None;
    }
    let mut tally = Tally::default();
    // Endpoints with the same policies are evaluated only once, unless a rule depends on the endpoint itself.
    let mut done: HashSet<(usize, bool)> = HashSet::new();
    for local in cells.locals(cells.policies[at.policy].policy) {
        let key = (cells.list_number(local), cells.is_host(local));
        if cells.is_spent() {
            return None;
        }
        if done.contains(&key) {
            continue;
        }
        let mut is_general = true;
        for family in &cells.families {
            is_general &= taken(cells, at, local, *family, &mut tally)?;
        }
        if is_general || !cells.asks_of_local(at, local) {
            done.insert(key);
        }
        if cells.is_spent() {
            return None;
        }
    }
    (!tally.takers.is_empty() && is_worth_telling(cells, at, &tally)).then_some(tally)
}

/// Adds to `tally` the rules and tier ends that decide the packets of a family that a rule matches at a local end.
/// Returns whether the result is the same at all ends. Returns `None` if the rule itself decides some of these packets,
/// or if the bound is reached.
fn taken(
    cells: &Cells<'_, '_>,
    at: RuleAt,
    local: usize,
    family: Family,
    tally: &mut Tally,
) -> Option<bool> {
    for peer in cells.peers(at, local, family, false) {
        let pair = Pair { local, peer, family };
        let matched = cells.possible(at, &pair);
        if matched.is_empty() {
            continue;
        }
        if cells.leaves_some(&matched, &pair, at) {
            return None;
        }
        let mut of_pair = Tally::default();
        let left = cells.left(matched.clone(), &pair, at, &mut of_pair);
        if !left.is_empty() || cells.is_spent() {
            return None;
        }
        for (taker, count) in of_pair.takers {
            *tally.takers.entry(taker).or_default() += count;
        }
        if of_pair.general && cells.is_same_for_all(at, &pair, &matched) {
            return Some(true);
        }
    }
    Some(false)
}

fn is_worth_telling(cells: &Cells<'_, '_>, at: RuleAt, tally: &Tally) -> bool {
    let policy = |taker: &Taker| match taker {
        Taker::Rule(by) => by.policy,
        Taker::TierEnd(first) => *first,
    };
    let of = |taker: &Taker| &cells.policies[policy(taker)];
    let mut takers = tally.takers.keys();
    let is_open = |taker: &Taker| {
        policy(taker) != at.policy && leaves_open(of(taker), &cells.policies[at.policy])
    };
    if takers.clone().any(is_open) {
        return false;
    }
    if of_tier(cells, at) == "kube-baseline" {
        return takers.all(|taker| of(taker).key.kind != Kind::NetworkPolicy);
    }
    takers.clone().all(|taker| policy(taker) == at.policy)
        || takers.any(|taker| Some(effect(cells, *taker)) != action(cells, at))
}

fn of_tier<'c>(cells: &'c Cells<'_, '_>, at: RuleAt) -> &'c str {
    &cells.policies[at.policy].policy.tier
}

fn action(cells: &Cells<'_, '_>, at: RuleAt) -> Option<Action> {
    cells.rules(at).next().map(|rule| rule.action)
}

fn effect(cells: &Cells<'_, '_>, taker: Taker) -> Action {
    match taker {
        Taker::Rule(by) => action(cells, by).unwrap_or(Action::Deny),
        Taker::TierEnd(_) => Action::Deny,
    }
}

/// Reports the rules of a policy's direction that no packet reaches. If a direction has several rules and all are
/// unreachable, there is one problem for all.
fn tell<'a>(
    cells: &Cells<'_, 'a>,
    key: &'a ObjectKey,
    found: &[(RuleAt, Tally)],
    count: usize,
    report: &mut Report<'a>,
) {
    if let [(first, _), _, ..] = found
        && found.len() == count
    {
        let mut all: BTreeMap<Taker, usize> = BTreeMap::new();
        for (taker, cells) in found.iter().flat_map(|(_, tally)| &tally.takers) {
            *all.entry(*taker).or_default() += cells;
        }
        let list = first.direction;
        let message = format!(
            "no packet reaches any of these {count} rules: what they match is taken before {}",
            by(cells, *first, &all)
        );
        report.tell(key, &format!("spec.{list}"), Code::UnreachableRule, message);
        return;
    }
    for (at, tally) in found {
        let message = format!(
            "no packet reaches this rule: what it matches is taken before {}",
            by(cells, *at, &tally.takers)
        );
        report.tell(key, &at.field(), Code::UnreachableRule, message);
    }
}

/// Returns a text about the rule or tier end that decides the most packets, and about how many others there are.
fn by(cells: &Cells<'_, '_>, at: RuleAt, takers: &BTreeMap<Taker, usize>) -> String {
    let Some((most, _)) = takers.iter().rev().max_by_key(|(_, count)| **count) else {
        return String::new();
    };
    let effect = effect(cells, *most);
    let most = match most {
        Taker::Rule(by) if by.policy == at.policy => {
            format!("by {} of this policy ({effect:?})", by.field())
        }
        Taker::Rule(by) => {
            format!("by {}, {} ({effect:?})", cells.policies[by.policy].key, by.field())
        }
        Taker::TierEnd(first) => {
            let first = &cells.policies[*first];
            let tier = &first.policy.tier;
            format!(
                "by the end of tier {tier} ({effect:?}), which applies because of {}",
                first.key
            )
        }
    };
    match takers.len() - 1 {
        0 => most,
        more => format!("{most}, and {more} more"),
    }
}
