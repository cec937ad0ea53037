//! The sizes of a worker's memory.

/// The sizes of a worker's memory, as numbers of items.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// The number of flows.
    pub flows: usize,
    /// Whether flows may be translated. A translated flow has two keys, and the table then gets room for second keys.
    pub translates: bool,
    /// The number of buffers, which limits the packets in flight at once.
    pub buffers: usize,
    /// The number of first fragments whose decision is kept for their later fragments.
    pub fragments: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { flows: 1 << 18, translates: false, buffers: 512, fragments: 1024 }
    }
}
