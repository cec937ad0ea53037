//! Judges one batch at one node: finds the input of each output, and whether the output was allowed.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::rc::Rc;

use ahash::RandomState;
use manx_calculation::overlay::Overlay;
use manx_dataplane::packet::{Offload, SegmentKind};
use manx_dataplane::tables::PortId;

use super::balance::balance;
use super::batch::{NodeBatch, Output, Violation};
use super::connections::Connections;
use super::coverage::{Coverage, Event};
use super::epoch::{Entry, Epoch, Place};
use super::full_range;
use super::input::{Input, Outcome, key, offload_within, outer};
use super::moves::Moves;
use super::oracle::{Because, Law, Passage, Terms};
use super::own_errors;
use super::read::{Part, read_about};
use super::refusals;
use super::translations::Translations;
use super::tunnel;
use super::wire::{Refusal, Wire, cut, is_of_kind, is_same_super};
use crate::fabric::RAW;
use crate::packet::{ICMP, ICMPV6, SCTP, TCP, UDP};

/// The judge, which remembers the connections of a world.
pub struct Judge {
    pub hasher: RandomState,
    pub overlay: Overlay,
    pub tunnel_mtu: u32,
    pub terms: Terms,
    pub connections: [Connections; 2],
    pub translations: [RefCell<Translations>; 2],
    pub moves: RefCell<Moves>,
    /// Whether each node has one worker.
    pub is_single: [bool; 2],
}

impl Judge {
    /// Judges the outputs of a node for a batch. `epochs` are the publications during the batch, the current one last.
    pub fn judge(
        &mut self,
        node: usize,
        node_batch: &mut NodeBatch,
        now: f64,
        epochs: &[Rc<Epoch>],
        coverage: &mut Coverage,
    ) -> Result<(), Box<Violation>> {
        self.translations[node].get_mut().follow(epochs, node);
        for input in &mut node_batch.inputs {
            self.record_input(node, input, now, epochs);
        }
        // The order in which the workers have read the inputs is unknown.
        for input in &node_batch.inputs {
            let Some(read) = input.read else { continue };
            let known = &mut self.connections[node];
            if input.entered {
                known.record_packet(&read.tuple, now);
            }
            // The connection is that of the packet or, for an ICMP error, that of the packet that the error quotes.
            let about = read_about(input.packet(), &read).map_or(read.tuple, |about| about.tuple);
            for epoch in epochs.iter().filter(|_| self.terms.keeps) {
                known.record_standing(epoch, node, &about, now);
                known.record_standing(epoch, node, &about.reversed(), now);
                if self.terms.translates {
                    self.translations[node].get_mut().record_standing(epoch, node, &about, now);
                }
            }
        }
        if node_batch
            .inputs
            .iter()
            .any(|it| it.read.is_some_and(|read| matches!(read.part, Part::First { .. })))
        {
            self.record_first_fragments(node, node_batch, now, epochs);
        }
        let evictions = node_batch.after.evictions;
        let connections = std::mem::take(&mut self.connections[node]);
        let translations = &self.translations[node];
        let terms = self.terms;
        let evicts = evictions != node_batch.before.evictions;
        let law = Law {
            node,
            now,
            terms,
            epochs,
            connections: &connections,
            translations,
            evictions,
            evicts,
            is_single: self.is_single[node],
        };
        let judged = self.judge_outputs(&law, node_batch, coverage).and_then(|sent| {
            let counts = node_batch.after.since(&node_batch.before);
            balance(node, node_batch, &counts, sent)?;
            self.arrivals(&law, node_batch, &counts, coverage)?;
            full_range::check(&law, node_batch, &counts)?;
            Ok(counts)
        });
        self.connections[node] = connections;
        let counts = judged?;
        let epoch = if let ([epoch], 0) = (epochs, counts.evictions) { Some(epoch) } else { None };
        if let Some(epoch) = epoch {
            self.make_certain(node, node_batch, now, epoch);
        }
        if self.terms.translates {
            self.end_batch(node, node_batch, now, (epochs, epoch));
        }
        for (sum, more) in coverage.drops.iter_mut().zip(counts.drops) {
            *sum += more;
        }
        coverage.add(Event::HandedOff, counts.handoffs);
        coverage.add(Event::Portless, counts.portless);
        coverage.add(Event::Evicted, counts.evictions);
        Ok(())
    }

