//! Outputs that differ from every input, because their connection is translated.

use manx_dataplane::packet::Offload;
use manx_dataplane::tables::PortId;

use super::super::batch::NodeBatch;
use super::super::coverage::{Coverage, Event};
use super::super::epoch::{Epoch, Place};
use super::super::input::{Input, Outcome, content_key, key};
use super::super::moves::shared_choice;
use super::super::oracle::{Because, Law, Passage};
use super::super::read::{FlowTuple, Part, flag, read, read_about};
use super::super::translation_law::hairpin;
use super::super::translations::Pair;
use super::super::wire::{Refusal, Wire, is_same_super};
use super::{Judge, came_out, leaves_by, piece_event};
use crate::fabric::{HOST, MANX};

impl Judge {
    /// Finds the input from which a translated packet came, and checks that it was allowed. Returns
    /// `false` if there is none.
    pub(super) fn judge_translated(
        &self,
        law: &Law<'_>,
        node_batch: &mut NodeBatch,
        port: PortId,
        wire: &Wire<'_>,
        coverage: &mut Coverage,
    ) -> Result<bool, Refusal> {
        if !self.terms.translates {
            return Ok(false);
        }
        if wire.read.is_error() {
            return self.judge_translated_error(law, node_batch, port, wire, coverage);
        }
        let (mut refused, mut twice) = (None, None);
        let tuple = &wire.read.tuple;
        let content = content_key(&self.hasher, wire.bytes, &wire.read);
        let whole = key(&self.hasher, wire.bytes, &wire.read);
        let mut candidates = node_batch.of_content(&self.hasher, content);
        // An input with the same checksum state is preferred, and of these a clean one, as for
        // untranslated packets.
        candidates.sort_by_key(|at| {
            let input = &node_batch.inputs[*at];
            (input.offload.checksum.is_partial() != wire.is_partial, !input.sent.is_clean)
        });
        // Two inputs may differ only in their ports. A packet of a known connection is preferred,
        // then a packet that keeps the client's own port.
        let is_known = |pair: &Pair| {
            let translations = law.translations.borrow();
            let known = translations.connection(pair);
            known.is_some_and(|it| it.lives(pair.first.upper, law.now))
        };
        let preferred: [&dyn Fn(&Pair) -> bool; 3] = [&is_known, &Pair::keeps_port, &|_| true];
        for is_preferred in preferred {
            for at in candidates.iter().copied() {
                let input = &node_batch.inputs[at];
                if input.offload.checksum.is_partial() && !wire.is_partial && !input.is_honest {
                    continue;
                }
                if input.outcome != Outcome::Unknown {
                    twice = twice.or(Some(("it came out twice".to_owned(), Some(at))));
                    continue;
                }
                let Some(moved) = input.with_ends(tuple, wire.bytes) else { continue };
                let Some(read) = moved.read else { continue };
                if key(&self.hasher, moved.packet(), &read) != whole {
                    continue;
                }
                let passage = wire
                    .is_unharmed(&moved)
                    .map_err(str::to_owned)
                    .and_then(|()| self.may_pass_translated(law, input, tuple, port, wire.bytes));
                match passage {
                    Ok((_, pair)) if !is_preferred(&pair) => {}
                    Ok((passage, pair)) => {
                        self.came_out_translated(law, node_batch, at, (passage, pair), coverage);
                        return Ok(true);
                    }
                    Err(why) => refused = refused.or(Some((why, Some(at)))),
                }
            }
        }
        for nth in 0..node_batch.changing.len() {
            let at = node_batch.changing[nth];
            let Some(moved) = node_batch.moved(at, tuple, wire) else { continue };
            let Some(len) = wire.is_piece(moved) else { continue };
            let moved_tuple = moved.read.map_or(*tuple, |read| read.tuple);
            let input = &node_batch.inputs[at];
            if input.pieces + len > input.carried() {
                twice = twice.or(Some(("it came out twice".to_owned(), Some(at))));
                continue;
            }
            match self.may_pass_translated(law, input, &moved_tuple, port, wire.bytes) {
                Ok(way) => {
                    node_batch.inputs[at].pieces += len;
                    if node_batch.inputs[at].outcome == Outcome::Unknown {
                        self.came_out_translated(law, node_batch, at, way, coverage);
                    }
                    coverage.count(piece_event(wire));
                    return Ok(true);
                }
                Err(why) => refused = refused.or(Some((why, Some(at)))),
            }
        }
        refused.or(twice).map_or(Ok(false), Err)
    }

