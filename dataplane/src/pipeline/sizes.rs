//! The sizes of what a worker remembers.

/// How much a worker may remember.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Flows.
    pub flows: usize,
    /// Buffers: packets in flight at once.
    pub buffers: usize,
    /// First fragments that wait for their later ones.
    pub fragments: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { flows: 1 << 18, buffers: 512, fragments: 1024 }
    }
}
