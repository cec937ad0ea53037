//! The error that a delta cannot be applied.

/// The tables in use cannot be updated to a change, so everything must be compiled again. They may contain a part of
/// the change, and must no longer be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rebuild;
