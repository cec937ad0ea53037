//! What has gone in and been changed in a world so far: who finds something wants to know what was before.

use std::fmt::Write as _;

use super::coverage::Kind;
use super::input::{Input, Outcome};
use super::plan::Change;
use super::read::{Speech, read, read_about};

/// A packet that went in.
#[derive(Debug)]
struct Record {
    batch: u64,
    now: f64,
    node: usize,
    port: u16,
    worker: usize,
    speech: Speech,
    /// What an ICMP error is about.
    about: Option<Speech>,
    flags: u8,
    kind: Kind,
    outcome: Outcome,
}

/// See the module.
#[derive(Default)]
pub struct History {
    records: Vec<Record>,
    changes: Vec<(u64, Change, Vec<usize>, bool)>,
}

/// Lines of each that are told.
const TOLD: usize = 40;

impl History {
    pub fn add(&mut self, batch: u64, now: f64, node: usize, input: &Input) {
        let Some(read) = &input.read else { return };
        self.records.push(Record {
            batch,
            now,
            node,
            port: input.sent.port.0,
            worker: input.sent.worker,
            speech: read.speech,
            about: read_about(input.packet(), read).map(|about| about.speech),
            flags: read.flags,
            kind: input.sent.kind,
            outcome: input.outcome,
        });
    }

    pub fn changed(&mut self, batch: u64, change: Change, pods: &[usize], is_busy: bool) {
        self.changes.push((batch, change, pods.to_vec(), is_busy));
    }

    /// The last packets of the same ends, and of those that it quotes, and the last changes.
    pub fn of(&self, packet: &[u8]) -> String {
        let mut text = String::new();
        let named = read(packet);
        let about = named.and_then(|read| read_about(packet, &read));
        for about in [named, about].into_iter().flatten().map(|read| read.speech) {
            let _ = writeln!(text, "of {about:?}:");
            let back = about.reversed();
            let is_same = |speech: Speech| speech == about || speech == back;
            let same = self
                .records
                .iter()
                .filter(|it| is_same(it.speech) || it.about.is_some_and(is_same));
            let same: Vec<&Record> = same.collect();
            for it in &same[same.len().saturating_sub(TOLD)..] {
                let way = match it.speech {
                    speech if speech == about => "->",
                    speech if speech == back => "<-",
                    _ => "about it",
                };
                let _ = writeln!(
                    text,
                    "batch {:>6} at {:>9.3} s: {way} flags {:02x} at node {} port {} worker {}: {:?}, {}",
                    it.batch,
                    it.now,
                    it.flags,
                    it.node + 1,
                    it.port,
                    it.worker,
                    it.outcome,
                    it.kind.text()
                );
            }
        }
        for (batch, change, pods, is_busy) in
            &self.changes[self.changes.len().saturating_sub(TOLD)..]
        {
            let when = if *is_busy { ", packets under way" } else { "" };
            let _ = writeln!(text, "batch {batch:>6}: {change:?} of pods {pods:?}{when}");
        }
        text
    }
}
