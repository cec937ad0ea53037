//! The complete decision for one packet: untracked policy, its flow or the verdict of policy, fragments, routing, size.

use std::net::IpAddr;

use super::address_lookup::current_epoch;
use super::entrance::Entrance;
use super::flow_decision::{FlowDecision, Outcome};
use super::metadata::PacketRef;
use super::route::route;
use super::state::DecisionState;
use super::tracked;
use super::untracked::evaluate_untracked;
use crate::drop_reason::DropReason;
use crate::encapsulation::is_tunnel;
use crate::fate::{Fate, Forwarding};
use crate::flow::RuleCounters;
use crate::icmp::ErrorKind;
use crate::parse::{Fragment, Parsed, must_not_fragment, parse};
use crate::services::HAIRPIN_V6;
use crate::tables::{NextHop, NextHopPair, Tables};
use crate::wire::protocol;

/// The decision for one packet: its fate, and the counter slots of the rules that gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Decision<'a> {
    /// The fate of the packet.
    pub fate: Fate<'a>,
    /// The slots of the rules that decided at the source's egress and at the destination's ingress.
    /// [`NO_SLOT`](crate::policy::NO_SLOT) means that no rule was evaluated.
    pub rules: RuleCounters,
}

/// Decides one packet. `now` is in seconds.
#[inline]
pub fn decide<'a>(
    tables: &'a Tables,
    state: &mut DecisionState,
    packet: &PacketRef<'_>,
    now: u32,
) -> Decision<'a> {
    let decision = decide_flow(tables, state, packet, now);
    let fate = match decision.outcome {
        Outcome::Forward(pair) => match forward(tables, packet, pair) {
            Ok(forwarding) => Fate::Forward(forwarding),
            Err(fate) => fate,
        },
        Outcome::Translate(pair, translation) => match forward(tables, packet, pair) {
            Ok(forwarding) => Fate::Translate(forwarding, translation),
            Err(fate) => fate,
        },
        Outcome::Drop(reason) => Fate::Drop(reason),
        Outcome::Refuse(reason) => Fate::Refuse(reason),
        Outcome::Handoff(to) => Fate::Handoff(to),
    };
    Decision { fate, rules: decision.rules }
}

/// The forwarding of a packet that policy allows. Returns an error if the packet has another fate.
#[inline]
fn forward<'a>(
    tables: &'a Tables,
    PacketRef { packet, metadata }: &PacketRef<'_>,
    pair: NextHopPair,
) -> Result<Forwarding<'a>, Fate<'a>> {
    let forwarding = route(tables, metadata, pair)?;
    let mtu = forwarding.link.mtu;
    if metadata.unit > mtu && must_not_fragment(packet.bytes()) {
        let error = ErrorKind::TooBig { mtu };
        return Err(Fate::Answer { reason: DropReason::TooBig, error });
    }
    Ok(forwarding)
}

#[inline]
fn decide_flow(
    tables: &Tables,
    state: &mut DecisionState,
    packet: &PacketRef<'_>,
    now: u32,
) -> FlowDecision {
    if packet.metadata.is_plain {
        return match evaluate_untracked(tables, state, packet.metadata) {
            None => tracked::decide_tracked(tables, state, packet.metadata, now),
            Some(decision) => decision,
        };
    }
    match parse(packet.packet.bytes()) {
        Ok(parsed) => decide_unusual(tables, state, packet, &parsed, now),
        Err(malformed) => FlowDecision::drop(malformed.into()),
    }
}

/// Like [`decide_flow`], for packets that also need other checks than their flow: fragments, tunnel packets of pods,
/// ICMP errors, and addresses that are never forwarded.
#[inline(never)]
fn decide_unusual(
    tables: &Tables,
    state: &mut DecisionState,
    packet: &PacketRef<'_>,
    parsed: &Parsed,
    now: u32,
) -> FlowDecision {
    let metadata = packet.metadata;
    if is_tunnel(parsed.protocol, parsed.destination_port)
        && matches!(metadata.entrance.back(), NextHop::Endpoint(_))
    {
        return FlowDecision::drop(DropReason::TunnelFromPod);
    }
    if !is_taken(tables, metadata.entrance, parsed) {
        return FlowDecision::drop(DropReason::NotForwardable);
    }
    let first = |state: &mut DecisionState| match evaluate_untracked(tables, state, metadata) {
        Some(decision) => decision,
        None if parsed.is_icmp_error() => {
            tracked::decide_icmp_error(tables, &mut state.flows, packet, parsed, now)
        }
        None => tracked::decide_tracked(tables, state, metadata, now),
    };
    let entrance = metadata.entrance.back.0;
    let ends = [parsed.source, parsed.destination].map(|end| end.to_bits() as u32);
    let epoch = current_epoch(tables, ends);
    match parsed.fragment {
        Fragment::Whole => first(state),
        Fragment::First { .. } => {
            let decision = untranslatable(first(state), parsed);
            if !matches!(decision.outcome, Outcome::Handoff(_)) {
                state.fragments.insert(parsed, entrance, epoch, decision, now);
            }
            decision
        }
        // The decision on the first fragment includes its source check, because the fragment key contains the entrance,
        // too. It is valid only in its epoch. It contains the index of an endpoint, which other tables may give to
        // another endpoint, and next hops, which a change within the tables may have replaced.
        Fragment::Later { .. } => {
            match (state.fragments.lookup(parsed, entrance, epoch, now), state.next_worker) {
                (Some(Some(decision)), _) => decision,
                // Another worker may have received the first fragment.
                (None, (next, others)) if metadata.handoffs < others => {
                    FlowDecision::hand_off(next)
                }
                (Some(None) | None, _) => FlowDecision::drop(DropReason::FragmentWithoutFirst),
            }
        }
    }
}

/// Whether Manx decides packets between these addresses that come in by this entrance. An endpoint that reaches itself
/// through a service answers to [`HAIRPIN_V6`], which is link-local. Only a known flow forwards such a packet.
fn is_taken(tables: &Tables, entrance: Entrance, parsed: &Parsed) -> bool {
    let is_hairpin =
        || tables.services.is_some() && parsed.destination == IpAddr::V6(HAIRPIN_V6).into();
    entrance.takes([parsed.source, parsed.destination])
        || (parsed.source.is_forwardable() && is_hairpin())
}

/// Drops the first fragment of an SCTP packet whose ports would change, because its checksum covers all fragments.
fn untranslatable(decision: FlowDecision, parsed: &Parsed) -> FlowDecision {
    let ports = [parsed.source_port, parsed.destination_port];
    match decision.outcome {
        Outcome::Translate(_, translation)
            if parsed.protocol == protocol::SCTP && !translation.keeps_ports(ports) =>
        {
            FlowDecision::drop(DropReason::SctpFragment)
        }
        _ => decision,
    }
}