    /// Judges all outputs. Returns the number of packets that a wire would carry for them.
    fn judge_outputs(
        &self,
        law: &Law<'_>,
        node_batch: &mut NodeBatch,
        coverage: &mut Coverage,
    ) -> Result<u64, Box<Violation>> {
        let mut sent = 0;
        let outputs = std::mem::take(&mut node_batch.outputs);
        let mut scratch = Vec::new();
        // A reset names only its connection, so it may belong to any packet of the connection that
        // has not come out.
        let (resets, others): (Vec<_>, Vec<_>) =
            outputs.iter().partition(|it| refusals::is_bare_reset(&it.frame.bytes));
        for output in others.into_iter().chain(resets) {
            match self.judge_output(law, node_batch, output, &mut scratch, coverage) {
                Ok(packets) => sent += packets,
                Err((law_broken, of)) => {
                    let Output { port, frame } = output;
                    return Err(Box::new(Violation {
                        law: law_broken,
                        node: law.node,
                        output: Some(Output { port: *port, frame: frame.clone() }),
                        input: of.map(|at| node_batch.inputs[at].found()),
                    }));
                }
            }
        }
        node_batch.outputs = outputs;
        Ok(sent)
    }

    fn judge_output(
        &self,
        law: &Law<'_>,
        node_batch: &mut NodeBatch,
        Output { port, frame }: &Output,
        scratch: &mut Vec<u8>,
        coverage: &mut Coverage,
    ) -> Result<u64, Refusal> {
        let fault = |fault: &str| (fault.to_owned(), None);
        let mut start = 0;
        if *port == RAW {
            let found =
                outer(&frame.bytes, self.overlay).ok_or_else(|| fault("it is no tunnel packet"))?;
            start = found.2;
            tunnel::check(law.node, &frame.bytes, start, self.overlay).map_err(fault)?;
        }
        let bytes = &frame.bytes[start..];
        let offload: Offload = offload_within(frame.offload, start);
        let Some(segmentation) = offload.segmentation else {
            let wire = Wire::new(bytes, offload.checksum).map_err(fault)?;
            self.judge_wire(law, node_batch, *port, &wire, coverage)?;
            return Ok(1);
        };
        is_of_kind(bytes, segmentation.kind).map_err(fault)?;
        for nth in 0..node_batch.changing.len() {
            let at = node_batch.changing[nth];
            let input = &node_batch.inputs[at];
            if input.outcome == Outcome::Unknown
                && is_same_super(input, bytes, offload)
                && let Ok(passage) = self.may_pass(law, input, *port, bytes)
            {
                let size = usize::from(segmentation.size.max(1));
                let headers = input.read.map_or(0, |read| read.headers(bytes));
                let payload = bytes.len().saturating_sub(headers);
                let input = &mut node_batch.inputs[at];
                input.pieces = payload;
                came_out(input, passage, coverage);
                coverage.count(Event::WholeSuper);
                return Ok(payload.div_ceil(size).max(1) as u64);
            }
        }
        let whole = (bytes, offload);
        if let Some((at, passage, pair)) = self.find_super(law, node_batch, *port, whole) {
            let size = usize::from(segmentation.size.max(1));
            let headers = node_batch.inputs[at].read.map_or(0, |read| read.headers(bytes));
            let payload = bytes.len().saturating_sub(headers);
            node_batch.inputs[at].pieces = payload;
            self.came_out_translated(law, node_batch, at, (passage, pair), coverage);
            coverage.count(Event::WholeSuper);
            return Ok(payload.div_ceil(size).max(1) as u64);
        }
        let mut failed = None;
        let packets = cut(bytes, offload, scratch, |segment| {
            let wire = Wire::new(segment, manx_dataplane::packet::Checksum::Unverified)?;
            self.judge_wire(law, node_batch, *port, &wire, coverage).map_err(|why| {
                failed = Some(why);
                ""
            })
        });
        coverage.count(Event::Coalesced);
        packets.map_err(|why| failed.unwrap_or_else(|| fault(why)))
    }

