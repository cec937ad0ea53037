//! What becomes of packets that are out of the ordinary: each is decided by itself, and may be dropped and reported, answered, or
//! handed over.

use std::net::IpAddr;

use super::{Context, Pipeline};
use crate::decide::{Decision, Glance, Subject, decide};
use crate::fate::{DropReason, Fate};
use crate::flow::{RuleCounters, WorkerId};
use crate::handover::HandedOver;
use crate::icmp::{self, ErrorKind};
use crate::packet::Packet;
use crate::parse::{self, parse};
use crate::report::{Denied, Report};
use crate::tables::{Link, Role, Via};

/// Denials that may wait for control; more are lost and counted.
const REPORTS_WAITING: usize = 8192;

impl Pipeline {
    /// Decides a packet that is out of the ordinary, and does what was decided. Whether it was handed over.
    #[inline(never)]
    pub(super) fn consider(
        &mut self,
        context: &mut Context<'_>,
        mut packet: Packet,
        glance: &Glance,
    ) -> bool {
        let (port, segments) = (glance.port, u64::from(glance.segments));
        let subject = Subject { packet: &packet, glance };
        let now = context.seconds();
        let Decision { fate, rules } = decide(context.tables, &mut self.memory, &subject, now);
        self.counters.rules.decided(rules, segments);
        let (packet, header_len, link) = match fate {
            Fate::Forward { link, hop } => {
                if hop {
                    parse::decrement_ttl(packet.room_mut());
                }
                (packet, glance.header_len.into(), link)
            }
            Fate::Drop(reason) => {
                context.dropped(port, reason, segments);
                self.report(context, &subject, reason, rules);
                context.pool.put(packet);
                return false;
            }
            Fate::Answer { reason, error } => {
                context.dropped(port, reason, segments);
                let answer = self.answer(context, &subject, error);
                context.pool.put(packet);
                let Some((answer, back)) = answer else { return false };
                (answer, 0, back)
            }
            Fate::HandOver(to) => return hand_over(context, packet, glance, to),
        };
        let is_ready = packet.is_finished() && packet.len() <= link.mtu as usize;
        if let Err(reason) = context.post(packet, header_len, link, is_ready) {
            // An answer that cannot be given is nobody's loss.
            if matches!(fate, Fate::Forward { .. }) {
                context.dropped(port, reason, segments);
            }
        }
        false
    }

    /// Tells control of a denied flow, once in a while for the same one, as far as its sender's budget goes.
    #[inline(never)]
    fn report(
        &mut self,
        context: &mut Context<'_>,
        Subject { packet, glance }: &Subject<'_>,
        reason: DropReason,
        rules: RuleCounters,
    ) {
        let slot = match reason {
            DropReason::PolicyEgress => rules.egress,
            DropReason::PolicyIngress => rules.ingress,
            _ => return,
        };
        if !self.recent.is_new(glance.name.hash, context.now) {
            return;
        }
        let sender = self.senders.hash_one(glance.name.addresses()[0]);
        let budgets = context.ports.slot(glance.port).map(|slot| &mut slot.budgets);
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
        // Control has gone: the process is ending.
        let _ = self.reports.send(Report::Denied(denied));
    }

    /// What tells a packet's sender why it died, within what RFC 1122 and RFC 4443 allow and the sender's budget leaves.
    #[inline(never)]
    fn answer<'a>(
        &mut self,
        context: &mut Context<'a>,
        Subject { packet, glance }: &Subject<'_>,
        error: ErrorKind,
    ) -> Option<(Packet, &'a Link)> {
        let parsed = parse(packet.bytes()).ok()?;
        let router = if parsed.is_v4() {
            context.tables.router_v4.map(IpAddr::V4)
        } else {
            context.tables.router_v6.map(IpAddr::V6)
        };
        let (router, back) = (router?, context.tables.link(glance.entrance.back())?);
        let sender = self.senders.hash_one(parsed.source);
        let budgets = &mut context.ports.slot(glance.port)?.budgets;
        let budget = match error {
            ErrorKind::TooBig { .. } => &mut budgets.too_big,
            ErrorKind::TimeExceeded | ErrorKind::HostUnreachable => &mut budgets.errors,
        };
        if !budget.allow(sender, context.now) {
            return None;
        }
        let answer = icmp::answer(packet.bytes(), &parsed, error, router.into(), context.pool)?;
        Some((answer, back))
    }
}

/// Puts a packet into the mailbox of the worker whose it is, or drops it. Whether it went.
#[inline(never)]
fn hand_over(context: &mut Context<'_>, packet: Packet, glance: &Glance, to: WorkerId) -> bool {
    let Glance { entrance, port, times, .. } = *glance;
    let peer = match entrance.back() {
        Via::Tunnel(index) => context.tables.tunnel(index),
        _ => None,
    };
    let handed_over = HandedOver {
        packet,
        segments: glance.segments,
        port,
        peer: peer.map(|tunnel| (tunnel.remote, tunnel.outer.encapsulation())),
        times: times.saturating_add(1),
    };
    // A worker that had handed over all its buffers could neither read nor take anything. An endpoint may have as many away as
    // could still go, so that there are some for the next one; the uplink's sockets bring everybody's packets.
    let spare = context.pool.spare();
    let is_endpoint = matches!(context.tables.role(port), Role::Endpoint(_));
    let slot = context.ports.slot(port);
    let may_go = slot.as_ref().is_some_and(|slot| spare > if is_endpoint { slot.away } else { 0 });
    let refused = if may_go {
        context.colleagues.hand_over(to, handed_over)
    } else {
        Some(handed_over.packet)
    };
    let Some(refused) = refused else {
        if let Some(slot) = slot {
            slot.away += 1;
        }
        return true;
    };
    context.dropped(port, DropReason::HandOverFull, glance.segments.into());
    context.pool.put(refused);
    false
}
