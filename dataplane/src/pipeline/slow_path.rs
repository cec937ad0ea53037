//! The slow path: it decides each packet separately, and may also report, answer or hand off a packet.

use super::context::Context;
use super::handoff::Handoff;
use super::passes::Pipeline;
use crate::decide::{Decision, PacketMetadata, PacketRef, decide};
use crate::drop_reason::DropReason;
use crate::fate::Fate;
use crate::flow::{RuleCounters, WorkerId};
use crate::icmp::{self, ErrorKind};
use crate::packet::Packet;
use crate::parse::parse;
use crate::report::{Denied, Report};
use crate::reset::build_reset;
use crate::tables::{Link, NextHop, Role};
use crate::wire::protocol;

/// The largest number of denials that may wait for the control loop. Further ones are lost and counted.
const REPORTS_WAITING: usize = 8192;

impl Pipeline {
    /// Decides one packet and carries out the decision. Returns whether the packet was handed off.
    #[inline(never)]
    pub(super) fn slow_path(
        &mut self,
        context: &mut Context<'_>,
        packet: Packet,
        metadata: &PacketMetadata,
    ) -> bool {
        let (port, segments) = (metadata.port, u64::from(metadata.segments));
        let now = context.seconds();
        let header_len = metadata.header_len.into();
        let packet_ref = PacketRef { packet: &packet, metadata };
        let Decision { fate, rules } = decide(context.tables, &mut self.state, &packet_ref, now);
        self.counters.rules.decided(rules, segments);
        match fate {
            Fate::Forward(forwarding) => {
                let is_ready = is_ready(&packet, forwarding.link);
                if let Err(reason) = context.forward(packet, header_len, forwarding, is_ready) {
                    context.count_drops(port, reason, segments);
                }
            }
            Fate::Translate(forwarding, translation) => {
                let is_ready = is_ready(&packet, forwarding.link);
                let forwarding = (forwarding, &translation);
                context.translate_and_forward(packet, metadata, forwarding, is_ready);
            }
            Fate::Drop(reason) => {
                context.count_drops(port, reason, segments);
                self.report_denied(context, &packet_ref, reason, rules);
                context.pool.put(packet);
            }
            Fate::Answer { reason, error } => {
                context.count_drops(port, reason, segments);
                let answer = self.answer(context, &packet_ref, Answer::Error(error));
                context.pool.put(packet);
                send_answer(context, answer);
            }
            Fate::Refuse(reason) => {
                context.count_drops(port, reason, segments);
                let answer = self.answer(context, &packet_ref, Answer::Refusal);
                context.pool.put(packet);
                send_answer(context, answer);
            }
            Fate::Handoff(to) => return hand_off(context, packet, metadata, to),
        }
        false
    }

    /// Reports a denied flow to the control loop: the same flow once in ten seconds, and only within the budget of its
    /// sender.
    #[inline(never)]
    fn report_denied(
        &mut self,
        context: &mut Context<'_>,
        PacketRef { packet, metadata }: &PacketRef<'_>,
        reason: DropReason,
        rules: RuleCounters,
    ) {
        let slot = match reason {
            DropReason::PolicyEgress => rules.egress,
            DropReason::PolicyIngress => rules.ingress,
            DropReason::NoFreePort => return self.report_refusal(),
            _ => return,
        };
        if !self.recent_denials.is_new(metadata.flow.hash, context.now) {
            return;
        }
        let sender = self.senders.hash_one(metadata.flow.addresses()[0]);
        let budgets = context.ports.slot(metadata.port).map(|slot| &mut slot.budgets);
        let is_allowed = budgets.is_none_or(|it| it.denials.allow(sender, context.now));
        if !is_allowed || self.reports.len() >= REPORTS_WAITING {
            self.counters.reports_lost.add(1);
            return;
        }
        let Ok(parsed) = parse(packet.bytes()) else { return };
        let denied = Denied {
            source: parsed.source.to_ip(),
            destination: parsed.destination.to_ip(),
            protocol: parsed.protocol,
            source_port: parsed.source_port,
            destination_port: parsed.destination_port,
            reason,
            slot,
        };
        // This fails if the control loop has ended, and then the process is ending, too.
        let _ = self.reports.send(Report::Denied(denied));
    }

