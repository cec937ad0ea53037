//! `BGPFilter`: decides whether a route is announced to a peer or accepted from it, and with which attributes.
//!
//! - The rules of a filter are evaluated in order, and so are the filters of a peer. The first rule that matches decides.
//! - A rule matches if all of its conditions hold. A rule without conditions matches every route.
//! - A route that no rule matches is unmatched. On import it is accepted, and on export the rules for all peers decide.
//! - If a named filter does not exist or is not valid, no route is announced to the peer or accepted from it. (Calico
//!   ignores a filter that does not exist, and so announces what it should hold back.)
//!
//! A rule reads the route's original attributes. No earlier rule can have changed them, because a rule that changes
//! attributes also accepts the route and ends the evaluation.
//!
//! Source: Calico's API reference, "BGP filter", and Calico's own tests of its nodes' configuration.

use std::borrow::Cow;
use std::sync::Arc;

use ipnet::IpNet;
use manx_objects::State;
use manx_objects::contents::Contents;
use manx_objects::object::bgp::{
    BgpFilter, Community, FilterRule, NetMatch, NetOperator, Operation,
};
use manx_objects::object::{Kind, Object, ObjectKey};

use crate::path::{Attributes, Segment, prepend};

#[cfg(test)]
mod tests;

/// The `LOCAL_PREF` of a route is this number minus the route's priority. A lower priority is better. All nodes of a
/// cluster must use the same number, and Calico's nodes use this one.
pub const LOCAL_PREF_OF_PRIORITY_0: u32 = i32::MAX.unsigned_abs();

/// The direction of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// To the peer.
    Export,
    /// From the peer.
    Import,
}

/// A route in the form in which filters read it.
#[derive(Debug, Clone, Copy)]
pub struct Route<'a> {
    /// The destination.
    pub prefix: IpNet,
    /// Its attributes. On export the caller must set `local_pref` for every route, even one of this node, because rules
    /// compare the priority.
    pub attributes: &'a Attributes,
    /// Whether a peer announced the route. Otherwise it is this node's own.
    pub is_from_peer: bool,
    /// The interface by which the route leaves this node, if there is one.
    pub interface: Option<&'a str>,
}

/// The decision of filters about a route.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum FilterAction<'a> {
    /// The route is accepted, with these attributes. The remaining rules are not evaluated.
    Accept(Cow<'a, Attributes>),
    /// The route is rejected.
    Reject,
    /// No rule matches.
    Unmatched,
}

/// The filters of a peer, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filters {
    filters: Vec<Arc<BgpFilter>>,
    /// Whether one of the filters is missing or not valid.
    is_closed: bool,
}

impl Filters {
    /// Returns the filters with these names for the peer `peer`, and the problems that were found.
    pub fn new(contents: &Contents, names: &[String], peer: &str) -> (Self, Vec<String>) {
        let mut filters = Self::default();
        let mut problems = Vec::new();
        for name in names {
            let stored = contents.objects.get(&ObjectKey::new(Kind::BgpFilter, "", name));
            let found = match stored.map(|stored| &stored.state) {
                Some(State::Valid(object)) => {
                    if let Object::BgpFilter(filter) = &**object {
                        filters.filters.push(Arc::new((**filter).clone()));
                        continue;
                    }
                    "another object"
                }
                Some(State::Invalid(_)) => "one that is not valid",
                None => "none",
            };
            filters.is_closed = true;
            problems.push(format!(
                "BGPFilter {name}: found {found}, expected the filter of peer {peer}, so no route goes to this peer and none is taken from it: correct the BGPFilter, or the filters of the BGPPeer"
            ));
        }
        (filters, problems)
    }

    /// Whether all routes are rejected in both directions.
    pub const fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Decides about a route to or from the filters' peer. `is_internal` says that the peer is in the same autonomous
    /// system.
    pub fn judge<'a>(
        &self,
        direction: Direction,
        route: &Route<'a>,
        is_internal: bool,
    ) -> FilterAction<'a> {
        if self.is_closed {
            return FilterAction::Reject;
        }
        let rules = self.filters.iter().flat_map(|it| rules(it, direction, route.prefix));
        for rule in rules {
            if matches(rule, route, is_internal) {
                return carry_out(rule, route.attributes);
            }
        }
        FilterAction::Unmatched
    }
}

/// The rules of a filter for a direction and the family of a prefix.
fn rules(filter: &BgpFilter, direction: Direction, prefix: IpNet) -> &[FilterRule] {
    match (direction, prefix) {
        (Direction::Export, IpNet::V4(_)) => &filter.export_v4,
        (Direction::Export, IpNet::V6(_)) => &filter.export_v6,
        (Direction::Import, IpNet::V4(_)) => &filter.import_v4,
        (Direction::Import, IpNet::V6(_)) => &filter.import_v6,
    }
}

