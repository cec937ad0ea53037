//! ICMP errors that a node sends itself.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use manx_dataplane::tables::PortId;

use super::coverage::{Coverage, Event};
use super::epoch::{Epoch, Place, own_addresses};
use super::input::{Input, Outcome};
use super::oracle::{Law, Passage};
use super::wire::{Refusal, Wire};
use crate::fabric::{FORWARDED, HOST, MANX, RAW};
use crate::packet::ICMP;

/// Whether a packet is the node's own error about an input. The input then counts as answered.
///
/// # Errors
/// The packet is an error of the node, and is wrong.
pub fn find(
    law: &Law<'_>,
    inputs: &mut [Input],
    port: PortId,
    wire: &Wire<'_>,
    tunnel_mtu: u32,
    coverage: &mut Coverage,
) -> Result<bool, Refusal> {
    let read = &wire.read;
    if !wire.read.is_error() || !sources(law.node, port).contains(&read.tuple.source) {
        return Ok(false);
    }
    let Some(quote) = wire.bytes.get(read.at + 8..) else { return Ok(false) };
    let about = inputs.iter().position(|input| {
        input.outcome == Outcome::Unknown && back(input.sent.port) == port && quotes(quote, input)
    });
    let Some(at) = about else { return Ok(false) };
    let refuse = |why: String| Err((why, Some(at)));
    if let Err(fault) = is_whole(wire) {
        return refuse(fault.to_owned());
    }
    let mut refused = "an error about a packet that may not pass".to_owned();
    for epoch in law.epochs.iter().rev() {
        let input = &inputs[at];
        let mut translated = Vec::new();
        if law.terms.translates {
            translated = law.translations_of(epoch, input);
        }
        let of_translated = translated.into_iter().find_map(|(passage, pair)| {
            let hops = law.hops_translated(input, passage, &pair);
            cause(input, (passage, hops), wire, &[epoch.mtu(passage.to, tunnel_mtu)])
        });
        let is_refusal = || {
            matches!(wire.read.tuple.icmp(), Some((3, 3) | (1, 4)))
                && law.terms.translates
                && law.may_refuse(epoch, input)
        };
        if let Some(event) = of_translated.or_else(|| is_refusal().then_some(Event::Refused)) {
            inputs[at].outcome = Outcome::Answered;
            coverage.count(event);
            return Ok(true);
        }
        match law.passage_in(epoch, input) {
            Ok(passage) => {
                let mut mtus = vec![epoch.mtu(passage.to, tunnel_mtu)];
                // An outside client may get its answer through the other node.
                if law.ports(epoch, input, passage).contains(&RAW) {
                    mtus.push(tunnel_mtu as usize);
                }
                match cause(input, (passage, law.hops(input, passage)), wire, &mtus) {
                    Some(event) => {
                        inputs[at].outcome = Outcome::Answered;
                        coverage.count(event);
                        return Ok(true);
                    }
                    None => refused = "an error with a wrong cause".to_owned(),
                }
            }
            Err(_) if is_node_to_missing_pod(law, epoch, input, wire) => {
                inputs[at].outcome = Outcome::Answered;
                coverage.count(Event::Unreachable);
                return Ok(true);
            }
            Err(why) => refused = format!("an error about a packet that may not pass: {why}"),
        }
    }
    refuse(refused)
}

/// The source addresses of a node's own errors: the node, if the packet came to a port of the node;
/// otherwise the router.
fn sources(node: usize, port: PortId) -> Vec<IpAddr> {
    let [v4, router_v4, v6, router_v6] = own_addresses(node);
    if port == MANX { vec![v4, v6] } else { vec![router_v4, v6, router_v6] }
}

