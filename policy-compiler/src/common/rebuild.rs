//! The answer of a delta that cannot be applied.

/// What stands cannot take in a change: everything is to be compiled anew. What stood may hold half of the change and must not
/// be used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rebuild;
