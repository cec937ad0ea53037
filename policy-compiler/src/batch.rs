//! Lookups side by side: each part of the way is gone for all packets before the next is for any, so that what one has to
//! fetch from memory is fetched beside what the others have to. Who has several packets to judge at once asks here.
//!
//! Law: the answers are those of [`Image::identity_v4`] and [`Image::classify`], one by one.

use crate::image::{ChainId, Identity, Image, PathId};
use crate::lines::{Place, table};
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
        let mut places = [Place::default(); SIDE_BY_SIDE];
        for (place, asked) in places.iter_mut().zip(all) {
            let row = self.row(asked.chain, asked.local, asked.peer);
            *place = self.lines.first(row, table(asked.transport.protocol)).unwrap_or(NOWHERE);
        }
        for ((path, place), asked) in paths.iter_mut().zip(places).zip(all) {
            let Asked { chain, local, peer, transport } = *asked;
            *path = match self.lines.behind(place, transport) {
                Some(path) if place != NOWHERE => path,
                _ => self.without_row(chain, local, peer, transport),
            };
        }
    }
}

/// In the place of a place: there is none. No image has so many paths.
const NOWHERE: Place = Place::path(PathId(u32::MAX));
