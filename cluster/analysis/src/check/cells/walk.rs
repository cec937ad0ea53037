//! The walk over the rules that are evaluated before a given rule.

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::mem::take;
use std::net::IpAddr;
use std::rc::Rc;

use ipnet::IpNet;
use manx_policy_compiler::model::{
    Action, DefaultAction, Direction, Entity, Family, Hook, PortMatch, Rule, RuleEnd,
};
use manx_policy_compiler::packets::Packets;

use super::ends::{Address, EndKind, around};
use super::{Cells, Pair, Peer, Placed, RuleAt, Taker, Tally};

/// The number of steps that each stored walk costs. This cost bounds the memory for walks.
const STEPS_OF_WALK: usize = 32;

/// A walk over the rules at an endpoint, in the order of evaluation, with its current position. Each packet is decided
/// independently of the others.
#[derive(Default)]
pub(super) struct Walk {
    /// `alive` are the packets that no rule has decided or passed yet. `passed` are the packets that rules of the
    /// current tier have passed to the next tier.
    alive: Packets,
    passed: Packets,
    /// The first policy of the current tier.
    tier: Option<usize>,
    /// The next policy as an index in the endpoint's list, and the index of its next rule.
    next_policy: usize,
    next_rule: usize,
    /// The rule before which the walk has stopped.
    until: Option<RuleAt>,
}

impl Walk {
    /// Returns whether no packets are left.
    fn is_over(&self) -> bool {
        self.alive.is_empty() && self.passed.is_empty()
    }
}

impl Cells<'_, '_> {
    /// Returns the packets of a pair that a rule of an object may match.
    pub(in crate::check) fn possible(&self, at: RuleAt, pair: &Pair) -> Packets {
        let mut all = Packets::default();
        for rule in self.rules(at) {
            all.add(self.matched(rule, at.direction, pair, false));
        }
        all
    }

    /// Returns whether a rule matches for this pair all packets that it matches for any pair. `found` are the packets
    /// that it matches for this pair. Returns false if the rule has named ports, because ports with the same name
    /// differ between pods.
    pub(in crate::check) fn is_same_for_all(
        &self,
        at: RuleAt,
        pair: &Pair,
        found: &Packets,
    ) -> bool {
        let mut all = Packets::default();
        for rule in self.rules(at) {
            if has_names(rule) {
                return false;
            }
            all.add(Packets::matching(rule, pair.family, &[], &[]));
        }
        all == *found
    }

    /// Returns the packets of a pair that a rule matches certainly (if `certain`) or possibly.
    pub(in crate::check) fn matched(
        &self,
        rule: &Rule,
        direction: Direction,
        pair: &Pair,
        certain: bool,
    ) -> Packets {
        self.spend(1);
        let local = Peer { end: Some(pair.local), address: Address::Unknown };
        let (local_end, peer_end) = rule.ends(direction);
        for (end, at) in [(peer_end, pair.peer), (local_end, local)] {
            let names = end.not_ports.iter().any(|port| matches!(port, PortMatch::Named(_)));
            if !self.end_holds(end, at, pair.family, certain) || (certain && names) {
                return Packets::default();
            }
        }
        let ports = |peer: Peer| peer.end.map_or(&[][..], |end| &*self.ends[end].ports);
        let (source, destination) = match direction {
            Direction::Ingress => (pair.peer, local),
            Direction::Egress => (local, pair.peer),
        };
        Packets::matching(rule, pair.family, ports(source), ports(destination))
    }

    fn end_holds(&self, end: &RuleEnd, at: Peer, family: Family, certain: bool) -> bool {
        let Some(entities) = &end.entities else { return true };
        entities.iter().any(|entity| {
            self.spend(1);
            self.entity_holds(entity, at, family, certain)
        })
    }

    fn entity_holds(&self, entity: &Entity, at: Peer, family: Family, certain: bool) -> bool {
        let Entity { selector, not_selector, nets, not_nets, service } = entity;
        let end = at.end.map(|end| &self.ends[end]);
        if let Some(selector) = selector
            && !end.is_some_and(|end| selector.matches(end))
        {
            return false;
        }
        // Another member may also have the address.
        if let Some(selector) = not_selector
            && (certain || end.is_some_and(|end| selector.matches(end)))
        {
            return false;
        }
        let is_in = |net: &IpNet| at.address.is_in(net, family).unwrap_or(!certain);
        let is_out = |net: &IpNet| !at.address.is_in(net, family).unwrap_or(certain);
        !(certain && service.is_some())
            && entity.allows_family(family)
            && (nets.is_empty() || nets.iter().any(is_in))
            && not_nets.iter().all(is_out)
    }

