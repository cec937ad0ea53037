//! Cells: a cell is the set of packets between two ends. This module also calculates which packets of a cell reach a
//! rule.
//!
//! An end is a source or a destination: an object of the input, or a pod that may be added later (`ends`). The packets
//! that a rule matches between two ends are represented by the match sets of the compiled tables. A rule counts as
//! deciding only the packets that it certainly matches. An address that no manifest gives is in no net, except nets
//! that contain all addresses. A rule that excludes members counts as deciding nothing.
//!
//! The number of steps of a check is bounded. If the bound is reached ([`Cells::is_spent`]), the last result is not
//! valid and must not be reported.

mod ends;
mod walk;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use manx_calculation::import::policy_name;
use manx_objects::object::{Kind, ObjectKey};
use manx_policy_compiler::model::{Direction, Family, NAMESPACE, Policy, Rule};
use manx_policy_compiler::selector::{LabelSource, Selector};

pub(super) use self::ends::Address;
use self::ends::{End, EndKind};
use self::walk::Walk;
use super::fields::rule_field;
use super::scene::Scene;

/// See the module.
pub(super) struct Cells<'s, 'a> {
    scene: &'s Scene<'a>,
    /// The policies that are enforced, in the order of evaluation.
    pub(super) policies: Vec<Placed<'s, 'a>>,
    ends: Vec<End<'s>>,
    /// The indexes of ends by namespace, and of policies by the namespace that they require.
    ends_in: HashMap<String, Vec<usize>>,
    policies_in: HashMap<&'s str, Vec<usize>>,
    policies_anywhere: Vec<usize>,
    /// The selectors of invalid policies.
    broken: Vec<&'s Selector>,
    pub(super) families: Vec<Family>,
    /// The list of policies of each endpoint for which it was already made.
    lists: RefCell<HashMap<usize, NumberedList>>,
    distinct: RefCell<HashMap<Rc<[usize]>, usize>>,
    walks: RefCell<HashMap<(Pair, Direction), Walk>>,
    /// The number of steps that this check may still take.
    steps: Cell<u64>,
}

/// A list of policies, and the number of this list among the distinct lists.
type NumberedList = (usize, Rc<[usize]>);

/// A policy with its place in the order.
pub(super) struct Placed<'s, 'a> {
    pub(super) key: &'a ObjectKey,
    pub(super) policy: &'s Policy,
}

/// A rule of an object: the index of its policy, its direction, and its index in the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RuleAt {
    pub(super) policy: usize,
    pub(super) direction: Direction,
    pub(super) index: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Peer {
    /// The index of the end that has the address, if there is one.
    pub(super) end: Option<usize>,
    pub(super) address: Address,
}

/// Two ends and a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Pair {
    /// The index of the local end.
    pub(super) local: usize,
    pub(super) peer: Peer,
    pub(super) family: Family,
}

/// What decides a packet: a rule, or the end of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Taker {
    Rule(RuleAt),
    /// The end of a tier. The index is that of the tier's first policy that applies.
    TierEnd(usize),
}

/// The rules and tier ends that decided packets.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    /// For each rule and tier end, the number of cells in which it decided packets.
    pub(super) takers: BTreeMap<Taker, usize>,
    /// Whether these rules, and the Pass rules before them, match the same packets between every two ends.
    pub(super) general: bool,
}

impl Default for Tally {
    fn default() -> Self {
        Self { takers: BTreeMap::new(), general: true }
    }
}

/// The maximum number of steps that one check may take.
const MOST_STEPS: u64 = 5_000_000;

impl<'s, 'a> Cells<'s, 'a> {
    /// Returns `None` if there is no ordered policy.
    pub(super) fn new(scene: &'s Scene<'a>) -> Option<Self> {
        let model = scene.model();
        let mut policies: Vec<_> = scene
            .policies()
            .filter(|(key, ..)| !key.kind.staged())
            .map(|(key, _, policy)| Placed { key, policy })
            .collect();
        if policies.iter().all(|it| it.key.kind == Kind::NetworkPolicy) {
            return None;
        }
        policies.sort_by_cached_key(|Placed { key, policy }| {
            let (missing, order, tier) = model.tier_sort_key(&policy.tier);
            let tie = policy_name(key).map(|name| name.sort_key());
            (missing, order, tier.to_owned(), policy.order, tie)
        });
        let namespaces = policies.iter().map(|it| it.key.namespace.as_str());
        let namespaces = namespaces.chain(model.namespaces.keys().map(String::as_str));
        let pods = model.endpoints.keys().map(|name| name.namespace.as_str());
        let namespaces = namespaces.chain(pods).filter(|it| !it.is_empty()).collect();
        let selectors = policies.iter().map(|it| it.policy).flat_map(selectors);
        let ends = ends::all(scene, namespaces, selectors);
        let mut cells = Self {
            scene,
            families: scene.families(),
            ends_in: HashMap::new(),
            policies_in: HashMap::new(),
            policies_anywhere: Vec::new(),
            broken: Vec::new(),
            lists: RefCell::default(),
            distinct: RefCell::default(),
            walks: RefCell::default(),
            steps: Cell::new(MOST_STEPS),
            policies,
            ends,
        };
        for (name, policy) in &model.policies {
            if policy.broken && !name.kind.staged() {
                cells.broken.push(&policy.selector);
            }
        }
        for (index, placed) in cells.policies.iter().enumerate() {
            match placed.policy.selector.required_values(NAMESPACE) {
                Some(all) => all
                    .into_iter()
                    .for_each(|it| cells.policies_in.entry(it).or_default().push(index)),
                None => cells.policies_anywhere.push(index),
            }
        }
        for (index, end) in cells.ends.iter().enumerate() {
            let Some(namespace) = end.label(NAMESPACE) else { continue };
            cells.ends_in.entry(namespace.to_owned()).or_default().push(index);
        }
        Some(cells)
    }

