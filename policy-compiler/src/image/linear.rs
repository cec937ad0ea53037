//! Chains without rows: they are evaluated rule by rule.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::chain::Chain;
use super::peers::PeerTables;
use crate::common::{Identity, PathId};
use crate::model::{Direction, Transport};
use crate::peers::{AddressFacts, PredicateSet, family};
use crate::resolve::{DecisionPlace, Stage, Steps, matches};

/// The data for evaluating a chain rule by rule.
#[derive(Debug)]
pub(crate) struct Linear {
    pub(crate) direction: Direction,
    pub(crate) steps: Arc<Steps>,
    /// For each step, the path if the step decides.
    pub(crate) step_paths: Box<[Option<PathId>]>,
    /// For each tier, the path if the end of the tier decides.
    pub(crate) end_paths: Box<[Option<PathId>]>,
    /// For a pod whose addresses have different predicate sets, the predicate set of each address, by identity.
    pub(crate) own: BTreeMap<Identity, PredicateSet>,
}

impl Linear {
    /// The path of a packet, evaluated rule by rule. `None` if an end is unknown. `chain` is the chain to which `self`
    /// belongs, and `tables` hold the predicates of addresses.
    pub(crate) fn judge(
        &self,
        chain: &Chain,
        tables: &PeerTables,
        local: Identity,
        peer: Identity,
        transport: Transport,
    ) -> Option<PathId> {
        let possible_ports = &tables.predicates.possible_ports;
        let facts = |predicates, family| AddressFacts { predicates, family, possible_ports };
        let facts_of = |identity: Identity| {
            let predicates = tables.class_predicate_sets.get(tables.class(identity)?)?;
            Some(facts(predicates, family(predicates)?))
        };
        let peer = facts_of(peer)?;
        let family = peer.family;
        let local = match &chain.local {
            // The chain has fixed predicates for the local end. It has no rows because the rows would be too large.
            Some(local) => facts(&local[family as usize], family),
            None if chain.list.stage == Stage::Pod => facts(self.own.get(&local)?, family),
            None => facts_of(local)?,
        };
        let steps = &self.steps.steps;
        let matching = (0..steps.len()).filter(|index| {
            let rule = &steps[*index].rule;
            rule.families[family as usize]
                && matches(rule, self.direction, &local, &peer, transport)
        });
        match self.steps.walk(matching, |_| ())? {
            DecisionPlace::Step(index) => *self.step_paths.get(index)?,
            DecisionPlace::End(tier) => *self.end_paths.get(tier)?,
        }
    }
}
