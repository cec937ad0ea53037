//! The two classes that determine in which order a full table evicts flows.

use zerocopy::FromZeros;

use super::state::FlowState;

/// The eviction class of an entry. Zero is the free class, so memory that was never written holds
/// no flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromZeros)]
#[repr(u8)]
pub(super) enum EvictionClass {
    /// The slot is free and in no list.
    Free = 0,
    /// It is in that list of its owner which is evicted first.
    Unestablished = 1,
    /// It is in that list of its owner which is evicted last.
    Established = 2,
}

impl EvictionClass {
    /// The class of a flow in this state.
    #[inline]
    pub(super) const fn from_state(state: FlowState) -> Self {
        if state.is_established() { Self::Established } else { Self::Unestablished }
    }
}