    /// Returns those of these packets that reach the rule `until`. `tally` records what decided the other packets.
    /// `until` names a rule of a policy that selects the local end. Its index may be beyond the last rule.
    pub(in crate::check) fn left(
        &self,
        packets: Packets,
        pair: &Pair,
        until: RuleAt,
        tally: &mut Tally,
    ) -> Packets {
        let mut walk = Walk { alive: packets, ..Walk::default() };
        self.walk(&mut walk, pair, until, tally);
        walk.alive
    }

    /// Returns true only if the rules before a rule certainly leave some of these packets. The cost is low if this is
    /// called for the rules in the order of evaluation, because the walk of each pair continues from its last position.
    /// If the result is false, [`Cells::left`] gives the exact answer.
    pub(in crate::check) fn leaves_some(
        &self,
        packets: &Packets,
        pair: &Pair,
        until: RuleAt,
    ) -> bool {
        // At a host endpoint, the rule determines which policies apply, so walks cannot be shared. A single outside
        // address is used for few rules, so its walk is not stored.
        let is_single = pair.peer.end.is_none() && pair.peer.address != Address::Unnamed;
        if self.is_host(pair.local) || is_single {
            return false;
        }
        let mut walks = self.walks.borrow_mut();
        let walk = walks.entry((*pair, until.direction)).or_default();
        if walk.until.is_none_or(|it| it > until) {
            let every = Rule::every_packet(0, Action::Allow);
            let alive = Packets::matching(&every, pair.family, &[], &[]);
            self.spend(STEPS_OF_WALK + alive.pieces());
            *walk = Walk { alive, ..Walk::default() };
        }
        walk.until = Some(until);
        self.walk(walk, pair, until, &mut Tally::default());
        !walk.alive.intersection(packets).is_empty()
    }

    /// Continues a walk to the rule `until`.
    fn walk(&self, walk: &mut Walk, pair: &Pair, until: RuleAt, tally: &mut Tally) {
        let target = &self.policies[until.policy];
        let list = self.list(pair.local);
        while let Some(at) = list.get(walk.next_policy).copied().filter(|at| *at <= until.policy) {
            self.spend(1);
            let placed = &self.policies[at];
            if self.counts(placed, target, pair.local)
                && let Some(rules) = placed.policy.rules(until.direction)
            {
                self.enter_tier(at, walk, tally);
                let ends_here = placed.policy.tier == target.policy.tier;
                for rule in &rules[walk.next_rule..] {
                    if (at == until.policy && rule.index >= until.index) || walk.is_over() {
                        return;
                    }
                    walk.next_rule += 1;
                    self.apply(rule, (at, ends_here), walk, (pair, until.direction), tally);
                }
            }
            if at == until.policy {
                return;
            }
            walk.next_policy += 1;
            walk.next_rule = 0;
        }
    }

    /// Removes from a walk the packets that a rule of a policy decides.
    fn apply(
        &self,
        rule: &Rule,
        (policy, ends_here): (usize, bool),
        walk: &mut Walk,
        (pair, direction): (&Pair, Direction),
        tally: &mut Tally,
    ) {
        let is_general = || is_general(rule, direction, pair.family);
        if rule.action == Action::Pass && !ends_here {
            tally.general &= is_general();
        }
        if walk.alive.is_empty() || rule.action == Action::Log {
            return;
        }
        let matched = self.matched(rule, direction, pair, true);
        if matched.is_empty() {
            return;
        }
        let taken = walk.alive.intersection(&matched);
        self.spend(walk.alive.pieces());
        if taken.is_empty() {
            return;
        }
        walk.alive.subtract(&matched);
        if rule.action == Action::Pass {
            walk.passed.add(taken);
            if !ends_here {
                return;
            }
        }
        tally.general &= is_general();
        let by = RuleAt { policy, direction, index: rule.index };
        *tally.takers.entry(Taker::Rule(by)).or_default() += 1;
    }

