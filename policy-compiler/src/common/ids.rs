//! The numbers that index the tables.

/// Identifies a predicate set: everything by which policy can distinguish one peer from another. The meaning of an
/// identity never changes during the life of a compiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Identity(pub u32);

impl Identity {
    /// The identity of an address about which the tables know too little. It is always denied, as the peer and as the
    /// local end.
    pub const UNKNOWN: Self = Self(0);
}

/// Identifies a chain of one image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainId(pub u32);

impl ChainId {
    /// A chain that is in no image: it allows nothing.
    pub const MISSING: Self = Self(u32::MAX);
}

/// Identifies a path of one image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PathId(pub u32);
