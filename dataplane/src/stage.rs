//! The stages that a batch passes through.

/// A stage that a batch passes through, when a port has brought it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Out of the tunnels.
    Decapsulate,
    /// Headers read, flows named, their buckets asked for.
    Read,
    /// Where the flows are; the first of them asked for.
    Guess,
    /// Decided, changed, and into the queue of its port.
    Forward,
    /// Into the ports.
    Send,
}

impl Stage {
    /// All, in the order of a batch.
    pub const ALL: [Self; 5] =
        [Self::Decapsulate, Self::Read, Self::Guess, Self::Forward, Self::Send];

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Decapsulate => "unwrap",
            Self::Read => "read",
            Self::Guess => "guess",
            Self::Forward => "forward",
            Self::Send => "send",
        }
    }
}