    /// Ends the current tier of a walk if the policy is in another tier.
    fn enter_tier(&self, policy: usize, walk: &mut Walk, tally: &mut Tally) {
        let first = *walk.tier.get_or_insert(policy);
        let tier = &self.policies[first].policy.tier;
        if *tier == self.policies[policy].policy.tier {
            return;
        }
        match self.scene.model().tier(tier).default_action {
            DefaultAction::Pass => walk.alive.add(take(&mut walk.passed)),
            DefaultAction::Deny => {
                if !walk.alive.is_empty() {
                    *tally.takers.entry(Taker::TierEnd(first)).or_default() += 1;
                }
                walk.alive = take(&mut walk.passed);
            }
        }
        walk.tier = Some(policy);
    }

    /// Returns whether a policy applies wherever another policy applies at the same endpoint. This may differ only at
    /// host endpoints, which have several hooks.
    fn counts(&self, placed: &Placed<'_, '_>, target: &Placed<'_, '_>, local: usize) -> bool {
        match placed.policy.hook {
            Hook::Forward => true,
            Hook::Endpoint => {
                self.ends[local].kind == EndKind::Pod || target.policy.hook == Hook::Endpoint
            }
            Hook::PreDnat | Hook::Untracked => false,
        }
    }

    /// Returns peers that a rule may match, so many that other peers cannot change the result. These are: an address
    /// that no rule names; an address on either side of every bound of a net that the rules up to this one name; and
    /// the ends that the rule selects by their labels. Any other end has one of these addresses. Such an end matters
    /// only if the rule has port names, or if an earlier Pass in another tier selects members or has port names. In
    /// that case, or if `every` is true, every end is included.
    pub(in crate::check) fn peers<'c>(
        &'c self,
        at: RuleAt,
        local: usize,
        family: Family,
        every: bool,
    ) -> impl Iterator<Item = Peer> + 'c {
        let entities = move || {
            let of = move |rule: &'c Rule| rule.ends(at.direction).1.entities.as_deref();
            self.rules(at).map(of)
        };
        let by_address = entities()
            .any(|all| all.is_none_or(|all| all.iter().any(|entity| entity.selector.is_none())));
        let every = every || (by_address && self.members_matter(at, local));
        let selected = entities().flatten().flatten().filter_map(|it| it.selector.as_ref());
        let selected = selected.filter(move |_| !every).flat_map(|it| self.ends_of(it));
        let all = if every { 0..self.ends.len() } else { 0..0 };
        let nets = Rc::new(LazyCell::new(move || self.nets(at, local, family)));
        let of_ends = Rc::clone(&nets);
        let ends = selected.chain(all).flat_map(move |end| self.peers_at(end, family, &of_ends));
        // The rule's own nets come first, because most rules can be decided without the nets of other rules.
        let own = self.few_nets(at).into_iter().flatten();
        let own = own.filter(|net| Family::from_address(net.addr()) == family);
        let own: BTreeSet<IpAddr> = own.map(|net| net.network()).collect();
        let asked = own.clone();
        let others = std::iter::once_with(move || {
            let points: BTreeSet<IpAddr> = nets.iter().flat_map(around).collect();
            points.into_iter().filter(move |address| !asked.contains(address))
        });
        let points = own.into_iter().chain(others.flatten());
        let points = points.map(|address| Peer { end: None, address: Address::At(address) });
        let unnamed = std::iter::once(Peer { end: None, address: Address::Unnamed });
        unnamed.chain(ends).chain(points).inspect(move |_| self.spend(1))
    }

    /// Returns whether the result may depend on which member has an address. This is so if the rule has named ports, or
    /// if a Pass rule of an earlier tier has named ports or selects members.
    fn members_matter(&self, at: RuleAt, local: usize) -> bool {
        let list = self.list(local);
        let tier = &self.policies[at.policy].policy.tier;
        let earlier = list.iter().map(|it| self.policies[*it].policy);
        let earlier = earlier.take_while(|policy| policy.tier != *tier);
        let mut rules = earlier.filter_map(|policy| policy.rules(at.direction)).flatten();
        let is_member = |rule: &Rule| {
            self.spend(1);
            let entities = rule.ends(at.direction).1.entities.as_deref();
            let by_member = |entity: &Entity| entity.selector.is_some();
            rule.action == Action::Pass
                && (has_names(rule) || entities.is_some_and(|all| all.iter().any(by_member)))
        };
        self.rules(at).any(has_names) || rules.any(is_member)
    }

    /// Returns the peers for an end: one for each of its addresses at which the result may change.
    fn peers_at(
        &self,
        end: usize,
        family: Family,
        nets: &LazyCell<BTreeSet<IpNet>, impl FnOnce() -> BTreeSet<IpNet>>,
    ) -> Vec<Peer> {
        let own = &self.ends[end].nets;
        let of_family = |net: &&IpNet| Family::from_address(net.addr()) == family;
        let mut addresses = BTreeSet::new();
        for net in own.iter().filter(of_family) {
            addresses.extend([net.network(), net.broadcast()]);
            if net.prefix_len() < net.max_prefix_len() {
                self.spend(nets.len());
                if self.is_spent() {
                    return Vec::new();
                }
                let points = nets.iter().flat_map(around);
                addresses.extend(points.filter(|address| net.contains(address)));
            }
        }
        let at = |address| Peer { end: Some(end), address };
        if addresses.is_empty() {
            // An end whose addresses are not known may get any address. A network set without addresses has no peer.
            let unknown = own.is_empty() && self.ends[end].kind != EndKind::Set;
            return if unknown { vec![at(Address::Unknown)] } else { Vec::new() };
        }
        addresses.into_iter().map(|address| at(Address::At(address))).collect()
    }

    /// Returns the nets of a family that the rules up to this one name for peers. Nets in which the rule itself matches
    /// nothing are left out.
    fn nets(&self, until: RuleAt, local: usize, family: Family) -> BTreeSet<IpNet> {
        let list = self.list(local);
        let policies = list.iter().take_while(|at| **at <= until.policy);
        let rules = policies.filter_map(|at| self.policies[*at].policy.rules(until.direction));
        let own = self.few_nets(until);
        let matters = |net: &IpNet| {
            let overlaps = |it: &IpNet| it.contains(net) || net.contains(it);
            Family::from_address(net.addr()) == family
                && own.as_ref().is_none_or(|own| own.iter().any(overlaps))
        };
        let mut nets = BTreeSet::new();
        for rule in rules.flatten() {
            let (_, peer) = rule.ends(until.direction);
            for entity in peer.entities.iter().flatten() {
                self.spend(1);
                let all = entity.nets.iter().chain(&entity.not_nets).map(IpNet::trunc);
                nets.extend(all.filter(matters));
            }
        }
        self.spend(nets.len());
        nets
    }

    /// Returns the nets of a rule's peers, or `None` if the rule also matches other peers or has many nets.
    fn few_nets(&self, at: RuleAt) -> Option<Vec<IpNet>> {
        const FEW: usize = 8;
        let mut nets = Vec::new();
        for rule in self.rules(at) {
            for entity in rule.ends(at.direction).1.entities.as_ref()? {
                let few = !entity.nets.is_empty() && nets.len() + entity.nets.len() <= FEW;
                nets.extend(few.then_some(&entity.nets)?);
            }
        }
        Some(nets)
    }

    /// Returns whether this rule or an earlier one depends on which end is the local one.
    pub(in crate::check) fn asks_of_local(&self, until: RuleAt, local: usize) -> bool {
        let list = self.list(local);
        let policies = list.iter().take_while(|at| **at <= until.policy);
        let mut rules =
            policies.filter_map(|at| self.policies[*at].policy.rules(until.direction)).flatten();
        rules.any(|rule| {
            self.spend(1);
            rule.ends(until.direction).0.entities.is_some() || has_names(rule)
        })
    }

    /// Returns whether an endpoint is a host endpoint.
    pub(in crate::check) fn is_host(&self, end: usize) -> bool {
        self.ends[end].kind == EndKind::Host
    }
}

/// Returns whether a rule matches the same packets between every two ends.
fn is_general(rule: &Rule, direction: Direction, family: Family) -> bool {
    let (local, peer) = rule.ends(direction);
    let every_address = |end: &RuleEnd| {
        end.entities.as_ref().is_none_or(|entities| {
            entities.iter().any(|Entity { selector, not_selector, nets, not_nets, service }| {
                selector.is_none()
                    && not_selector.is_none()
                    && service.is_none()
                    && not_nets.is_empty()
                    && (nets.is_empty() || nets.contains(&family.everything()))
            })
        })
    };
    every_address(local) && every_address(peer) && !has_names(rule)
}

/// Returns whether a rule has named ports.
fn has_names(rule: &Rule) -> bool {
    let ends = [&rule.source, &rule.destination].into_iter();
    let mut ports = ends.flat_map(|end| end.ports.iter().chain(&end.not_ports));
    ports.any(|port| matches!(port, PortMatch::Named(_)))
}
