//! The stages that a batch passes through.

/// A stage of a batch that was received from a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Decapsulates packets.
    Decapsulate,
    /// Reads headers, forms flow keys and prefetches the buckets of the flow table.
    Read,
    /// Guesses each flow's slot and prefetches the first flows.
    Guess,
    /// Decides packets, changes them and queues them for their ports.
    Forward,
    /// Sends the queues.
    Send,
}

impl Stage {
    /// All stages, in the order in which a batch passes through them.
    pub const ALL: [Self; 5] =
        [Self::Decapsulate, Self::Read, Self::Guess, Self::Forward, Self::Send];

    /// The name in the bench's output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Decapsulate => "decapsulate",
            Self::Read => "read",
            Self::Guess => "guess",
            Self::Forward => "forward",
            Self::Send => "send",
        }
    }
}
