//! The order in which a full table gives flows up: two classes of them.

use zerocopy::FromZeros;

use super::state::FlowState;

/// The eviction class of an entry. Zero is free: memory that was never written holds no flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromZeros)]
#[repr(u8)]
pub(super) enum EvictionClass {
    /// The slot is free and in no list.
    Free = 0,
    /// It is in the list of its owner that is evicted first.
    Unestablished = 1,
    /// It is in the list of its owner that is evicted last.
    Established = 2,
}

impl EvictionClass {
    /// The class of a flow in this state.
    #[inline]
    pub(super) const fn from_state(state: FlowState) -> Self {
        if state.is_established() { Self::Established } else { Self::Unestablished }
    }
}