/// Whether the node gets an error because its own packet reached no pod: the address has a device, but the cluster has
/// no valid pod there.
fn is_node_to_missing_pod(law: &Law<'_>, epoch: &Epoch, input: &Input, wire: &Wire<'_>) -> bool {
    let Some(tuple) = input.read.map(|read| read.tuple) else { return false };
    let place = |address| epoch.place(law.node, address);
    let ends = [tuple.source, tuple.destination].map(place);
    let is_pod = |address| matches!(place(address), Place::Pod(_));
    let leads_to_pod = || {
        law.terms.translates
            && law.pairs_of(epoch, &tuple).iter().any(|pair| is_pod(pair.behind.destination))
    };
    let is_unreachable = matches!(wire.read.tuple.icmp(), Some((3, 1) | (1, 3)));
    ends[0] == Place::Node
        && (is_pod(tuple.destination) || epoch.asks_service(law.node, &tuple) && leads_to_pod())
        && is_unreachable
        && input.entry.is_some_and(|entry| epoch.may_enter(law.node, entry, ends[0]))
}

/// Checks that the packet's checksum is right and that it is not too long (RFC 1812, section 4.3.2.3; RFC 4443, section
/// 2.4).
pub(super) fn is_whole(wire: &Wire<'_>) -> Result<(), &'static str> {
    let tuple = &wire.read.tuple;
    let segment = &wire.bytes[wire.read.at..];
    let sum =
        super::read::sum(tuple.source, tuple.destination, tuple.upper, segment.len(), segment);
    let most = if tuple.is_v4() { 576 } else { 1280 };
    if !super::read::sums_up(sum) {
        return Err("the checksum of the node's own error is wrong");
    }
    if wire.bytes.len() > most {
        return Err("the node's own error is too long");
    }
    Ok(())
}

/// The port by which an answer leaves to the senders behind a port. Answers to forwarded packets go to the node.
pub(super) fn back(port: PortId) -> PortId {
    if port == FORWARDED { HOST } else { port }
}

/// Whether an error quotes an input, and goes to its sender.
fn quotes(quote: &[u8], input: &Input) -> bool {
    let Some(read) = &input.read else { return false };
    let packet = input.packet();
    let Some(begin) = packet.get(..quote.len()) else { return false };
    // The bytes that change with an ECN mark are not compared: the tunnel's mark may have been copied into the packet
    // before the error quoted it.
    let is_same = |at: usize| {
        let marked = if quote[0] >> 4 == 4 { at == 1 || at == 10 || at == 11 } else { at == 1 };
        quote[at] == begin[at] || marked
    };
    quote.len() >= 20 && (0..quote.len()).all(is_same) && !read.is_error() && !read.is_later()
}

/// The event that the error reports about an input with this passage, this number of hops and one of these MTUs; `None`
/// if that event did not happen.
fn cause(
    input: &Input,
    (passage, hops): (Passage, RangeInclusive<u8>),
    wire: &Wire<'_>,
    mtus: &[usize],
) -> Option<Event> {
    let (read, tuple, to) = (input.read?, &wire.read.tuple, passage.to);
    if tuple.destination != read.tuple.source {
        return None;
    }
    let header = &wire.bytes[wire.read.at..];
    match (tuple.upper == ICMP, tuple.icmp()?) {
        (true, (11, 0)) | (false, (3, 0)) => {
            (hops.contains(&1) && read.ttl <= 1).then_some(Event::TimeExceeded)
        }
        (true, (3, 1)) | (false, (1, 3)) => {
            matches!(to, Place::Unreachable | Place::Nowhere).then_some(Event::Unreachable)
        }
        (v4, (3, 4) | (2, 0)) => {
            let told = if v4 {
                usize::from(u16::from_be_bytes([header[6], header[7]]))
            } else {
                u32::from_be_bytes([header[4], header[5], header[6], header[7]]) as usize
            };
            let unit = input.offload.segmentation.map_or(read.total, |it| {
                let headers = read.headers(input.packet());
                read.total.min(headers + usize::from(it.size))
            });
            (mtus.contains(&told) && unit > told && !read.may_be_cut).then_some(Event::TooBig)
        }
        _ => None,
    }
}
