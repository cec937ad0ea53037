//! The balance of a batch: every packet that had to arrive has arrived, and each packet was counted once.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::tables::PortId;

use super::batch::{Counts, NodeBatch, Output, Violation};
use super::coverage::{Coverage, Event};
use super::epoch::{Entry, Epoch, Place};
use super::input::{Input, Outcome};
use super::judge::Judge;
use super::oracle::{Because, Law, Passage, is_forwardable};
use super::read::{FlowTuple, Part, read_about};
use super::translation_law::hairpin;
use super::translations::{Pair, asked_of, end_of};
use crate::fabric::RAW;
use crate::packet::TCP;

impl Judge {
    /// Checks that every packet that had to arrive has arrived.
    pub(super) fn arrivals(
        &self,
        law: &Law<'_>,
        node_batch: &NodeBatch,
        counts: &Counts,
        coverage: &mut Coverage,
    ) -> Result<(), Box<Violation>> {
        let [epoch] = law.epochs else { return Ok(()) };
        // If all ports that the node tries are taken, also by other workers, a connection is
        // refused.
        let has_no_port = counts.dropped(DropReason::NoFreePort) > 0;
        if counts.is_crowded() || node_batch.is_incomplete {
            return Ok(());
        }
        let evictions = (counts.evictions == 0).then_some(node_batch.after.evictions);
        for input in &node_batch.inputs {
            let is_cut = input.pieces > 0 && input.pieces < input.carried();
            let must = if is_cut {
                Some(Event::SureTalk)
            } else {
                self.must_arrive(law, epoch, input, evictions)
            };
            let Some(event) = must else { continue };
            let takes_port =
                matches!(event, Event::SureTranslatedOpening | Event::SureMoved | Event::SureLeft);
            if takes_port && has_no_port {
                continue;
            }
            if input.outcome != Outcome::CameOut || is_cut {
                let law_broken = if is_cut {
                    "a part of it did not come out"
                } else {
                    "it had to arrive, and did not"
                };
                let why = law.passage(input);
                return Err(Box::new(Violation {
                    law: format!(
                        "{law_broken}: {event:?}, {why:?}; dropped: {:?}",
                        counts.named_drops()
                    ),
                    node: law.node,
                    output: None,
                    input: Some(input.found()),
                }));
            }
            coverage.count(event);
        }
        Ok(())
    }

    /// Returns the event to count if a packet had to arrive. `evictions` is the number of flows that the node has ever
    /// evicted; `None` if it evicted a flow during this batch.
    fn must_arrive(
        &self,
        law: &Law<'_>,
        epoch: &Epoch,
        input: &Input,
        evictions: Option<u64>,
    ) -> Option<Event> {
        let read = input.read.filter(|read| input.sent.is_clean && read.part == Part::Whole)?;
        if law.terms.translates {
            let about = read_about(input.packet(), &read).map_or(read.tuple, |about| about.tuple);
            let is_asked = |tuple: &FlowTuple| law.asks(epoch, tuple);
            if is_asked(&about)
                || is_asked(&about.reversed())
                || law.translations.borrow().may_be_taken(&about)
            {
                return self.must_arrive_translated(law, epoch, input, evictions);
            }
        }
        let passage = law.passage_in(epoch, input).ok()?;
        let Passage { because, from, to } = passage;
        let ports = law.ports(epoch, input, passage);
        self.fits(epoch, input, (passage, law.hops(input, passage)), &ports)?;
        let tuple = &read.tuple;
        let is_certain = |tuple: &FlowTuple| {
            let known = law.connections.find(tuple, law.now);
            evictions.is_some_and(|it| {
                known.is_some_and(|known| known.is_certain(epoch.number, it, law.now))
            })
        };
        // A client may have two connections with the same tuple, which came in by different ports. The node knows one
        // of them, but the test does not know which one.
        let entries = law.connections.entries(tuple);
        let is_one_way = entries.iter().all(|it| Some(*it) == input.entry);
        match because {
            Because::Allowed if from == to => Some(Event::SureItself),
            Because::Allowed if input.is_fresh && law.terms.admits(&read) => {
                Some(Event::SureOpening)
            }
            Because::Allowed if is_one_way && is_certain(tuple) => Some(Event::SureTalk),
            Because::Reply if is_certain(&tuple.reversed()) => Some(Event::SureReply),
            Because::Related => {
                let quoted = read_about(input.packet(), &read)?;
                is_certain(&quoted.tuple).then_some(Event::SureError)
            }
            _ => None,
        }
    }

