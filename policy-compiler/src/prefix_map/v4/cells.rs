//! Cells, the pages that hold them, and the references to blocks.

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use super::pool::Block;

/// The largest value that a map can hold.
pub const MAX_VALUE: u32 = (1 << 31) - 1;

/// Marks references to blocks; values do not have this bit.
pub(super) const BLOCK: u32 = 1 << 31;

pub(super) const KIND: u32 = 7 << 28;

/// A mask for the index of the block among the blocks of its kind. For a block of lines, it is the index of the first
/// line.
pub(super) const NUMBER: u32 = (1 << 28) - 1;

pub(super) const PAGE: u32 = 0;

pub(super) const HALF: u32 = 1 << 28;

/// A kind of block: runs of values in one line. The next kind has two lines.
pub(super) const ONE: u32 = 2 << 28;

pub(super) const TWO: u32 = 3 << 28;

/// A kind of block: a few hosts in some bytes of a line. The lower 24 bits of the reference are the index of the first
/// byte, and the next bits are the number of hosts.
pub(super) const FEW: u32 = 4 << 28;

/// A kind of block: hosts in a line.
pub(super) const HOSTS: u32 = 5 << 28;

pub(super) const COUNT: u32 = 24;

pub(super) const BYTE: u32 = (1 << COUNT) - 1;

pub(super) const ROOT: usize = 1 << 16;

/// Up to this number of blocks (/24 that hold longer prefixes), all blocks are half pages where values permit. These
/// take at most 512 KiB.
pub(super) const FEW_BLOCKS: usize = 1024;

/// 256 cells, indexed by the third or the last byte of the address.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Page(pub(super) [AtomicU32; 256]);

/// 256 values, indexed by the last byte of the address. [`Base`] shortens each to two bytes.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct HalfPage(pub(super) [AtomicU16; 256]);

impl Default for Page {
    fn default() -> Self {
        Self([const { AtomicU32::new(0) }; 256])
    }
}

impl Default for HalfPage {
    fn default() -> Self {
        Self([const { AtomicU16::new(0) }; 256])
    }
}

impl Block for Page {
    type Cells = [u32; 256];

    fn store(&self, cells: &[u32; 256]) {
        self.0.iter().zip(cells).for_each(|(cell, new)| cell.store(*new, Ordering::Relaxed));
    }

    fn load(&self) -> [u32; 256] {
        self.0.each_ref().map(|cell| cell.load(Ordering::Acquire))
    }
}

impl Block for HalfPage {
    type Cells = [u16; 256];

    fn store(&self, cells: &[u16; 256]) {
        self.0.iter().zip(cells).for_each(|(cell, new)| cell.store(*new, Ordering::Relaxed));
    }

    fn load(&self) -> [u16; 256] {
        self.0.each_ref().map(|cell| cell.load(Ordering::Acquire))
    }
}

/// Stores values in two bytes: the default as 0, and every other value as its difference from `base`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Base {
    pub(super) default: u32,
    /// One less than the lowest value that is not the default. So no other value is stored as 0.
    pub(super) base: u32,
}

impl Base {
    /// The value in two bytes, or `None` if it is not above the base or differs too much from it.
    #[inline]
    pub(super) fn short(self, value: u32) -> Option<u16> {
        if value == self.default {
            return Some(0);
        }
        u16::try_from(value.checked_sub(self.base)?).ok().filter(|short| *short != 0)
    }

    #[inline]
    pub(super) fn long(self, short: u16) -> u32 {
        if short == 0 { self.default } else { self.base + u32::from(short) }
    }

    /// The values in two bytes each, or `None` if [`short`](Self::short) is `None` for one of them.
    pub(super) fn all_short(self, values: &[u32; 256]) -> Option<[u16; 256]> {
        let mut all = [0; 256];
        for (short, value) in all.iter_mut().zip(values) {
            *short = self.short(*value)?;
        }
        Some(all)
    }
}
