//! The second key of a flow whose packets are translated. It lies in a cache line next to the entry. Each key comes
//! with the flow's direction in it.

use zerocopy::FromZeros;

use super::key::{FlowKey, Orientation};

/// A key of a flow, and which orientation the flow's original direction has in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectedKey {
    /// The key.
    pub key: FlowKey,
    /// The orientation, in this key, of the flow's original direction.
    pub original: Orientation,
}

/// The second key of the entry in a slot, if the entry is marked to have one.
#[derive(Debug, Clone, Copy, FromZeros)]
#[repr(C, align(64))]
pub(super) struct SecondKeyLine {
    words: [u64; 2],
    v6: [u64; 3],
    /// The place ([`Place`](super::bucket::Place)) of the tag that leads to the slot by this key.
    pub(super) place: u32,
    pub(super) original: Orientation,
}

const _: () = assert!(size_of::<SecondKeyLine>() == 64);

impl SecondKeyLine {
    pub(super) fn new(second: DirectedKey, place: u32) -> Self {
        let (words, v6) = second.key.words();
        Self { words, v6, place, original: second.original }
    }

    #[inline]
    pub(super) fn has_key(&self, key: &FlowKey) -> bool {
        key.has_words(&self.words, &self.v6)
    }

    #[inline]
    pub(super) fn key(&self) -> FlowKey {
        FlowKey::from_words(self.words, self.v6)
    }

    #[inline]
    pub(super) fn second_key(&self) -> DirectedKey {
        DirectedKey { key: self.key(), original: self.original }
    }
}
