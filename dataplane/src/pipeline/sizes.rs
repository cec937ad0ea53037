//! The sizes of a worker's memory.

/// The sizes of a worker's memory, in items.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Flows.
    pub flows: usize,
    /// Whether flows may be translated: such a flow has two keys, and the table gets room for those.
    pub translates: bool,
    /// Buffers: packets in flight at once.
    pub buffers: usize,
    /// First fragments whose decision is kept for their later ones.
    pub fragments: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { flows: 1 << 18, translates: false, buffers: 512, fragments: 1024 }
    }
}
