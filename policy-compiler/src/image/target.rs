//! The targets of the steps of a lookup in a row.

use std::hash::Hash;

use crate::common::PathId;

/// The target of a step of a lookup: a path, or a line, which is searched by key or by source port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Target(pub(super) u32);

/// Marks lines; paths do not have this bit.
const LINE: u32 = 1 << 31;

pub(super) const SOURCE: u32 = 1 << 30;

/// Marks the lines that are leaves.
const LEAF: u32 = 1 << 29;

pub(super) const NUMBER: u32 = LEAF - 1;

impl Target {
    /// A target that leads to nothing: no image has that many lines.
    pub(crate) const NOWHERE: Self = Self::by_source(u32::MAX).leaf();

    pub(crate) const fn path(path: PathId) -> Self {
        Self(path.0 & NUMBER)
    }

    pub(crate) const fn by_key(line: u32) -> Self {
        Self(LINE | line & NUMBER)
    }

    pub(crate) const fn by_source(line: u32) -> Self {
        Self(LINE | SOURCE | line & NUMBER)
    }

    /// The same target, but as a leaf instead of a line.
    pub(crate) const fn leaf(self) -> Self {
        Self(self.0 | LEAF)
    }

    /// Whether the target is a leaf, provided that it is a line.
    #[inline]
    pub(crate) const fn is_leaf(self) -> bool {
        self.0 & LEAF != 0
    }

    /// The number of the leaf, if the target is a leaf that is searched by key.
    #[inline]
    pub(crate) const fn as_leaf_by_key(self) -> Option<u32> {
        if self.0 & !NUMBER == LINE | LEAF { Some(self.0 & NUMBER) } else { None }
    }

    #[inline]
    pub(crate) const fn is_line(self) -> bool {
        self.0 & LINE != 0
    }

    #[inline]
    pub(crate) const fn as_path(self) -> Option<PathId> {
        if self.is_line() { None } else { Some(PathId(self.0)) }
    }

    /// The target as a number; equal targets have equal numbers.
    pub(crate) const fn bits(self) -> u32 {
        self.0
    }

    /// Whether the target is searched by source port, provided that it is a line.
    #[inline]
    pub(crate) const fn is_by_source(self) -> bool {
        self.0 & SOURCE != 0
    }

    /// The number of the line or leaf, if the target is one.
    pub(crate) const fn as_line(self) -> Option<u32> {
        if self.is_line() { Some(self.0 & NUMBER) } else { None }
    }

    /// The target with another number: a line or leaf as before, searched by the same value.
    pub(crate) const fn to_line(self, line: u32) -> Self {
        Self(self.0 & !NUMBER | line & NUMBER)
    }
}

/// The key of packets without a key; all other keys are below it.
pub(crate) const NO_KEY: u32 = 1 << 16;

/// An interval: keys from `start` up to the start of the next interval lead to `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) start: u32,
    pub(crate) to: Target,
}