    /// Returns `Some` if a permitted input can also reach its destination: it has enough hops left, is not too long for
    /// the MTU, and has a valid ECN mark.
    fn fits(
        &self,
        epoch: &Epoch,
        input: &Input,
        (passage, hops): (Passage, RangeInclusive<u8>),
        ports: &[PortId],
    ) -> Option<()> {
        let (read, to) = (input.read?, passage.to);
        epoch.port(to)?;
        let hop = hops.contains(&1);
        let mtu = epoch.mtu(to, self.tunnel_mtu);
        let mtu = if ports.contains(&RAW) { mtu.min(self.tunnel_mtu as usize) } else { mtu };
        let is_short = input.offload.segmentation.is_some() || read.total <= mtu;
        ((!hop || read.ttl > 1) && is_short && input.ecn.is_some()).then_some(())
    }

    /// The same as [`must_arrive`](Self::must_arrive), for a packet that is or may be translated.
    fn must_arrive_translated(
        &self,
        law: &Law<'_>,
        epoch: &Epoch,
        input: &Input,
        evictions: Option<u64>,
    ) -> Option<Event> {
        let read = input.read?;
        let fits = |passage: Passage, pair: &Pair| {
            let ports = law.ports_translated(epoch, passage, pair);
            self.fits(epoch, input, (passage, law.hops_translated(input, passage, pair)), &ports)
        };
        let is_certain = |pair: &Pair| {
            let translations = law.translations.borrow();
            let known = translations.connection(pair);
            evictions.is_some_and(|it| {
                known.is_some_and(|known| known.is_certain(epoch.number, it, law.now))
            })
        };
        if read.is_error() {
            let got = read_about(input.packet(), &read)?.tuple;
            let translations = law.translations.borrow();
            let sure: Vec<Pair> =
                translations.pairs_got(&got).into_iter().filter(is_certain).collect();
            drop(translations);
            let pair = sure.first()?;
            let is_of_client = pair.behind == got;
            if law.terms.has_ports && !self.is_from_there(law, epoch, input, (pair, is_of_client)) {
                return None;
            }
            let sent = if is_of_client { pair.first } else { pair.behind.reversed() };
            let (passage, pair, (_, to)) = law.translated_error(epoch, input, &sent).ok()?;
            fits(passage, &pair)?;
            return is_forwardable(to).then_some(Event::SureTranslatedError);
        }
        let ways = law.translations_of(epoch, input);
        if let Some((passage, pair)) = ways.iter().find(|(_, pair)| is_certain(pair)) {
            fits(*passage, pair)?;
            // If packets with this tuple came in by several ports, those of each port may belong to a different client.
            let translations = law.translations.borrow();
            let entries = translations.asking(&pair.first).map_or(&[][..], |it| &it.entries);
            let is_one = !law.terms.has_ports || entries.len() == 1 && law.has_source(epoch, pair);
            let is_forward = pair.first == read.tuple;
            let is_own = is_forward || pair.behind.reversed() == read.tuple;
            let hides = law.hides_source(epoch, pair);
            if hides
                && !translations.connection(pair).is_some_and(|it| it.is_greeted(read.tuple.upper))
            {
                return None;
            }
            let event = match (hides, is_forward) {
                (true, true) => Event::SureLeaving,
                (true, false) => Event::SureComingBack,
                (false, true) => Event::SureTranslated,
                (false, false) => Event::SureTranslatedReply,
            };
            return (is_own && is_one).then_some(event);
        }
        // A later packet of a TCP connection may also arrive if it comes in at another node, provided that only one
        // service address leads to the connection's backend. This test does not know whether only one does, so the
        // packet may arrive, but need not.
        let opens = read.opens() || read.tuple.upper != TCP;
        if !input.is_fresh || !opens || !law.asks(epoch, &read.tuple) {
            return None;
        }
        if epoch.leaves(law.node, &read.tuple) {
            // The packet may be an answer to a client of a service, or to the pod itself.
            let answers = !law.translations.borrow().pairs_answered(&read.tuple).is_empty();
            if answers || read.tuple.destination == hairpin(read.tuple.source) {
                return None;
            }
            let has_ports = asked_of(&read.tuple).is_some() || read.tuple.icmp() == Some((8, 0));
            let (passage, pair) = ways.iter().find(|(_, pair)| pair.first == read.tuple)?;
            fits(*passage, pair)?;
            return has_ports.then_some(Event::SureLeft);
        }
        let frontend = epoch.services.frontends.get(&asked_of(&read.tuple)?)?;
        let is_outside = epoch.place(law.node, read.tuple.source) == Place::World;
        let backends = frontend.backends_for(is_outside);
        let mut of_each = backends.iter().map(|end| {
            let is_this =
                |pair: &Pair| pair.first == read.tuple && end_of(&pair.behind) == Some(*end);
            let way = ways.iter().find(|(_, pair)| is_this(pair));
            way.and_then(|(passage, pair)| fits(*passage, pair)).is_some()
        });
        let has_moved = self.moves.borrow().has_moved(&read.tuple);
        let event = if has_moved { Event::SureMoved } else { Event::SureTranslatedOpening };
        (of_each.len() > 0 && of_each.all(|fits| fits)).then_some(event)
    }