    /// Finds the input from which a packet came, and checks that it was allowed.
    fn judge_wire(
        &self,
        law: &Law<'_>,
        node_batch: &mut NodeBatch,
        port: PortId,
        wire: &Wire<'_>,
        coverage: &mut Coverage,
    ) -> Result<(), Refusal> {
        let mut refused = None;
        let first = node_batch.keys.get(&key(&self.hasher, wire.bytes, &wire.read)).copied();
        // Several inputs may differ only in their virtio headers. An input with the same checksum state is preferred,
        // and of these a clean one, because the others may have been dropped.
        for wanted in [(true, true), (true, false), (false, true), (false, false)] {
            let mut next = first;
            while let Some(at) = next {
                let input = &node_batch.inputs[at];
                next = input.same;
                let is_alike = input.offload.checksum.is_partial() == wire.is_partial;
                if (is_alike, input.sent.is_clean) != wanted {
                    continue;
                }
                let passage = match input.outcome {
                    Outcome::Unknown => wire
                        .is_unharmed(input)
                        .map_err(str::to_owned)
                        .and_then(|()| self.may_pass(law, input, port, wire.bytes)),
                    _ => Err("it came out twice".to_owned()),
                };
                match passage {
                    Ok(passage) => {
                        let is_beyond = matches!(passage.to, Place::Node | Place::World);
                        if port == RAW && is_beyond {
                            coverage.count(Event::VisitAnswered);
                        }
                        came_out(&mut node_batch.inputs[at], passage, coverage);
                        return Ok(());
                    }
                    Err(why) => refused = refused.or(Some((why, Some(at)))),
                }
            }
        }
        for nth in 0..node_batch.changing.len() {
            let at = node_batch.changing[nth];
            let input = &node_batch.inputs[at];
            let Some(len) = wire.is_piece(input) else { continue };
            if input.pieces + len > input.carried() {
                refused = refused.or(Some(("it came out twice".to_owned(), Some(at))));
                continue;
            }
            match self.may_pass(law, input, port, wire.bytes) {
                Ok(passage) => {
                    let input = &mut node_batch.inputs[at];
                    input.pieces += len;
                    if input.outcome == Outcome::Unknown {
                        came_out(input, passage, coverage);
                    }
                    coverage.count(piece_event(wire));
                    return Ok(());
                }
                Err(why) => refused = refused.or(Some((why, Some(at)))),
            }
        }
        if own_errors::find(law, &mut node_batch.inputs, port, wire, self.tunnel_mtu, coverage)? {
            return Ok(());
        }
        // Translations come before the node's own resets, because a host of the world may have sent the reset.
        let translated = self.judge_translated(law, node_batch, port, wire, coverage);
        if matches!(translated, Ok(true)) {
            return Ok(());
        }
        if refusals::find(law, &mut node_batch.inputs, port, wire, coverage)? {
            return Ok(());
        }
        refused = refused.or(translated.err());
        Err(refused.unwrap_or_else(|| ("it came of no packet that was sent".to_owned(), None)))
    }

    /// Returns the passage with which an input may leave by this port as these bytes, or the reason why it may not.
    fn may_pass(
        &self,
        law: &Law<'_>,
        input: &Input,
        port: PortId,
        bytes: &[u8],
    ) -> Result<Passage, String> {
        let mut refused = String::new();
        for epoch in law.epochs.iter().rev() {
            let passes = law.passage_in(epoch, input).and_then(|passage| {
                leaves(law, epoch, input, passage, port, bytes)?;
                Ok(passage)
            });
            match passes {
                Ok(passage) => return Ok(passage),
                Err(why) if refused.is_empty() => refused = why,
                Err(_) => {}
            }
        }
        Err(refused)
    }
}

