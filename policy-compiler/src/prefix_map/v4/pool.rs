//! Blocks of one kind, with spare room for more.

use std::sync::atomic::{AtomicU32, Ordering};

/// A block of cells. Each cell is atomic, so that single cells may be stored while other threads read the block.
pub(super) trait Block: Default {
    /// The values of the cells.
    type Cells: Clone;

    /// Stores all cells. No reader knows the block yet.
    fn store(&self, cells: &Self::Cells);

    fn load(&self) -> Self::Cells;
}

/// A pool of blocks of one kind.
#[derive(Debug)]
pub(super) struct BlockPool<B> {
    all: Box<[B]>,
    /// The number of the first block that has never been written.
    next: AtomicU32,
}

impl<B: Block> Clone for BlockPool<B> {
    fn clone(&self) -> Self {
        let copied = |block: &B| {
            let copy = B::default();
            copy.store(&block.load());
            copy
        };
        Self { all: self.all.iter().map(copied).collect(), next: AtomicU32::new(self.len()) }
    }
}

impl<B: Block> BlockPool<B> {
    /// Creates a pool of these blocks, with spare room for an eighth of their number, but for at least `spare` blocks.
    pub(super) fn new(mut all: Vec<B>, spare: usize) -> Self {
        let next = all.len();
        all.resize_with(next + spare.max(next / 8), B::default);
        Self { all: all.into(), next: AtomicU32::new(next as u32) }
    }

    /// The number of blocks that have been written.
    pub(super) fn len(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&B> {
        self.all.get(number as usize)
    }

    /// Writes adjacent blocks and returns the number of the first. `None` if there is no room left.
    pub(super) fn push_all(&self, new: &[B::Cells]) -> Option<u32> {
        let next = self.len();
        let room = self.all.get(next as usize..next as usize + new.len())?;
        room.iter().zip(new).for_each(|(block, cells)| block.store(cells));
        self.next.store(next + new.len() as u32, Ordering::Relaxed);
        Some(next)
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.all)
    }
}
