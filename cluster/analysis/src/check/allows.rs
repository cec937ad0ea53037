//! Finds `Allow` rules of Calico policies in the tier `default` that come before Kubernetes policies in the same tier.
//! The Kubernetes policies are not evaluated for the packets that such a rule allows.
//!
//! An Allow for a few ports or for listed peers is meant as an exception and is not reported. An Allow is reported
//! under two conditions: it opens most ports of a protocol to everyone (an address outside the cluster, or a pod that
//! no policy names), and Kubernetes policies would have denied some of these packets.

use std::collections::HashSet;

use manx_objects::code::Code;
use manx_objects::object::{Kind, ObjectKey};
use manx_policy_compiler::model::{Action, Direction, Family, Hook};
use manx_policy_compiler::packets::Packets;

use super::cells::{Cells, Pair, RuleAt, Tally};
use super::report::Report;

/// Reports the Allow rules that meet these conditions.
pub(super) fn check<'a>(cells: &Cells<'_, 'a>, report: &mut Report<'a>) {
    let Some(last) = cells.policies.iter().rposition(|it| it.key.kind == Kind::NetworkPolicy)
    else {
        return;
    };
    for (policy, placed) in cells.policies.iter().enumerate().take(last) {
        let is_calico =
            matches!(placed.key.kind, Kind::CalicoNetworkPolicy | Kind::GlobalNetworkPolicy);
        // Policies with other hooks apply before connection tracking or to host endpoints, never to pods.
        let is_asked = matches!(placed.policy.hook, Hook::Endpoint);
        if !is_calico || !is_asked || placed.policy.tier != "default" {
            continue;
        }
        for direction in Direction::ALL {
            let rules = placed.policy.rules(direction).unwrap_or_default();
            let allows = rules.iter().filter(|rule| rule.action == Action::Allow);
            let mut indexes: Vec<u32> = allows.map(|rule| rule.index).collect();
            indexes.dedup();
            for index in indexes {
                let at = RuleAt { policy, direction, index };
                let Some(skipped) = skipped(cells, at) else { continue };
                let message = format!(
                    "Allow decides in tier default, so {skipped}, which is in this tier, too, is not asked: what it denies is open to everyone, on most ports"
                );
                report.tell(
                    placed.key,
                    &(at.field() + ".action"),
                    Code::AllowSkipsPolicies,
                    message,
                );
            }
        }
    }
}

/// Returns a Kubernetes policy that would deny some of the packets that an earlier rule opens to everyone.
fn skipped<'a>(cells: &Cells<'_, 'a>, at: RuleAt) -> Option<&'a ObjectKey> {
    let opens_most = |family: &Family| {
        let mut all = Packets::default();
        cells.rules(at).for_each(|rule| all.add(Packets::matching(rule, *family, &[], &[])));
        all.has_most_ports()
    };
    if !cells.families.iter().any(opens_most) {
        return None;
    }
    let mut done: HashSet<usize> = HashSet::new();
    for local in cells.locals(cells.policies[at.policy].policy) {
        let list = cells.list(local);
        cells.spend(list.len());
        if cells.is_spent() {
            return None;
        }
        let is_skipped = |it: &&usize| {
            let placed = &cells.policies[**it];
            **it > at.policy
                && placed.key.kind == Kind::NetworkPolicy
                && placed.policy.rules(at.direction).is_some()
        };
        let Some(first) = list.iter().find(is_skipped).copied() else { continue };
        if !done.insert(cells.list_number(local)) {
            continue;
        }
        for family in cells.families.iter().copied() {
            for peer in cells.strangers() {
                let pair = Pair { local, peer, family };
                let opened = opened(cells, at, &pair);
                if opened.has_most_ports() && denies(cells, &list, first, at, &pair, opened) {
                    return (!cells.is_spent()).then_some(cells.policies[first].key);
                }
            }
        }
    }
    None
}

/// Returns the packets of a pair that a rule allows.
fn opened(cells: &Cells<'_, '_>, at: RuleAt, pair: &Pair) -> Packets {
    let mut all = Packets::default();
    for rule in cells.rules(at) {
        all.add(cells.matched(rule, at.direction, pair, true));
    }
    if all.has_most_ports() { cells.left(all, pair, at, &mut Tally::default()) } else { all }
}

/// Returns whether the policies of the tier, from this policy on, deny some of these packets.
fn denies(
    cells: &Cells<'_, '_>,
    list: &[usize],
    from: usize,
    at: RuleAt,
    pair: &Pair,
    mut packets: Packets,
) -> bool {
    for placed in list.iter().filter(|it| **it >= from).map(|it| &cells.policies[*it]) {
        if placed.policy.tier != "default" {
            break;
        }
        for rule in placed.policy.rules(at.direction).unwrap_or_default() {
            if rule.action == Action::Allow {
                packets.subtract(&cells.matched(rule, at.direction, pair, false));
            }
        }
    }
    !packets.is_empty()
}