/// Checks that a packet leaves towards its destination, and with the changes of one hop.
fn leaves(
    law: &Law<'_>,
    epoch: &Epoch,
    input: &Input,
    passage: Passage,
    port: PortId,
    bytes: &[u8],
) -> Result<(), String> {
    let ports = law.ports(epoch, input, passage);
    leaves_by(input, (passage, law.hops(input, passage)), &ports, port, bytes)
}

/// The same as [`leaves`](Self::leaves), for a packet that may leave by any of these ports, with
/// these numbers of hops.
fn leaves_by(
    input: &Input,
    (passage, hops): (Passage, RangeInclusive<u8>),
    ports: &[PortId],
    port: PortId,
    bytes: &[u8],
) -> Result<(), String> {
    if !ports.contains(&port) {
        let to = passage.to;
        return Err(format!(
            "it left by port {} and not by one of {ports:?}, and its destination is {to:?}",
            port.0
        ));
    }
    let Some(read) = &input.read else { return Err("it cannot be read".to_owned()) };
    let (ttl, ecn) =
        if bytes[0] >> 4 == 4 { (bytes[8], bytes[1] & 3) } else { (bytes[7], bytes[1] >> 4 & 3) };
    let hop = read.ttl.wrapping_sub(ttl);
    if !hops.contains(&hop) || hop == 1 && read.ttl <= 1 {
        return Err(format!("its hop limit was {} and is {ttl}", read.ttl));
    }
    if input.ecn != Some(ecn) {
        return Err(format!("its congestion mark is {ecn} and should be {:?}", input.ecn));
    }
    Ok(())
}

/// The event of a packet that is a part of an input.
fn piece_event(wire: &Wire<'_>) -> Event {
    if wire.read.part == Part::Whole { Event::Segmented } else { Event::Fragmented }
}

fn came_out(input: &mut Input, passage: Passage, coverage: &mut Coverage) {
    input.outcome = Outcome::CameOut;
    coverage.came_out[input.sent.kind as usize] += 1;
    let is_visit = matches!(passage.from, Place::Node | Place::World)
        && input.entry == Some(Entry::Tunnel)
        && passage.because != Because::Related;
    coverage.add(Event::Visited, is_visit.into());
    let from = match passage.from {
        Place::Pod(_) => Event::FromPod,
        Place::Node => Event::FromNode,
        Place::Tunnel => Event::FromTunnel,
        _ => Event::FromWorld,
    };
    let to = match passage.to {
        Place::Pod(_) => Event::ToPod,
        Place::Node => Event::ToNode,
        Place::Tunnel => Event::ToTunnel,
        _ => Event::ToWorld,
    };
    let because = match passage.because {
        Because::Allowed => Event::Allowed,
        Because::Reply => Event::Reply,
        Because::Related => Event::Related,
        Because::LaterFragment => Event::LaterFragment,
        Because::Kept => Event::Kept,
    };
    [from, to, because].into_iter().for_each(|event| coverage.count(event));
    if let Some(read) = &input.read {
        let (v4, v6) = match read.tuple.upper {
            TCP => (Event::Tcp4, Event::Tcp6),
            UDP => (Event::Udp4, Event::Udp6),
            SCTP => (Event::Sctp4, Event::Sctp6),
            ICMP | ICMPV6 => (Event::Icmp4, Event::Icmp6),
            _ => (Event::Other4, Event::Other6),
        };
        coverage.count(if read.tuple.is_v4() { v4 } else { v6 });
    }
    if let Some(segmentation) = input.offload.segmentation {
        coverage.count(match segmentation.kind {
            SegmentKind::Tcp4 => Event::SuperTcp4,
            SegmentKind::Tcp6 => Event::SuperTcp6,
            SegmentKind::Udp => Event::SuperUdp,
        });
    }
}

mod records;
mod translated;

#[cfg(test)]
mod tests;
