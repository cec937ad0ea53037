//! Connections whose packets arrive at another node than before, because a router has chosen
//! another path. Both nodes choose the same backend, and the earlier node's record of the
//! connection is replaced.

use std::rc::Rc;

use ahash::AHashMap;

use super::batch::NodeBatch;
use super::epoch::{Epoch, Place};
use super::judge::Judge;
use super::read::FlowTuple;
use super::services::{End, Reach};
use super::translations::{Pair, asked_of, end_of};

/// The records of connections that may move, by the tuple that the client sends.
#[derive(Debug, Default)]
pub struct Moves {
    /// Whether packets have arrived at each node.
    nodes: AHashMap<FlowTuple, [bool; 2]>,
    /// The backend that a node has chosen, and the backends from which it chose.
    chosen: AHashMap<FlowTuple, (End, Vec<End>)>,
}

impl Moves {
    /// Whether packets of a connection have arrived at both nodes.
    pub fn has_moved(&self, first: &FlowTuple) -> bool {
        self.nodes.get(first) == Some(&[true; 2])
    }

    /// Records which backend a node has chosen for a connection, and from which backends.
    pub fn record_choice(&mut self, pair: &Pair, of: Vec<End>) {
        if let Some(end) = end_of(&pair.behind) {
            self.chosen.insert(pair.first, (end, of));
        }
    }

    /// Whether a node that chooses from these backends may choose this connection's backend. If the
    /// other node chose from the same backends, both must have made the same choice.
    pub fn may_choose(&self, pair: &Pair, of: &[End]) -> bool {
        let chosen = self.chosen.get(&pair.first).filter(|(_, before)| before == of);
        chosen.is_none_or(|(end, _)| end_of(&pair.behind) == Some(*end))
    }
}

/// Whether a router may send a packet with this tuple to either node.
pub fn may_move(epoch: &Epoch, node: usize, tuple: &FlowTuple) -> bool {
    let reach = asked_of(tuple).and_then(|asked| epoch.services.reach(&asked));
    reach == Some(Reach::Balancer) && epoch.place(node, tuple.source) == Place::World
}

/// The backends from which all nodes choose the same one for a client from outside. `None`: each node chooses by itself.
pub fn shared_choice(epoch: &Epoch, node: usize, tuple: &FlowTuple) -> Option<Vec<End>> {
    let frontend = epoch.services.frontends.get(&asked_of(tuple)?)?;
    let is_shared = may_move(epoch, node, tuple) && frontend.affinity.is_none();
    is_shared.then(|| frontend.backends_for(true))
}

impl Judge {
    /// Returns the connections with a client's packet in this batch of which packets have arrived at both nodes so far.
    pub fn moved(&mut self, batches: &[NodeBatch; 2], epochs: &[Rc<Epoch>]) -> Vec<FlowTuple> {
        let mut moved = Vec::new();
        for (node, batch) in batches.iter().enumerate() {
            let tuples = batch.inputs.iter().filter_map(|it| it.read).map(|read| read.tuple);
            for tuple in tuples {
                if !epochs.iter().any(|epoch| may_move(epoch, node, &tuple)) {
                    continue;
                }
                let nodes = self.moves.get_mut().nodes.entry(tuple).or_default();
                nodes[node] = true;
                if *nodes == [true; 2] {
                    moved.push(tuple);
                }
            }
        }
        moved
    }

    /// Records that no node certainly knows these connections, because their records may have been
    /// replaced.
    pub fn doubt(&mut self, moved: &[FlowTuple]) {
        for first in moved {
            let of_node = self.translations.iter_mut().flat_map(|it| {
                let translations = it.get_mut();
                translations.doubt(first);
                translations.pairs_sent(first)
            });
            for Pair { behind, .. } in of_node.collect::<Vec<Pair>>() {
                for known in &mut self.connections {
                    known.doubt(&behind);
                    known.doubt(&behind.reversed());
                }
            }
        }
    }
}
