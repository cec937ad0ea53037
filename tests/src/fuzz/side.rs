//! What goes in at a node in a batch, what comes out, what the node counts of it, and what may be wrong with it.

use ahash::{AHashMap, RandomState};
use manx_dataplane::fate::DropReason;
use manx_dataplane::port::memory::Frame;
use manx_dataplane::tables::PortId;

use super::input::{Injected, Input, key};
use crate::fabric::Node;

/// A packet that came out.
#[derive(Debug)]
pub struct Output {
    pub port: PortId,
    pub frame: Frame,
}

/// What a node has counted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    pub received: u64,
    pub sent: u64,
    pub drops: [u64; DropReason::ALL.len()],
    pub portless: u64,
    pub handoffs: u64,
    pub evictions: u64,
}

impl Counts {
    /// All that a node has counted.
    pub fn of(node: &Node) -> Self {
        let mut counts = Self::default();
        for wire in node.wires.values() {
            wire.each(|counters| {
                counts.received += counters.received_packets.read();
                counts.sent += counters.sent_packets.read();
                for (sum, reason) in counts.drops.iter_mut().zip(DropReason::ALL) {
                    *sum += counters.dropped(reason).read();
                }
            });
        }
        for counters in &node.counters {
            counts.portless += counters.portless.read();
            counts.handoffs += counters.handoffs.read();
            counts.evictions += counters.evictions.read();
        }
        counts
    }

    pub fn since(&self, before: &Self) -> Self {
        Self {
            received: self.received - before.received,
            sent: self.sent - before.sent,
            drops: std::array::from_fn(|at| self.drops[at] - before.drops[at]),
            portless: self.portless - before.portless,
            handoffs: self.handoffs - before.handoffs,
            evictions: self.evictions - before.evictions,
        }
    }

    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// Whether something died because there was no room.
    pub fn is_crowded(&self) -> bool {
        [DropReason::NoBuffer, DropReason::TransmitRefused, DropReason::HandoffFull]
            .into_iter()
            .any(|reason| self.dropped(reason) > 0)
    }
}

/// A node's part of a batch.
#[derive(Default)]
pub struct Side {
    pub inputs: Vec<Input>,
    pub keys: AHashMap<u64, usize>,
    /// Inputs of which something may come that has not their key.
    pub changing: Vec<usize>,
    pub outputs: Vec<Output>,
    pub before: Counts,
    pub after: Counts,
    /// A port has gone while packets may have waited there.
    pub is_incomplete: bool,
}

impl Side {
    pub fn add(&mut self, hasher: &RandomState, mut input: Input) {
        let at = self.inputs.len();
        if let Some(read) = &input.read {
            let key = key(hasher, input.packet(), read);
            input.same = self.keys.insert(key, at);
        }
        if input.may_change() {
            self.changing.push(at);
        }
        self.inputs.push(input);
    }

    /// Makes ready for the next batch. The inputs' buffers are to be used again.
    pub fn clear(&mut self, spare: &mut Vec<Vec<u8>>) {
        spare.extend(self.inputs.drain(..).map(|input| input.sent.bytes));
        self.keys.clear();
        self.changing.clear();
        self.outputs.clear();
        self.is_incomplete = false;
    }
}

/// What is wrong.
#[derive(Debug)]
pub struct Violation {
    pub law: String,
    pub node: usize,
    pub output: Option<Output>,
    /// The input, and where the packet begins in it.
    pub input: Option<(Injected, usize)>,
}