    /// The same as [`judge_translated`](Self::judge_translated), for ICMP errors about packets of
    /// such connections.
    fn judge_translated_error(
        &self,
        law: &Law<'_>,
        node_batch: &mut NodeBatch,
        port: PortId,
        wire: &Wire<'_>,
        coverage: &mut Coverage,
    ) -> Result<bool, Refusal> {
        let Some(sent) = read_about(wire.bytes, &wire.read).map(|about| about.tuple) else {
            return Ok(false);
        };
        let mut refused = None;
        let whole = key(&self.hasher, wire.bytes, &wire.read);
        for at in 0..node_batch.inputs.len() {
            let input = &node_batch.inputs[at];
            let is_like = input.read.is_some_and(|read| {
                read.is_error() && (read.at, read.total) == (wire.read.at, wire.read.total)
            });
            if input.outcome != Outcome::Unknown || !is_like {
                continue;
            }
            let ends = (wire.read.tuple.source, wire.read.tuple.destination);
            let Some(moved) = input.with_quoted(ends, &sent, wire.bytes) else { continue };
            let is_this =
                moved.read.is_some_and(|read| key(&self.hasher, moved.packet(), &read) == whole);
            if !is_this || wire.is_unharmed(&moved).is_err() {
                continue;
            }
            for epoch in law.epochs.iter().rev() {
                let way =
                    law.translated_error(epoch, input, &sent).and_then(|(passage, pair, of)| {
                        if of != ends {
                            return Err(format!("the error's addresses should be {of:?}"));
                        }
                        self.leaves_translated(
                            law,
                            epoch,
                            input,
                            (passage, pair),
                            port,
                            wire.bytes,
                        )?;
                        Ok(passage)
                    });
                match way {
                    Ok(passage) => {
                        came_out(&mut node_batch.inputs[at], passage, coverage);
                        node_batch.inputs[at].translated = true;
                        coverage.count(Event::TranslatedError);
                        return Ok(true);
                    }
                    Err(why) => refused = refused.or(Some((why, Some(at)))),
                }
            }
        }
        refused.map_or(Ok(false), Err)
    }

    /// Checks that a packet of a connection leaves towards its destination.
    fn leaves_translated(
        &self,
        law: &Law<'_>,
        epoch: &Epoch,
        input: &Input,
        (passage, pair): (Passage, Pair),
        port: PortId,
        bytes: &[u8],
    ) -> Result<(), String> {
        let hops = law.hops_translated(input, passage, &pair);
        let mut ports = law.ports_translated(epoch, passage, &pair);
        // A later fragment has no ports, so it may belong to another connection between the same addresses, whose
        // packets came in by another port.
        let is_later = input.read.is_some_and(|read| read.is_later());
        if is_later && matches!(passage.to, Place::Node | Place::World) {
            ports.extend([HOST, MANX]);
        }
        leaves_by(input, (passage, hops), &ports, port, bytes)
    }

    /// The input of a translated super-packet that came out whole, its passage, and its connection.
    pub(super) fn find_super(
        &self,
        law: &Law<'_>,
        node_batch: &mut NodeBatch,
        port: PortId,
        (bytes, offload): (&[u8], Offload),
    ) -> Option<(usize, Passage, Pair)> {
        if !self.terms.translates {
            return None;
        }
        let wire = Wire { bytes, read: read(bytes)?, is_partial: true };
        let tuple = wire.read.tuple;
        (0..node_batch.changing.len()).find_map(|nth| {
            let at = node_batch.changing[nth];
            if node_batch.inputs[at].outcome != Outcome::Unknown {
                return None;
            }
            let moved = node_batch.moved(at, &tuple, &wire)?;
            if !is_same_super(moved, bytes, offload) {
                return None;
            }
            let input = &node_batch.inputs[at];
            let (passage, pair) = self.may_pass_translated(law, input, &tuple, port, bytes).ok()?;
            Some((at, passage, pair))
        })
    }

