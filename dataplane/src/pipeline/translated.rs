//! The fast path of translated packets.

use super::context::Context;
use super::output::discard;
use super::passes::Pipeline;
use crate::decide::{self, PacketMetadata};
use crate::fate::Forwarding;
use crate::flow::Guess;
use crate::packet::Packet;
use crate::rewrite::Translation;

impl Pipeline {
    /// Decides a packet of a known translated flow, and carries out the decision. Returns the packet if the slow path
    /// must decide it. The caller has tried [`decide::fast_path`].
    #[inline]
    pub(super) fn forward_translated(
        &mut self,
        context: &mut Context<'_>,
        packet: Packet,
        metadata: &PacketMetadata,
        now: u32,
    ) -> Option<Packet> {
        if metadata.flow.guess == Guess::NONE {
            return Some(packet);
        }
        self.forward_guessed(context, packet, metadata, now)
    }

    #[inline(never)]
    fn forward_guessed(
        &mut self,
        context: &mut Context<'_>,
        packet: Packet,
        metadata: &PacketMetadata,
        now: u32,
    ) -> Option<Packet> {
        let decided = decide::translated_fast_path(context.tables, &mut self.state, metadata, now);
        let Some((forwarding, translation, rules)) = decided else { return Some(packet) };
        self.counters.rules.decided(rules, metadata.segments.into());
        let forwarding = (forwarding, &translation);
        context.forward_translated(packet, metadata, forwarding, metadata.is_finished);
        None
    }
}

impl Context<'_> {
    /// Like [`Context::forward`], for a translated packet. Also counts the packet if it is dropped.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "most packets of translated flows")]
    fn forward_translated(
        &mut self,
        mut packet: Packet,
        metadata: &PacketMetadata,
        (forwarding, translation): (Forwarding<'_>, &Translation),
        is_ready: bool,
    ) {
        let applied = if metadata.is_plain {
            translation.apply_to_whole(&mut packet)
        } else {
            translation.apply(&mut packet)
        };
        let forwarded = match applied {
            Ok(()) => self.forward(packet, metadata.header_len.into(), forwarding, is_ready),
            Err(malformed) => Err(discard(self.pool, packet, malformed.into())),
        };
        if let Err(reason) = forwarded {
            self.count_drops(metadata.port, reason, metadata.segments.into());
        }
    }

    /// Like `forward_translated`, for the slow path. It is not inlined, because the rest of the slow path needs the
    /// registers.
    #[inline(never)]
    pub(super) fn translate_and_forward(
        &mut self,
        packet: Packet,
        metadata: &PacketMetadata,
        forwarding: (Forwarding<'_>, &Translation),
        is_ready: bool,
    ) {
        self.forward_translated(packet, metadata, forwarding, is_ready);
    }
}
