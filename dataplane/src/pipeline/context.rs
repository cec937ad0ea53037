//! The context that the passes of a batch share: the tables, the ports and queues of the worker, and the time.

use std::io;
use std::time::Duration;

use super::handoff::WorkerMesh;
use super::output::{Outbox, discard};
use crate::drop_reason::DropReason;
use crate::fate::Forwarding;
use crate::packet::{Packet, Pool};
use crate::port_table::ports::Ports;
use crate::stopwatch::Stopwatch;
use crate::tables::{Link, PortId, Tables};

/// The parts of a worker that the passes of a batch use, and the time.
pub(crate) struct Context<'a> {
    pub(crate) tables: &'a Tables,
    pub(crate) ports: &'a mut Ports,
    pub(crate) outbox: &'a mut Outbox,
    pub(crate) pool: &'a mut Pool,
    pub(crate) mesh: &'a WorkerMesh,
    pub(crate) lost: &'a mut Vec<(PortId, io::Error)>,
    pub(crate) watch: &'a mut Stopwatch,
    pub(crate) now: Duration,
}

impl Context<'_> {
    /// Forwards a packet: rewrites it and puts it into the queue of its link's port. `is_ready` means that the packet
    /// is finished and fits the link.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as Outbox::queue")]
    pub(super) fn forward(
        &mut self,
        mut packet: Packet,
        header_len: usize,
        Forwarding { link, rewrite }: Forwarding<'_>,
        is_ready: bool,
    ) -> Result<(), DropReason> {
        rewrite.apply(packet.room_mut());
        self.output(packet, header_len, link, is_ready)
    }

    /// Puts a packet into the queue of a link's port. `is_ready` means that the packet is finished and fits the link.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as Outbox::queue")]
    pub(super) fn output(
        &mut self,
        packet: Packet,
        header_len: usize,
        link: &Link,
        is_ready: bool,
    ) -> Result<(), DropReason> {
        let Self { tables, ports, pool, outbox, .. } = self;
        let Some(slot) = ports.slot(link.port) else {
            return Err(discard(pool, packet, DropReason::TransmitRefused));
        };
        let tunnel = match link.tunnel.map(|index| tables.tunnel(index)) {
            None => None,
            Some(Some(tunnel)) => Some(tunnel),
            // The tunnel of the link is unknown, and the packet must not leave without it.
            Some(None) => return Err(discard(pool, packet, DropReason::HostUnreachable)),
        };
        let outcome = match tunnel {
            None if is_ready => {
                outbox.queue(slot, packet);
                return Ok(());
            }
            Some(tunnel) if is_ready => {
                return outbox
                    .queue_encapsulated(tunnel, slot, packet)
                    .map_err(|packet| discard(pool, packet, DropReason::Malformed));
            }
            _ => {
                outbox.prepare_and_queue(slot, pool, packet, header_len, link.mtu as usize, tunnel)
            }
        };
        // A batch of super-packets may need more segments than there are buffers: send before the buffers run out.
        if self.outbox.is_full() {
            self.outbox.send(self.ports, self.pool, self.lost);
        }
        outcome
    }

    /// Counts dropped packets that came by a port.
    pub(super) fn count_drops(&mut self, port: PortId, reason: DropReason, packets: u64) {
        if let Some(slot) = self.ports.slot(port) {
            slot.counters.dropped(reason).add(packets);
        }
    }

    /// The time in seconds, as flows use it.
    pub(super) fn seconds(&self) -> u32 {
        self.now.as_secs() as u32
    }
}
