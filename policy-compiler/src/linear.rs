//! Chains without rows: they are judged rule by rule.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::claim::matches;
use crate::image::{ChainId, Identity, Image, PathId};
use crate::model::{Direction, Transport};
use crate::predicates::{AddressFacts, PredicateSet, family};
use crate::resolve::{Decided, Stage, Steps};

/// How a chain is judged rule by rule.
#[derive(Debug)]
pub(crate) struct Linear {
    pub(crate) direction: Direction,
    pub(crate) steps: Arc<Steps>,
    /// The path of each step that decides.
    pub(crate) step_paths: Box<[Option<PathId>]>,
    /// The path of each tier's end that decides.
    pub(crate) end_paths: Box<[Option<PathId>]>,
    /// Of a pod, where that differs, what is true of each of its addresses.
    pub(crate) own: BTreeMap<Identity, PredicateSet>,
}

impl Image {
    /// The path of a packet by a chain that is judged rule by rule.
    pub(crate) fn judge_linear(
        &self,
        chain: ChainId,
        local: Identity,
        peer: Identity,
        transport: Transport,
    ) -> Option<PathId> {
        let linear = self.linear.get(&chain)?;
        let answers = &self.peers.predicates.possible_ports;
        let known = |identity: Identity| {
            let truth = self.peers.class_predicate_sets.get(self.class(identity)?)?;
            Some(AddressFacts {
                predicates: truth,
                family: family(truth)?,
                possible_ports: answers,
            })
        };
        let peer = known(peer)?;
        let family = peer.family;
        let chain = self.describe(chain)?;
        let truth = |truth| AddressFacts { predicates: truth, family, possible_ports: answers };
        let own = match &chain.local {
            // What is true of the local end is known: only the rows were too large.
            Some(local) => truth(&local[family as usize]),
            None if chain.list.stage == Stage::Pod => truth(linear.own.get(&local)?),
            None => known(local)?,
        };
        let steps = &linear.steps.steps;
        let matching = (0..steps.len()).filter(|index| {
            let rule = &steps[*index].rule;
            rule.families[family as usize]
                && matches(rule, linear.direction, &own, &peer, transport)
        });
        match linear.steps.walk(matching, |_| ())? {
            Decided::Step(index) => *linear.step_paths.get(index)?,
            Decided::End(tier) => *linear.end_paths.get(tier)?,
        }
    }
}
