//! Checks the connections to the world that are refused because the node has no free port for them
//! (no port of the way out). While the range has a free port, no connection is refused. No pod
//! takes all ports to a destination from the other pods.
//!
//! These laws are checked if the range has two ports and the node has one worker, because the node
//! then certainly tries both ports for a connection.

use manx_dataplane::drop_reason::DropReason;

use super::batch::{Counts, NodeBatch, Violation};
use super::epoch::Epoch;
use super::input::{Input, Outcome};
use super::oracle::Law;
use super::read::TransportKey::{Ports, Query};
use super::read::{FlowTuple, Part};
use super::translations::Pair;
use super::way_out::{WayOut, ported_address};
use crate::packet::TCP;

/// The size of a range of which the node certainly tries every port.
const FEW: usize = 2;

/// If the batch has such a refusal, checks that at least one of its packets may have been refused a
/// port.
///
/// # Errors
/// A connection was refused, and no packet of this batch may be refused.
pub fn check(law: &Law<'_>, node_batch: &NodeBatch, counts: &Counts) -> Result<(), Box<Violation>> {
    let [epoch] = law.epochs else { return Ok(()) };
    let way_out = epoch.services.way_out.as_ref().filter(|it| it.size() == FEW);
    let (Some(way_out), true) = (way_out, law.is_single && !law.evicts) else { return Ok(()) };
    let is_unknown = |input: &&Input| input.outcome == Outcome::Unknown;
    // A later fragment follows the decision on its first fragment.
    let follows = |input: &Input| {
        let (Some(read), Some(entry)) = (input.read, input.entry) else { return false };
        let version = epoch.versions[law.node];
        let firsts = law.translations.borrow();
        read.is_later() && firsts.first_fragments(&read, entry, version, law.now).is_some()
    };
    let following = node_batch.inputs.iter().filter(is_unknown).filter(|it| follows(it)).count();
    if counts.dropped(DropReason::NoFreePort) <= following as u64 {
        return Ok(());
    }
    let may_want =
        |input: &&Input| is_unknown(input) && input.entered && wants_port(law, epoch, input);
    let mut last = None;
    for input in node_batch.inputs.iter().filter(may_want) {
        match must_get_port(law, epoch, input, way_out) {
            Some(why) => last = Some((why, input)),
            None => return Ok(()),
        }
    }
    // There may be no such packet: if two packets are equal, the judge may have taken the refused
    // one for the one that came out.
    let Some((why, input)) = last else { return Ok(()) };
    let input = Some(input.found());
    let law_broken = format!("a connection was refused a port of the way out, and {why}");
    Err(Box::new(Violation { law: law_broken, node: law.node, output: None, input }))
}

/// Whether a packet may open a connection that needs a port of the node.
fn wants_port(law: &Law<'_>, epoch: &Epoch, input: &Input) -> bool {
    let Some(read) = input.read else { return false };
    let is_pairs = |pair: &Pair| pair.first == read.tuple && law.hides_source(epoch, pair);
    epoch.leaves(law.node, &read.tuple) || law.pairs_of(epoch, &read.tuple).iter().any(is_pairs)
}

/// The reason why a packet must get a port; `None`: it may be refused one.
fn must_get_port(
    law: &Law<'_>,
    epoch: &Epoch,
    input: &Input,
    way_out: &WayOut,
) -> Option<&'static str> {
    let read = input.read.filter(|read| read.part == Part::Whole && !read.is_error())?;
    let first = read.tuple;
    let opens = read.opens() || first.upper != TCP;
    if !epoch.leaves(law.node, &first) || !opens {
        return None;
    }
    let source = ported_address(law.node, first.source);
    let translations = law.translations.borrow();
    let taken =
        translations.holders(&first, source, (way_out.egress.0..=way_out.egress.1).collect());
    let is_live = |pair: &&Pair| {
        translations.connection(pair).is_some_and(|it| it.lives(first.upper, law.now))
    };
    // A connection may have a port although none of its packets has come out.
    let is_hidden = translations.may_be_open_to(&first, law.now);
    if !taken.iter().any(|of_port| of_port.iter().any(|it| is_live(&it))) && !is_hidden {
        return Some("no port to its destination is taken");
    }
    let is_sure = |pair: &&Pair| translations.is_sure(pair, law.evictions, law.now);
    let sure: Vec<&Pair> = taken.iter().filter_map(|it| it.iter().find(is_sure)).collect();
    let is_others = sure.iter().all(|it| it.first.source != first.source);
    let is_one = sure.windows(2).all(|it| it[0].first.source == it[1].first.source);
    let has_none = !translations.is_open_from(&first, law.now);
    let is_quiet =
        |pair: &&Pair| translations.connection(pair).is_some_and(|it| it.is_quiet(law.now));
    let gives_up = first.upper == TCP || sure.iter().any(is_quiet);
    (sure.len() == FEW && is_others && is_one && has_none && !is_hidden && gives_up)
        .then_some("another pod has all of them, and its own pod has none")
}

/// Whether two tuples have the same destination. To one destination, each port of the way out
/// serves only one connection.
pub fn leads_alike(one: &FlowTuple, other: &FlowTuple) -> bool {
    let is_alike = match (one.transport, other.transport) {
        (Ports(_, one), Ports(_, other)) => one == other,
        (Query { kind: one, .. }, Query { kind: other, .. }) => one == other,
        (one, other) => one == other,
    };
    is_alike && (one.destination, one.upper) == (other.destination, other.upper)
}
