//! The numbers that tables are indexed by.

/// Stands for everything that policy can ask of a peer. Its meaning never changes in the life of a compiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Identity(pub u32);

impl Identity {
    /// Of an address that the tables do not know enough about: always denied, as a peer and as the local end.
    pub const UNKNOWN: Self = Self(0);
}

/// Names a chain of one image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainId(pub u32);

impl ChainId {
    /// A chain that no image has: it allows nothing.
    pub const MISSING: Self = Self(u32::MAX);
}

/// Names a path of one image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PathId(pub u32);