/// Whether all conditions of a rule hold.
fn matches(rule: &FilterRule, route: &Route<'_>, is_internal: bool) -> bool {
    let FilterRule {
        net,
        from_peers,
        interface,
        internal_peer,
        community,
        path_begins,
        priority,
        accepts: _,
        operations: _,
    } = rule;
    let attributes = route.attributes;
    let has = |community: Community| match community {
        Community::Standard(it) => attributes.communities.contains(&it),
        Community::Large(it) => attributes.large_communities.contains(&it),
    };
    let leaves_by = |pattern: &String| route.interface.is_some_and(|it| is_like(it, pattern));
    let has_priority = |it: u32| attributes.local_pref == Some(local_pref(it));
    net.is_none_or(|net| is_in(net, route.prefix))
        && (!from_peers || route.is_from_peer)
        && interface.as_ref().is_none_or(leaves_by)
        && internal_peer.is_none_or(|it| it == is_internal)
        && community.is_none_or(has)
        && begins_with(&attributes.as_path, path_begins)
        && priority.is_none_or(has_priority)
}

/// Whether `cidr`, `matchOperator` and `prefixLength` hold for a prefix. If `prefixLength` is set, it limits the prefix's
/// length. A prefix shorter than `cidr` is never in it.
fn is_in(net: NetMatch, prefix: IpNet) -> bool {
    let length = prefix.prefix_len();
    let is_of_length = net.shortest.is_none_or(|shortest| length >= shortest)
        && net.longest.is_none_or(|longest| length <= longest);
    match net.operator {
        NetOperator::Equal => net.cidr == prefix && is_of_length,
        NetOperator::NotEqual => !(net.cidr == prefix && is_of_length),
        NetOperator::In => net.cidr.contains(&prefix) && is_of_length,
        NetOperator::NotIn => !(net.cidr.contains(&prefix) && is_of_length),
    }
}

/// Whether a path begins with these systems, in this order. A set in the path matches if it contains the system, as in
/// BIRD.
fn begins_with(path: &[Segment], systems: &[u32]) -> bool {
    let mut steps = path.iter().flat_map(|segment| match segment {
        Segment::Sequence(systems) => systems.chunks(1).collect::<Vec<_>>(),
        Segment::Set(systems) => vec![&systems[..]],
    });
    systems.iter().all(|system| steps.next().is_some_and(|step| step.contains(system)))
}

/// Whether a name matches a pattern, in which `*` stands for any text. The time is at most proportional to the product of
/// the lengths.
fn is_like(name: &str, pattern: &str) -> bool {
    let (name, pattern) = (name.as_bytes(), pattern.as_bytes());
    let (mut at, mut of_pattern) = (0, 0);
    // For the last `*`: the rest of the pattern after it, and the index of the first byte of the name that this `*`
    // does not match.
    let mut last: Option<(usize, usize)> = None;
    while at < name.len() {
        if pattern.get(of_pattern) == Some(&b'*') {
            of_pattern += 1;
            last = Some((of_pattern, at));
        } else if pattern.get(of_pattern) == Some(&name[at]) {
            at += 1;
            of_pattern += 1;
        } else if let Some((after, longer)) = last {
            (of_pattern, at) = (after, longer + 1);
            last = Some((after, longer + 1));
        } else {
            return false;
        }
    }
    pattern[of_pattern..].iter().all(|byte| *byte == b'*')
}

fn carry_out<'a>(rule: &FilterRule, attributes: &'a Attributes) -> FilterAction<'a> {
    if !rule.accepts {
        return FilterAction::Reject;
    }
    let mut changed = Cow::Borrowed(attributes);
    for operation in &rule.operations {
        apply(operation, changed.to_mut());
    }
    FilterAction::Accept(changed)
}

fn apply(operation: &Operation, attributes: &mut Attributes) {
    match operation {
        Operation::AddCommunity(community) => add_community(attributes, *community),
        Operation::PrependPath(systems) => prepend(&mut attributes.as_path, systems),
        Operation::SetPriority(priority) => attributes.local_pref = Some(local_pref(*priority)),
    }
}

/// Adds a community, unless it is already there.
pub(crate) fn add_community(attributes: &mut Attributes, community: Community) {
    match community {
        Community::Standard(it) => add(&mut attributes.communities, it),
        Community::Large(it) => add(&mut attributes.large_communities, it),
    }
}

/// The `LOCAL_PREF` of a priority.
pub(crate) const fn local_pref(priority: u32) -> u32 {
    LOCAL_PREF_OF_PRIORITY_0.saturating_sub(priority)
}

/// Adds an element to a sorted list without duplicates.
fn add<T: Ord>(list: &mut Vec<T>, it: T) {
    if let Err(at) = list.binary_search(&it) {
        list.insert(at, it);
    }
}
