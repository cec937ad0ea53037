//! The inputs and changes of a world so far, for the report of a violation.

use std::fmt::Write as _;

use manx_dataplane::packet::Offload;

use super::coverage::Kind;
use super::input::{Input, Outcome};
use super::plan::Change;
use super::read::{FlowTuple, read, read_about};

/// A packet that went in.
#[derive(Debug)]
struct Record {
    batch: u64,
    now: f64,
    node: usize,
    port: u16,
    worker: usize,
    tuple: FlowTuple,
    /// The tuple that an ICMP error quotes.
    about: Option<FlowTuple>,
    flags: u8,
    len: usize,
    offload: Offload,
    kind: Kind,
    outcome: Outcome,
}

/// The virtio header of a packet that has one.
fn offloaded(offload: Offload) -> String {
    if offload == Offload::default() { String::new() } else { format!(", {offload:?}") }
}

/// See the module.
#[derive(Default)]
pub struct History {
    records: Vec<Record>,
    changes: Vec<(u64, Change, Vec<usize>, bool)>,
}

/// The number of packets, and of changes, that are reported.
const REPORTED: usize = 40;

impl History {
    pub fn add(&mut self, batch: u64, now: f64, node: usize, input: &Input) {
        let Some(read) = &input.read else { return };
        self.records.push(Record {
            batch,
            now,
            node,
            port: input.sent.port.0,
            worker: input.sent.worker,
            tuple: read.tuple,
            about: read_about(input.packet(), read).map(|about| about.tuple),
            flags: read.flags,
            len: input.packet().len(),
            offload: input.sent.offload,
            kind: input.sent.kind,
            outcome: input.outcome,
        });
    }

    pub fn changed(&mut self, batch: u64, change: Change, pods: &[usize], is_busy: bool) {
        self.changes.push((batch, change, pods.to_vec(), is_busy));
    }

    /// The last packets between the ends of these packets (or of the packets that they quote), and
    /// the last changes. `others` returns the tuples that a tuple's connections have on the other
    /// side of a translation.
    pub fn report(
        &self,
        packets: &[&[u8]],
        others: impl Fn(&FlowTuple) -> Vec<FlowTuple>,
    ) -> String {
        let mut text = String::new();
        let mut named: Vec<FlowTuple> = Vec::new();
        for packet in packets {
            let found = read(packet);
            let about = found.and_then(|read| read_about(packet, &read));
            for own in [found, about].into_iter().flatten().map(|read| read.tuple) {
                for tuple in std::iter::once(own).chain(others(&own)) {
                    if !named.iter().any(|it| *it == tuple || it.reversed() == tuple) {
                        named.push(tuple);
                    }
                }
            }
        }
        for about in named {
            let _ = writeln!(text, "of {about:?}:");
            let back = about.reversed();
            let is_same = |tuple: FlowTuple| tuple == about || tuple == back;
            let same =
                self.records.iter().filter(|it| is_same(it.tuple) || it.about.is_some_and(is_same));
            let same: Vec<&Record> = same.collect();
            for it in &same[same.len().saturating_sub(REPORTED)..] {
                let way = match it.tuple {
                    tuple if tuple == about => "->",
                    tuple if tuple == back => "<-",
                    _ => "about it",
                };
                let _ = writeln!(
                    text,
                    "batch {:>6} at {:>9.3} s: {way} flags {:02x} at node {} port {} worker {}: {:?}, {}, {} bytes{}",
                    it.batch,
                    it.now,
                    it.flags,
                    it.node + 1,
                    it.port,
                    it.worker,
                    it.outcome,
                    it.kind.text(),
                    it.len,
                    offloaded(it.offload)
                );
            }
        }
        for (batch, change, pods, is_busy) in
            &self.changes[self.changes.len().saturating_sub(REPORTED)..]
        {
            let when = if *is_busy { ", packets under way" } else { "" };
            let _ = writeln!(text, "batch {batch:>6}: {change:?} of pods {pods:?}{when}");
        }
        text
    }
}
