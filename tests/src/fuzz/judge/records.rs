//! Records of the judge about a batch: the connections that its packets may have opened or belong
//! to, and first fragments.

use std::rc::Rc;

use super::super::batch::NodeBatch;
use super::super::epoch::{Entry, Epoch, Place};
use super::super::input::{Input, Outcome};
use super::super::moves::may_move;
use super::super::oracle::Law;
use super::super::read::{Part, flag};
use super::Judge;
use crate::packet::TCP;

impl Judge {
    /// Records the connection that an input may have opened or belongs to.
    pub(super) fn record_input(
        &mut self,
        node: usize,
        input: &mut Input,
        now: f64,
        epochs: &[Rc<Epoch>],
    ) {
        let (Some(read), Some(entry)) = (input.read, input.entry) else { return };
        if read.is_later() || read.is_error() {
            return;
        }
        let tuple = &read.tuple;
        let asks = self.terms.translates && self.record_asking(node, input, now, epochs);
        let known = &mut self.connections[node];
        input.is_fresh = known.is_fresh(tuple) && (!asks || input.is_fresh);
        for epoch in epochs {
            let from = epoch.place(node, tuple.source);
            let comes = epoch.may_come(node, entry, tuple)
                || entry == Entry::Tunnel && known.is_visitors(tuple);
            let is_translated = epoch.asks(node, tuple) && !epoch.is_nodes_own(node, entry, tuple);
            if !comes || is_translated {
                continue;
            }
            input.entered = true;
            if (self.terms.admits(&read) || known.find(tuple, now).is_some())
                && epoch.admits(node, entry, tuple)
            {
                known.record_allowed(epoch, node, tuple, now);
                if matches!(
                    (entry, from),
                    (Entry::Forwarded | Entry::Manx | Entry::Tunnel, Place::Node)
                ) {
                    known.record_masqueraded(tuple);
                }
                if self.terms.has_ports && matches!(from, Place::Node | Place::World) {
                    known.record_entry(tuple, entry);
                }
            }
        }
    }

    /// Records a packet that connects to a translated destination (returns `true`), or that may
    /// answer such a packet.
    fn record_asking(
        &mut self,
        node: usize,
        input: &mut Input,
        now: f64,
        epochs: &[Rc<Epoch>],
    ) -> bool {
        let (Some(read), Some(entry)) = (input.read, input.entry) else { return false };
        let tuple = &read.tuple;
        let translations = self.translations[node].get_mut();
        let mut asks = false;
        for epoch in epochs {
            let from = epoch.place(node, tuple.source);
            if !epoch.may_enter(node, entry, from) {
                continue;
            }
            let is_last = read.flags & (flag::FIN | flag::RST) != 0 && tuple.upper == TCP;
            if self.terms.has_ports && is_last {
                translations.record_over(tuple);
            }
            translations.record_answer(tuple, now);
            if !epoch.asks(node, tuple) {
                continue;
            }
            if !asks {
                (asks, input.entered) = (true, true);
                input.is_fresh = translations.is_fresh(tuple);
            }
            let may_move = !self.terms.is_strict && may_move(epoch, node, tuple);
            let opens = tuple.upper != TCP || read.opens() || may_move;
            // A packet from the node may be that of a masqueraded client that opens a connection
            // with the same tuple.
            let reopens = read.opens() || from == Place::Node;
            translations.record_asked(tuple, entry, (opens, reopens), now);
        }
        asks
    }

    /// Records which translated connections the node certainly knows after a batch.
    pub(super) fn end_batch(
        &mut self,
        node: usize,
        node_batch: &NodeBatch,
        now: f64,
        (epochs, epoch): (&[Rc<Epoch>], Option<&Rc<Epoch>>),
    ) {
        let translations = self.translations[node].get_mut();
        for input in &node_batch.inputs {
            let Some(read) = input.read.filter(|_| input.entered) else { continue };
            if input.outcome != Outcome::CameOut && (read.opens() || read.tuple.upper != TCP) {
                translations.record_unclear(&read.tuple, read.opens());
            }
            // By now it is known which connection the packet may have answered.
            translations.record_answer(&read.tuple, now);
        }
        for epoch in epochs.iter().filter(|_| self.terms.keeps) {
            translations.record_standings_of_seen(epoch, node, now);
        }
        let epoch = epoch.map(|it| &**it);
        translations.end_batch(epoch, node, node_batch.after.evictions, now);
    }

    pub(super) fn record_first_fragments(
        &mut self,
        node: usize,
        node_batch: &NodeBatch,
        now: f64,
        epochs: &[Rc<Epoch>],
    ) {
        let mut firsts = Vec::new();
        let (connections, translations) = (&self.connections[node], &self.translations[node]);
        let (terms, evictions) = (self.terms, node_batch.after.evictions);
        let evicts = evictions != node_batch.before.evictions;
        let is_single = self.is_single[node];
        let law = Law {
            node,
            now,
            terms,
            epochs,
            connections,
            translations,
            evictions,
            evicts,
            is_single,
        };
        for input in &node_batch.inputs {
            let (Some(read), Some(entry)) = (input.read, input.entry) else { continue };
            if !matches!(read.part, Part::First { .. }) {
                continue;
            }
            for epoch in epochs {
                let version = epoch.versions[node];
                if law.passage_in(epoch, input).is_ok() {
                    firsts.push((read, entry, version));
                }
                let ways =
                    if terms.translates { law.translations_of(epoch, input) } else { Vec::new() };
                if !ways.is_empty() {
                    let pairs = ways.into_iter().map(|(_, pair)| pair);
                    let mut translations = translations.borrow_mut();
                    translations.record_first_fragment(&read, (entry, version), pairs, now);
                }
            }
        }
        for (read, entry, version) in firsts {
            self.connections[node].record_first_fragment(&read, entry, version, now);
        }
    }
}