    fn report_refusal(&mut self) {
        if let Some(refused) = self.state.refusal.waiting.take()
            && self.reports.len() < REPORTS_WAITING
        {
            let _ = self.reports.send(Report::PortRefused(refused));
        }
    }

    /// Builds the answer to the sender of a dropped packet, if RFC 1122, RFC 4443 or RFC 9293 and the sender's budget allow
    /// one.
    #[inline(never)]
    fn answer<'a>(
        &mut self,
        context: &mut Context<'a>,
        PacketRef { packet, metadata }: &PacketRef<'_>,
        answer: Answer,
    ) -> Option<(Packet, &'a Link)> {
        let parsed = parse(packet.bytes()).ok()?;
        let router = context.tables.error_source(metadata.entrance.back(), parsed.is_v4());
        let back = context.tables.link(metadata.entrance.back())?;
        let sender = self.senders.hash_one(parsed.source);
        let budgets = &mut context.ports.slot(metadata.port)?.budgets;
        let budget = match answer {
            Answer::Error(ErrorKind::TooBig { .. }) => &mut budgets.too_big,
            Answer::Error(_) | Answer::Refusal => &mut budgets.errors,
        };
        if !budget.allow(sender, context.now) {
            return None;
        }
        let error = match answer {
            Answer::Error(error) => error,
            Answer::Refusal if parsed.protocol == protocol::TCP => {
                let reset = build_reset(packet.bytes(), &parsed, context.pool)?;
                return Some((reset, back));
            }
            Answer::Refusal => ErrorKind::PortUnreachable,
        };
        let error = icmp::build_error(packet.bytes(), &parsed, error, router?, context.pool)?;
        Some((error, back))
    }
}

/// The kind of answer to the sender of a dropped packet.
#[derive(Debug, Clone, Copy)]
enum Answer {
    Error(ErrorKind),
    /// A refusal by RST or an ICMP error ([`Fate::Refuse`]).
    Refusal,
}

fn send_answer(context: &mut Context<'_>, answer: Option<(Packet, &Link)>) {
    if let Some((answer, back)) = answer {
        let is_ready = is_ready(&answer, back);
        // An answer that cannot be sent is not counted, because the packet that it is about is already counted.
        let _ = context.output(answer, 0, back, is_ready);
    }
}

/// Whether a packet is finished and fits the link.
fn is_ready(packet: &Packet, link: &Link) -> bool {
    packet.is_finished() && packet.len() <= link.mtu as usize
}

/// Puts a packet into the mailbox of the worker that has its flow, or drops it. Returns whether it was handed off.
#[inline(never)]
fn hand_off(
    context: &mut Context<'_>,
    packet: Packet,
    metadata: &PacketMetadata,
    to: WorkerId,
) -> bool {
    let PacketMetadata { entrance, port, handoffs, .. } = *metadata;
    let peer = match entrance.back() {
        NextHop::Tunnel(index) => context.tables.tunnel(index),
        _ => None,
    };
    let handoff = Handoff {
        packet,
        segments: metadata.segments,
        port,
        peer: peer.map(|tunnel| (tunnel.remote, tunnel.outer.encapsulation())),
        handoffs: handoffs.saturating_add(1),
    };
    // A worker without buffers could neither read nor receive packets. So an endpoint may have at most as many packets
    // handed off as spare buffers are left, which leaves buffers for the next endpoint. The uplink carries packets of
    // all endpoints and has no such limit.
    let spare = context.pool.spare();
    let is_endpoint = matches!(context.tables.role(port), Role::Endpoint(_) | Role::HostSide(_));
    let slot = context.ports.slot(port);
    let may_go =
        slot.as_ref().is_some_and(|slot| spare > if is_endpoint { slot.handed_off } else { 0 });
    let refused = if may_go { context.mesh.send(to, handoff) } else { Some(handoff.packet) };
    let Some(refused) = refused else {
        if let Some(slot) = slot {
            slot.handed_off += 1;
        }
        return true;
    };
    context.count_drops(port, DropReason::HandoffFull, metadata.segments.into());
    context.pool.put(refused);
    false
}
