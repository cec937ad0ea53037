//! Finds cluster-wide policies of one tier and one priority that decide the same packets differently.
//!
//! Kubernetes' API does not define which of them decides. The check is exact for the ends of the input, and for later
//! pods without labels: see `cells`.

use manx_objects::code::Code;
use manx_objects::object::Kind;
use manx_policy_compiler::model::{Action, Direction, Protocol, Rule, Transport};

use super::cells::{Cells, Pair, Peer, Placed, RuleAt, Tally};
use super::report::Report;

/// A packet that two rules decide differently, described by the two rules and its peer.
struct Conflict {
    /// The rule of the policy that Manx evaluates first.
    first: RuleAt,
    second: RuleAt,
    peer: Peer,
    packet: Option<Transport>,
}

/// Reports each policy that contradicts an earlier policy, once.
pub(super) fn check<'a>(cells: &Cells<'_, 'a>, report: &mut Report<'a>) {
    let is_cluster = |at: &usize| is_cluster_wide(&cells.policies[*at]);
    let all: Vec<usize> = (0..cells.policies.len()).filter(is_cluster).collect();
    let are_alike =
        |one: &usize, other: &usize| leaves_open(&cells.policies[*one], &cells.policies[*other]);
    for group in all.chunk_by(are_alike) {
        for (number, second) in group.iter().enumerate() {
            let before = group.iter().take(number);
            let found = before.copied().find_map(|first| conflict(cells, first, *second));
            if cells.is_spent() {
                return;
            }
            let Some(conflict) = found else { continue };
            let key = cells.policies[*second].key;
            report.tell(key, "spec.priority", Code::ConflictingPriority, conflict.text(cells));
        }
    }
}

/// Returns whether Kubernetes does not define which of two policies decides.
pub(super) fn leaves_open(one: &Placed<'_, '_>, other: &Placed<'_, '_>) -> bool {
    is_cluster_wide(one)
        && is_cluster_wide(other)
        && one.policy.tier == other.policy.tier
        && one.policy.order == other.policy.order
}

fn is_cluster_wide(placed: &Placed<'_, '_>) -> bool {
    matches!(
        placed.key.kind,
        Kind::ClusterNetworkPolicy | Kind::AdminNetworkPolicy | Kind::BaselineAdminNetworkPolicy
    )
}

fn conflict(cells: &Cells<'_, '_>, first: usize, second: usize) -> Option<Conflict> {
    if cells.is_spent() {
        return None;
    }
    let [one, other] = [first, second].map(|at| cells.policies[at].policy);
    for direction in Direction::ALL {
        let (Some(ones), Some(others)) = (one.rules(direction), other.rules(direction)) else {
            continue;
        };
        cells.spend(ones.len() * others.len());
        if !ones.iter().any(|one| others.iter().any(|other| one.action != other.action)) {
            continue;
        }
        for local in cells.locals(one) {
            let list = cells.list(local);
            cells.spend(list.len());
            if !list.contains(&second) {
                continue;
            }
            let found = others.iter().find_map(|rule| {
                let second = RuleAt { policy: second, direction, index: rule.index };
                at_local(cells, first, second, rule, local)
            });
            if found.is_some() || cells.is_spent() {
                return found;
            }
        }
    }
    None
}

/// Returns a packet of a local end that a rule of the second policy decides differently from the first policy.
fn at_local(
    cells: &Cells<'_, '_>,
    first: usize,
    second: RuleAt,
    rule: &Rule,
    local: usize,
) -> Option<Conflict> {
    let direction = second.direction;
    for family in cells.families.iter().copied() {
        for peer in cells.peers(second, local, family, true) {
            let pair = Pair { local, peer, family };
            if cells.is_spent() {
                return None;
            }
            let mut packets = cells.matched(rule, direction, &pair, true);
            if packets.is_empty() {
                continue;
            }
            // A packet does not count if an earlier rule of the second policy decides it, or a policy that comes before
            // both.
            let own = cells.policies[second.policy].policy.rules(direction).unwrap_or_default();
            for before in own.iter().take_while(|it| it.index < second.index) {
                packets.subtract(&cells.matched(before, direction, &pair, false));
            }
            if packets.is_empty() {
                continue;
            }
            let start = RuleAt { policy: first, direction, index: 0 };
            packets = cells.left(packets, &pair, start, &mut Tally::default());
            let rules = cells.policies[first].policy.rules(direction).unwrap_or_default();
            for other in rules {
                let matched = cells.matched(other, direction, &pair, true);
                let both = packets.intersection(&matched);
                if other.action != rule.action && !both.is_empty() {
                    let first = RuleAt { index: other.index, ..start };
                    return Some(Conflict { first, second, peer, packet: both.first() });
                }
                packets.subtract(&cells.matched(other, direction, &pair, false));
            }
        }
    }
    None
}

impl Conflict {
    fn text(&self, cells: &Cells<'_, '_>) -> String {
        let Self { first, second, peer, packet } = self;
        let of = &cells.policies[first.policy];
        let action = |at: RuleAt| cells.rules(at).next().map_or(Action::Deny, |rule| rule.action);
        let to = if first.direction == Direction::Ingress { "from" } else { "to" };
        let packet = packet.map_or_else(String::new, |packet| {
            match packet.destination_port().zip(Protocol::from_number(packet.protocol)) {
                Some((port, protocol)) => format!("{protocol} port {port} "),
                None => format!("{packet} "),
            }
        });
        format!(
            "{} has this priority, {}, too, and contradicts this policy: for {packet}{to} {}, its {} says {:?} and {} of this policy {:?}; Kubernetes leaves open which of them decides, and Manx asks {} first",
            of.key,
            of.policy.order,
            cells.name(*peer),
            first.field(),
            action(*first),
            second.field(),
            action(*second),
            of.key.name,
        )
    }
}
