//! Lookups side by side: each step is made for all packets before the next is made for any, so that what one has to fetch
//! from memory is fetched beside what the others have to. Who has several packets to judge at once asks here.
//!
//! Law: the answers are those of [`Image::identity_v4`] and [`Image::classify`], one by one.

use crate::image::{ChainId, Identity, Image, PathId};
use crate::lines::{Packet, Place, STEPS};
use crate::model::Transport;

/// So many lookups are made side by side.
const SIDE_BY_SIDE: usize = 64;

/// What [`Image::classify`] is asked of one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// The chain that judges.
    pub chain: ChainId,
    /// The end that the chain is of.
    pub local: Identity,
    /// The other one.
    pub peer: Identity,
    /// What the packet shows.
    pub transport: Transport,
}

impl Image {
    /// [`identity_v4`](Self::identity_v4) of as many addresses as there is room for identities.
    pub fn identities_v4(&self, addresses: &[u32], identities: &mut [Identity]) {
        self.peers.prefixes.lookup_all_v4(addresses, identities, Identity);
    }

    /// [`classify`](Self::classify) for as many packets as there is room for paths.
    pub fn classify_all(&self, asked: &[Asked], paths: &mut [PathId]) {
        let places = paths.chunks_mut(SIDE_BY_SIDE);
        for (asked, paths) in asked.chunks(SIDE_BY_SIDE).zip(places) {
            self.side_by_side(asked, paths);
        }
    }

    fn side_by_side(&self, all: &[Asked], paths: &mut [PathId]) {
        let mut steps = [Step::default(); SIDE_BY_SIDE];
        let steps = &mut steps[..all.len().min(SIDE_BY_SIDE)];
        let mut lines = false;
        for (step, asked) in steps.iter_mut().zip(all) {
            let row = self.row(asked.chain, asked.local, asked.peer);
            step.packet = Packet::from(asked.transport);
            step.place = self.lines.first(row, step.packet.table).unwrap_or(NOWHERE);
            lines |= step.place.is_line();
        }
        for _ in 0..STEPS {
            if !std::mem::take(&mut lines) {
                break;
            }
            for step in steps.iter_mut().filter(|step| step.place.is_line()) {
                step.place = self.lines.next(step.place, &step.packet).unwrap_or(NOWHERE);
                lines |= step.place.is_line();
            }
        }
        for ((path, step), asked) in paths.iter_mut().zip(steps).zip(all) {
            let Asked { chain, local, peer, transport } = *asked;
            *path = match step.place.as_path().filter(|_| step.place != NOWHERE) {
                Some(path) => path,
                None => self.without_row(chain, local, peer, transport),
            };
        }
    }
}

/// How far the lookup for a packet is.
#[derive(Debug, Clone, Copy, Default)]
struct Step {
    place: Place,
    packet: Packet,
}

/// In the place of a place: there is none. No image has so many paths.
const NOWHERE: Place = Place::path(PathId(u32::MAX));
