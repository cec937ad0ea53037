//! The answer of a delta that cannot be applied.

/// The tables in use cannot take in a change: everything has to be compiled anew. They may hold half of the change and
/// must not be used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rebuild;