    /// Whether an ICMP error comes in by the same port as packets of its connection. These are the client's packets or,
    /// if the quoted packet `is_of_client`, the packets of the end behind the translation.
    fn is_from_there(
        &self,
        law: &Law<'_>,
        epoch: &Epoch,
        input: &Input,
        (pair, is_of_client): (&Pair, bool),
    ) -> bool {
        let translations = law.translations.borrow();
        let entries = translations.asking(&pair.first).map_or(&[][..], |it| &it.entries);
        let is_by_manx = input.entry == Some(Entry::Manx);
        entries.len() == 1
            && law.has_source(epoch, pair)
            && if is_of_client {
                law.hides_source(epoch, pair) == is_by_manx
            } else {
                entries.contains(&Entry::Manx) == is_by_manx
            }
    }

    /// Records that the node knows the connections of all outputs.
    pub(super) fn make_certain(
        &mut self,
        node: usize,
        node_batch: &NodeBatch,
        now: f64,
        epoch: &Epoch,
    ) {
        for input in
            node_batch.inputs.iter().filter(|it| it.outcome == Outcome::CameOut && it.entered)
        {
            let Some(tuple) = input.read.map(|read| read.tuple) else { continue };
            if input.translated || self.translations[node].get_mut().may_be_taken(&tuple) {
                continue;
            }
            let known = &mut self.connections[node];
            let is_first = input.is_fresh && epoch.allows(node, &tuple);
            let (number, evictions) = (epoch.number, node_batch.after.evictions);
            known.make_certain(&tuple, number, evictions, now, is_first);
            known.make_certain(&tuple.reversed(), number, evictions, now, false);
        }
    }
}

/// Checks that each packet was counted once, and that all packets that were sent came out.
pub(super) fn balance(
    node: usize,
    node_batch: &NodeBatch,
    counts: &Counts,
    sent: u64,
) -> Result<(), Box<Violation>> {
    let broken = |law: String| {
        let law = format!("{law}{}", fates(node_batch));
        Err(Box::new(Violation { law, node, output: None, input: None }))
    };
    let dropped = counts.drops.iter().sum::<u64>() + counts.portless;
    let came_out = node_batch.inputs.iter().filter(|it| it.outcome == Outcome::CameOut);
    let forwarded: u64 = came_out.map(Input::units).sum();
    let sent_law = format!("{sent} packets came out, and {} were counted as sent", counts.sent);
    if counts.sent != sent {
        return broken(sent_law);
    }
    // A port may have refused a segment of a super-packet that came out, or the node's own error.
    let refused = counts.dropped(DropReason::TransmitRefused);
    let received = counts.received;
    if received > dropped + forwarded || received + refused < dropped + forwarded {
        return broken(format!(
            "{received} packets were received, {dropped} dropped and {forwarded} forwarded, {} sent, {sent} came out: {:?}",
            counts.sent, counts.drops
        ));
    }
    let inputs = node_batch.inputs.len() as u64;
    let is_plain = node_batch
        .inputs
        .iter()
        .all(|it| it.sent.offload.segmentation.is_none() && it.offload.segmentation.is_none());
    if !node_batch.is_incomplete
        && (counts.received < inputs || is_plain && counts.received != inputs)
    {
        return broken(format!(
            "{inputs} packets went in, and {} were counted as received",
            counts.received
        ));
    }
    Ok(())
}

/// The outcome of each input, to explain counters that differ.
fn fates(node_batch: &NodeBatch) -> String {
    let mut text = String::new();
    for input in &node_batch.inputs {
        let tuple = input.read.map(|read| (read.tuple, read.part, read.ttl));
        let _ = write!(
            text,
            "\n{:?} at port {}, {} bytes, {:?}, {} in pieces of {}, {} units, {:?}: {tuple:?}",
            input.sent.kind,
            input.sent.port.0,
            input.packet().len(),
            input.outcome,
            input.pieces,
            input.carried(),
            input.units(),
            input.offload,
        );
    }
    for Output { port, frame } in &node_batch.outputs {
        let _ = write!(
            text,
            "\nout at port {}, {} bytes, {:?}",
            port.0,
            frame.bytes.len(),
            frame.offload
        );
    }
    text
}
