//! Lookups in batches, for callers that have several packets at once: each step is done for all packets before the next
//! step is done for any, so that the packets' memory loads overlap.
//!
//! Law: the results are equal to those of [`Image::identity_v4`] and [`Image::classify`], one by one.

use super::lines::STEPS;
use super::packet_key::{PacketKey, table};
use super::tables::Image;
use super::target::Target;
use crate::common::{ChainId, Identity, PathId};
use crate::model::Transport;

/// The number of lookups that are made together.
const SIDE_BY_SIDE: usize = 64;

/// The arguments of [`Image::classify`] for one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lookup {
    /// The chain that evaluates the packet.
    pub chain: ChainId,
    /// The identity of the chain's local end.
    pub local: Identity,
    /// The identity of the other end.
    pub peer: Identity,
    /// What the packet shows.
    pub transport: Transport,
}

impl Image {
    /// [`identity_v4`](Self::identity_v4) for as many addresses as `identities` has places.
    pub fn identities_v4(&self, addresses: &[u32], identities: &mut [Identity]) {
        self.peers.prefixes.lookup_all_v4(addresses, identities, Identity);
    }

    /// [`classify`](Self::classify) for as many packets as `paths` has places.
    pub fn classify_all(&self, asked: &[Lookup], paths: &mut [PathId]) {
        let places = paths.chunks_mut(SIDE_BY_SIDE);
        for (asked, paths) in asked.chunks(SIDE_BY_SIDE).zip(places) {
            // Until a lookup ends, the packet's entry in `paths` holds the target that the lookup has reached.
            let mut lines = false;
            for (path, asked) in paths.iter_mut().zip(asked) {
                let row = self.row(asked.chain, asked.local, asked.peer);
                let first = self.lines.first(row, table(asked.transport.protocol));
                let first = first.unwrap_or(Target::NOWHERE);
                path.0 = first.bits();
                lines |= first.is_line();
            }
            if lines {
                self.follow_lines(asked, paths);
            }
        }
    }

    /// Follows the first targets of packets to their paths.
    #[inline(never)]
    fn follow_lines(&self, asked: &[Lookup], paths: &mut [PathId]) {
        for _ in 0..STEPS {
            let mut lines = false;
            let here =
                paths.iter_mut().zip(asked).map(|(path, it)| (Target::from_bits(path.0), path, it));
            for (line, path, asked) in here.filter(|(place, ..)| place.leads_on()) {
                let packet = PacketKey::from(asked.transport);
                let next = self.lines.next(line, packet).unwrap_or(Target::NOWHERE);
                path.0 = next.bits();
                lines |= next.leads_on();
            }
            if !lines {
                break;
            }
        }
        // A packet without a path has no row.
        let all = paths.iter().fold(0, |all, path| all | path.0);
        if !Target::from_bits(all).is_line() {
            return;
        }
        for (path, asked) in paths.iter_mut().zip(asked) {
            if Target::from_bits(path.0).is_line() {
                *path = self.classify_without_row(
                    asked.chain,
                    asked.local,
                    asked.peer,
                    asked.transport,
                );
            }
        }
    }
}