    /// Returns whether the bound of this check is reached. If it is, the last result is not valid.
    pub(super) fn is_spent(&self) -> bool {
        self.steps.get() == 0
    }

    /// Begins a check. Each check has its own bound.
    pub(super) fn begin(&self) {
        self.steps.set(MOST_STEPS);
        self.walks.borrow_mut().clear();
    }

    /// Reduces the number of remaining steps.
    pub(super) fn spend(&self, steps: usize) {
        self.steps.set(self.steps.get().saturating_sub(steps as u64));
    }

    /// Returns the ends that a selector matches.
    pub(super) fn ends_of<'c>(
        &'c self,
        selector: &'c Selector,
    ) -> impl Iterator<Item = usize> + 'c {
        let within = selector.required_values(NAMESPACE);
        let everywhere = if within.is_none() { 0..self.ends.len() } else { 0..0 };
        let within = within.into_iter().flatten();
        let within = within.filter_map(|it| self.ends_in.get(it)).flatten().copied();
        within.chain(everywhere).filter(|at| {
            self.spend(1);
            !self.is_spent() && selector.matches(&self.ends[*at])
        })
    }

    /// Returns the endpoints that a policy selects, except endpoints that an invalid policy also selects.
    pub(super) fn locals<'c>(&'c self, policy: &'c Policy) -> impl Iterator<Item = usize> + 'c {
        let is_closed = |end| self.broken.iter().any(|broken| broken.matches(end));
        self.ends_of(&policy.selector).filter(move |at| {
            let end = &self.ends[*at];
            self.spend(self.broken.len());
            end.kind != EndKind::Set && !is_closed(end)
        })
    }

    /// Returns the indexes of the policies that select an endpoint, in ascending order.
    pub(super) fn list(&self, local: usize) -> Rc<[usize]> {
        self.numbered_list(local).1
    }

    /// Returns the number of an endpoint's list of policies. Endpoints with the same policies have the same number.
    pub(super) fn list_number(&self, local: usize) -> usize {
        self.numbered_list(local).0
    }

    fn numbered_list(&self, local: usize) -> NumberedList {
        if let Some((number, list)) = self.lists.borrow().get(&local) {
            return (*number, Rc::clone(list));
        }
        let end = &self.ends[local];
        let namespace = end.label(NAMESPACE).and_then(|it| self.policies_in.get(it));
        let asked = namespace.into_iter().flatten().chain(&self.policies_anywhere).copied();
        let selects = |at: &usize| {
            self.spend(1);
            !self.is_spent() && self.policies[*at].policy.selector.matches(end)
        };
        let mut list: Vec<usize> = asked.filter(selects).collect();
        if self.is_spent() {
            // The list is not complete, so it is not stored for the next check.
            return (usize::MAX, list.into());
        }
        list.sort_unstable();
        let mut distinct = self.distinct.borrow_mut();
        let known =
            distinct.get_key_value(&list[..]).map(|(list, number)| (*number, Rc::clone(list)));
        let numbered = known.unwrap_or_else(|| {
            let (number, list) = (distinct.len(), Rc::<[usize]>::from(list));
            distinct.insert(Rc::clone(&list), number);
            (number, list)
        });
        self.lists.borrow_mut().insert(local, numbered.clone());
        numbered
    }

    /// Returns the peer's name in messages.
    pub(super) fn name(&self, peer: Peer) -> String {
        match (peer.end, peer.address) {
            (Some(end), _) => self.ends[end].name.clone(),
            (None, Address::At(address)) => address.to_string(),
            (None, _) => "an address outside".to_owned(),
        }
    }

    /// Returns the two peers that no policy names: an address outside the cluster, and a pod without labels in another
    /// namespace.
    pub(super) fn strangers(&self) -> [Peer; 2] {
        let outside = Peer { end: None, address: Address::Unnamed };
        [outside, Peer { end: self.ends.len().checked_sub(1), address: Address::Unknown }]
    }

    /// Returns the model's rules that stand for one rule of an object.
    pub(super) fn rules(&self, at: RuleAt) -> impl Iterator<Item = &'s Rule> + use<'s> {
        let policy = self.policies.get(at.policy).map(|placed| placed.policy);
        let rules = policy.and_then(|policy| policy.rules(at.direction)).unwrap_or_default();
        rules.iter().filter(move |rule| rule.index == at.index)
    }
}

impl RuleAt {
    /// Returns the rule's field in its object.
    pub(super) fn field(self) -> String {
        rule_field(self.direction, self.index)
    }
}

/// Returns the selectors of a policy's subject and of its rules.
fn selectors(policy: &Policy) -> impl Iterator<Item = &Selector> {
    let rules = Direction::ALL.into_iter().filter_map(|it| policy.rules(it)).flatten();
    let ends = rules.flat_map(|rule| [&rule.source, &rule.destination]);
    let entities = ends.flat_map(|end| end.entities.iter().flatten());
    entities.filter_map(|entity| entity.selector.as_ref()).chain([&policy.selector])
}
