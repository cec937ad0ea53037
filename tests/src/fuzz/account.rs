//! Whether everything is accounted for: what had to arrive has, and each packet was counted once.

use std::fmt::Write as _;

use manx_dataplane::fate::DropReason;

use super::coverage::{Coverage, Event};
use super::epoch::{Epoch, Place};
use super::input::{Input, Outcome};
use super::judge::Judge;
use super::oracle::{Because, Law, Passage};
use super::read::{Part, Speech, read_about};
use super::side::{Counts, Output, Side, Violation};

impl Judge {
    /// Whoever had to arrive has.
    pub(super) fn arrivals(
        &self,
        law: &Law<'_>,
        side: &Side,
        counts: &Counts,
        coverage: &mut Coverage,
    ) -> Result<(), Box<Violation>> {
        let [epoch] = law.epochs else { return Ok(()) };
        if counts.is_crowded() || side.is_incomplete {
            return Ok(());
        }
        let evictions = (counts.evictions == 0).then_some(side.after.evictions);
        for input in &side.inputs {
            let is_cut = input.pieces > 0 && input.pieces < input.carried();
            let must = if is_cut {
                Some(Event::SureTalk)
            } else {
                self.must_arrive(law, epoch, input, evictions)
            };
            let Some(event) = must else { continue };
            if input.outcome != Outcome::CameOut || is_cut {
                let law_broken = if is_cut {
                    "a part of it did not come out"
                } else {
                    "it had to arrive, and did not"
                };
                let why = law.passage(input);
                return Err(Box::new(Violation {
                    law: format!("{law_broken}: {event:?}, {why:?}"),
                    node: law.node,
                    output: None,
                    input: Some(input.found()),
                }));
            }
            coverage.count(event);
        }
        Ok(())
    }

    /// Whether a packet has to arrive; `evictions`: if nobody was evicted meanwhile, how many were before.
    fn must_arrive(
        &self,
        law: &Law<'_>,
        epoch: &Epoch,
        input: &Input,
        evictions: Option<u64>,
    ) -> Option<Event> {
        let read = input.read.filter(|read| input.sent.is_clean && read.part == Part::Whole)?;
        let Passage { because, from, to } = law.passage_in(epoch, input).ok()?;
        epoch.port(to)?;
        let hop = from != Place::Node && to != Place::Node;
        let is_short =
            input.offload.segmentation.is_some() || read.total <= epoch.mtu(to, self.tunnel_mtu);
        if (hop && read.ttl <= 1) || !is_short || input.ecn.is_none() {
            return None;
        }
        let speech = &read.speech;
        let is_certain = |speech: &Speech| {
            let known = law.connections.find(speech, law.now);
            evictions.is_some_and(|it| {
                known.is_some_and(|known| known.is_certain(epoch.number, it, law.now))
            })
        };
        match because {
            Because::Allowed if from == to => Some(Event::SureItself),
            Because::Allowed if input.is_fresh && law.terms.admits(&read) => {
                Some(Event::SureOpening)
            }
            Because::Allowed if is_certain(speech) => Some(Event::SureTalk),
            Because::Reply if is_certain(&speech.reversed()) => Some(Event::SureReply),
            Because::Related => {
                let quoted = read_about(input.packet(), &read)?;
                is_certain(&quoted.speech).then_some(Event::SureError)
            }
            _ => None,
        }
    }

    /// Of what has come out the node knows the connections.
    pub(super) fn make_certain(&mut self, node: usize, side: &Side, now: f64, epoch: &Epoch) {
        for input in side.inputs.iter().filter(|it| it.outcome == Outcome::CameOut && it.entered) {
            let Some(speech) = input.read.map(|read| read.speech) else { continue };
            let known = &mut self.connections[node];
            let is_first = input.is_fresh && epoch.allows(node, &speech);
            let (number, evictions) = (epoch.number, side.after.evictions);
            known.make_certain(&speech, number, evictions, now, is_first);
            known.make_certain(&speech.reversed(), number, evictions, now, false);
        }
    }
}

/// Whether each packet was counted once, and what was sent came out.
pub(super) fn balance(
    node: usize,
    side: &Side,
    counts: &Counts,
    sent: u64,
) -> Result<(), Box<Violation>> {
    let broken = |law: String| {
        let law = format!("{law}{}", fates(side));
        Err(Box::new(Violation { law, node, output: None, input: None }))
    };
    let dropped = counts.drops.iter().sum::<u64>() + counts.portless;
    let came_out = side.inputs.iter().filter(|it| it.outcome == Outcome::CameOut);
    let forwarded: u64 = came_out.map(Input::units).sum();
    let sent_law = format!("{sent} packets came out, and {} were counted as sent", counts.sent);
    if counts.sent != sent {
        return broken(sent_law);
    }
    // What was refused on its way out may be a piece of what came out otherwise, or an error of the node's own.
    let refused = counts.dropped(DropReason::TransmitRefused);
    let received = counts.received;
    if received > dropped + forwarded || received + refused < dropped + forwarded {
        return broken(format!(
            "{received} packets were received, {dropped} dropped and {forwarded} forwarded, {} sent, {sent} came out: {:?}",
            counts.sent, counts.drops
        ));
    }
    let inputs = side.inputs.len() as u64;
    let is_plain = side
        .inputs
        .iter()
        .all(|it| it.sent.offload.segmentation.is_none() && it.offload.segmentation.is_none());
    if !side.is_incomplete && (counts.received < inputs || is_plain && counts.received != inputs) {
        return broken(format!(
            "{inputs} packets went in, and {} were counted as received",
            counts.received
        ));
    }
    Ok(())
}

/// What became of each input, for who wants to know why counts are not equal.
fn fates(side: &Side) -> String {
    let mut text = String::new();
    for input in &side.inputs {
        let speech = input.read.map(|read| (read.speech, read.part, read.ttl));
        let _ = write!(
            text,
            "\n{:?} at port {}, {} bytes, {:?}, {} in pieces of {}, {} units, {:?}: {speech:?}",
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
    for Output { port, frame } in &side.outputs {
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
