//! A batch at one node: its inputs and outputs, the node's counters, and a violation.

use ahash::{AHashMap, RandomState};
use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::port::memory::Frame;
use manx_dataplane::tables::PortId;

use super::input::{Injected, Input, content_key, key};
use super::read::FlowTuple;
use super::wire::Wire;
use crate::fabric::Node;

/// A packet that came out.
#[derive(Debug)]
pub struct Output {
    pub port: PortId,
    pub frame: Frame,
}

/// The counters of a node.
#[derive(Debug, Clone, Copy)]
pub struct Counts {
    pub received: u64,
    pub sent: u64,
    pub drops: [u64; DropReason::ALL.len()],
    pub portless: u64,
    pub handoffs: u64,
    pub evictions: u64,
}

impl Default for Counts {
    fn default() -> Self {
        let drops = [0; DropReason::ALL.len()];
        Self { received: 0, sent: 0, drops, portless: 0, handoffs: 0, evictions: 0 }
    }
}

impl Counts {
    /// Reads the counters of a node.
    pub fn read(node: &Node) -> Self {
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

    /// These counters, with this number of sent packets counted as refused by a port.
    pub fn with_refused(mut self, packets: u64) -> Self {
        self.sent -= packets;
        self.drops[DropReason::NoFreePort as usize] += packets;
        self
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

    /// The drop reasons that were counted, and how often.
    pub fn named_drops(&self) -> Vec<(&'static str, u64)> {
        let named = DropReason::ALL.iter().zip(self.drops).filter(|(_, count)| *count > 0);
        named.map(|(reason, count)| (reason.name(), count)).collect()
    }

    /// Whether a packet was dropped because there was no free buffer or a queue was full.
    pub fn is_crowded(&self) -> bool {
        [DropReason::NoBuffer, DropReason::TransmitRefused, DropReason::HandoffFull]
            .into_iter()
            .any(|reason| self.dropped(reason) > 0)
    }
}

/// The part of a batch at one node.
#[derive(Default)]
pub struct NodeBatch {
    pub inputs: Vec<Input>,
    pub keys: AHashMap<u64, usize>,
    /// The indexes of the inputs that may come out changed, so that the output has another `key`.
    pub changing: Vec<usize>,
    /// The indexes of the inputs by their `content_key`; `None` before the first use.
    pub contents: Option<AHashMap<u64, Vec<usize>>>,
    /// The translated forms of inputs of which parts have come out, by the index of the input.
    pub moved: AHashMap<usize, Input>,
    pub outputs: Vec<Output>,
    pub before: Counts,
    pub after: Counts,
    /// Whether a port was detached while packets may have waited there.
    pub is_incomplete: bool,
}

impl NodeBatch {
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

    /// The indexes of the inputs with this `content_key`.
    pub fn of_content(&mut self, hasher: &RandomState, content: u64) -> Vec<usize> {
        let contents = self.contents.get_or_insert_with(|| {
            let mut contents: AHashMap<u64, Vec<usize>> = AHashMap::new();
            for (at, input) in self.inputs.iter().enumerate() {
                if let Some(read) = &input.read {
                    let content = content_key(hasher, input.packet(), read);
                    contents.entry(content).or_default().push(at);
                }
            }
            contents
        });
        contents.get(&content).cloned().unwrap_or_default()
    }

    /// The translated form of an input, with the addresses and ports of `tuple`, if `wire` may be a part of it. All
    /// parts of an input have the same addresses and ports. A later fragment has no ports, so it can only come out
    /// after another part.
    pub fn moved(&mut self, at: usize, tuple: &FlowTuple, wire: &Wire<'_>) -> Option<&Input> {
        let input = &self.inputs[at];
        let read = input.read.filter(|read| read.tuple.upper == tuple.upper)?;
        let is_same = |known: &Input| {
            known.read.is_some_and(|read| {
                let ends = |tuple: &FlowTuple| (tuple.source, tuple.destination);
                ends(&read.tuple) == ends(tuple)
                    && (wire.read.is_later() || read.tuple.transport == tuple.transport)
            })
        };
        if read.tuple.is_v4() != tuple.is_v4() || read.tuple == *tuple {
            return None;
        }
        if !self.moved.get(&at).is_some_and(is_same) {
            if wire.read.is_later() && !read.is_later() || input.pieces > 0 {
                return None;
            }
            self.moved.insert(at, input.with_ends(tuple, wire.bytes)?);
        }
        self.moved.get(&at)
    }

    /// Clears the batch for the next one. The buffers of the inputs go to `spare`.
    pub fn clear(&mut self, spare: &mut Vec<Vec<u8>>) {
        spare.extend(self.inputs.drain(..).map(|input| input.sent.bytes));
        self.keys.clear();
        self.changing.clear();
        self.contents = None;
        self.moved.clear();
        self.outputs.clear();
        self.is_incomplete = false;
    }
}

/// A violation of a law.
#[derive(Debug)]
pub struct Violation {
    pub law: String,
    pub node: usize,
    pub output: Option<Output>,
    /// The input, and the offset of the packet in it.
    pub input: Option<(Injected, usize)>,
}
