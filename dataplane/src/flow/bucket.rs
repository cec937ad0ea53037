//! Buckets of the flow table: a cache line of tags that lead to slots.

use zerocopy::FromZeros;

use crate::sys::lanes;

pub(super) const WAYS: usize = 8;
/// An entry whose first bucket has this many entries goes to the alternate bucket, if that has fewer.
pub(super) const CROWDED: usize = 6;

/// A bucket: one cache line with eight ways, which are places for entries. A way holds an entry's tag and its slot. Tag
/// 0 marks a free way.
#[derive(Clone, Copy, FromZeros)]
#[repr(C, align(64))]
pub(super) struct Bucket {
    pub(super) tags: [u16; WAYS],
    pub(super) slots: [u32; WAYS],
    /// The number of entries that have this as their first bucket but are in their alternate bucket.
    pub(super) spilled: u32,
}

/// A set of a bucket's ways: two bits for each way.
pub(super) struct WaySet(u32);

impl Iterator for WaySet {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let bit = self.0.trailing_zeros();
        self.0 &= self.0.wrapping_sub(1) & !(2 << (bit & 31));
        (bit < 2 * WAYS as u32).then_some(bit as usize / 2)
    }
}

impl Bucket {
    /// The ways with this tag.
    #[inline]
    pub(super) fn ways_with_tag(&self, tag: u16) -> WaySet {
        WaySet(lanes::equal(self.tags, tag))
    }

    #[inline]
    pub(super) fn tag(&self, way: usize) -> u16 {
        self.tags[way]
    }

    pub(super) fn set_tag(&mut self, way: usize, tag: u16) {
        self.tags[way] = tag;
    }

    pub(super) fn used(&self) -> usize {
        WAYS - self.ways_with_tag(0).0.count_ones() as usize / 2
    }

    /// Whether at least [`CROWDED`] ways are used. Counting the bits would be slower, because not every processor has
    /// an instruction for that.
    #[inline]
    pub(super) fn is_crowded(&self) -> bool {
        const ONE_OF_TWO: u32 = 0x5555;
        let mut free = self.ways_with_tag(0).0 & ONE_OF_TWO;
        for _ in CROWDED..WAYS {
            free &= free.wrapping_sub(1);
        }
        free == 0
    }

    #[inline]
    pub(super) fn free_way(&self) -> Option<usize> {
        self.ways_with_tag(0).next()
    }
}

/// The place where an entry's tag is.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) bucket: usize,
    pub(super) way: usize,
    /// Whether the bucket is the alternate one of the entry's hash.
    pub(super) is_alternate: bool,
}

impl Place {
    /// The largest number of buckets for which [`Self::to_bits`] has room.
    pub(super) const BUCKETS: usize = 1 << 28;
    /// The position of the bucket's lowest bit in the number of a place.
    const BUCKET: u32 = WAYS.trailing_zeros();
    const IS_ALTERNATE: u32 = 1 << 31;

    /// The place as a number. The table stores this number with the slot, so that it can evict the flow in the slot
    /// without the flow's key.
    pub(super) const fn to_bits(self) -> u32 {
        let alternate = if self.is_alternate { Self::IS_ALTERNATE } else { 0 };
        alternate | (self.bucket as u32) << Self::BUCKET | self.way as u32
    }

    #[inline]
    pub(super) const fn from_bits(note: u32) -> Self {
        Self {
            bucket: ((note & !Self::IS_ALTERNATE) >> Self::BUCKET) as usize,
            way: note as usize % WAYS,
            is_alternate: note & Self::IS_ALTERNATE != 0,
        }
    }
}

/// The tag of a hash: 16 bits that do not choose its first bucket while there are fewer than 2^48 buckets. Never 0,
/// which marks a free way.
#[inline]
pub(super) fn tag(hash: u64) -> u16 {
    ((hash >> 48) as u16).max(1)
}