    pub(super) fn came_out_translated(
        &self,
        law: &Law<'_>,
        node_batch: &mut NodeBatch,
        at: usize,
        (passage, pair): (Passage, Pair),
        coverage: &mut Coverage,
    ) {
        let input = &mut node_batch.inputs[at];
        came_out(input, passage, coverage);
        input.translated = true;
        let Some(read) = input.read else { return };
        let is_back = (read.tuple.source, read.tuple.destination)
            != (pair.first.source, pair.first.destination);
        let hides_source = law.epochs.iter().any(|epoch| law.hides_source(epoch, &pair));
        let asks_port = law.epochs.iter().any(|it| it.asks_node_port(law.node, &pair.first));
        let [there, back] = match (hides_source, asks_port) {
            (true, _) => [Event::Left, Event::CameBack],
            (false, true) => [Event::ByNodePort, Event::ByNodePortBack],
            (false, false) => [Event::Translated, Event::TranslatedBack],
        };
        coverage.count(if is_back { back } else { there });
        if read.part != Part::Whole {
            coverage.count(Event::TranslatedFragment);
        }
        let (first, behind) = (pair.first.transport, pair.behind.transport);
        if hides_source {
            // The client's port was replaced by one of the way out. This does not count as `OtherPort`.
        } else if pair.behind.source == hairpin(pair.first.source) {
            coverage.count(Event::Hairpin);
        } else if pair.judged().transport != behind && first != behind {
            coverage.count(Event::OtherPort);
        }
        // The first fragment may have opened its connection in this batch, with a source port that was unknown before.
        if let (Part::First { .. }, Some(entry)) = (read.part, node_batch.inputs[at].entry) {
            let mut translations = law.translations.borrow_mut();
            for version in law.epochs.iter().map(|epoch| epoch.versions[law.node]) {
                let pairs = std::iter::once(pair);
                translations.record_first_fragment(&read, (entry, version), pairs, law.now);
            }
        }
        // A later fragment follows the decision on its first fragment. It does not show whether the
        // flow still exists.
        if read.is_later() {
            return;
        }
        if let [epoch] = law.epochs
            && self.is_new_here(law, &pair)
            && let Some(choice) = shared_choice(epoch, law.node, &pair.first)
        {
            self.moves.borrow_mut().record_choice(&pair, choice);
        }
        let mut translations = law.translations.borrow_mut();
        let is_another = translations.asking(&pair.first).is_some_and(|asking| {
            let mut pairs = asking.pairs(&pair.first).peekable();
            pairs.peek().is_some() && !pairs.any(|it| it == pair)
        });
        if is_another {
            coverage.count(Event::ChosenAnew);
        }
        if translations.record_seen(pair, law.now) && passage.because == Because::Kept {
            translations.record_kept(&pair, (law.epochs, law.node), law.now);
        }
        if is_back && read.flags & (flag::SYN | flag::ACK | flag::RST) == flag::SYN | flag::ACK {
            translations.record_greeting(&pair);
        }
    }

    /// Whether this batch has the first packet of a client's tuple at this node.
    fn is_new_here(&self, law: &Law<'_>, pair: &Pair) -> bool {
        let translations = law.translations.borrow();
        translations.asking(&pair.first).is_some_and(|asking| translations.is_new(asking))
    }

    /// Whether a connection has the backend that both nodes would choose. The backend is checked only if a router may
    /// choose the node, and if the backend was chosen in this batch from one state of the services.
    fn is_chosen_alike(&self, law: &Law<'_>, epoch: &Epoch, pair: &Pair) -> bool {
        let choice = shared_choice(epoch, law.node, &pair.first);
        let is_free = law.epochs.len() > 1 || !self.is_new_here(law, pair);
        choice.is_none_or(|of| is_free || self.moves.borrow().may_choose(pair, &of))
    }

    /// Returns the passage and the connection with which an input may leave by this port as these bytes, which have the
    /// ends of this tuple. Otherwise returns the reason why it may not.
    fn may_pass_translated(
        &self,
        law: &Law<'_>,
        input: &Input,
        tuple: &FlowTuple,
        port: PortId,
        bytes: &[u8],
    ) -> Result<(Passage, Pair), String> {
        let mut refused = String::new();
        for epoch in law.epochs.iter().rev() {
            let passes = law.translation(epoch, input, tuple).and_then(|(passage, pair)| {
                self.leaves_translated(law, epoch, input, (passage, pair), port, bytes)?;
                let is_later = input.read.is_some_and(|read| read.is_later());
                if !is_later && !self.is_chosen_alike(law, epoch, &pair) {
                    return Err("the other node has chosen another backend for it".to_owned());
                }
                if !is_later && !law.is_alone(&pair) {
                    return Err(
                        "another connection has the same ends behind the translation".to_owned()
                    );
                }
                Ok((passage, pair))
            });
            match passes {
                Ok(way) => return Ok(way),
                Err(why) if refused.is_empty() => refused = why,
                Err(_) => {}
            }
        }
        Err(refused)
    }
}
