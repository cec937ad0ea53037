//! The IPv4 half: a trie with strides of 16, 8 and 8 bits.
//!
//! A *cell* is a value or a reference to the block that refines it. A page holds 256 cells. The block that refines a
//! /24 may be smaller than a page. It may be half a page, in which values take two bytes. If there are few runs of
//! equal values, or few hosts that differ from the rest, it may be one or two cache lines (`line`) or some bytes of a
//! cache line (`packed_hosts`).
//!
//! A lookup takes the fewest instructions in a half page, and the next fewest in runs. Packed hosts take the least
//! memory. While there are few blocks, all of them are half pages. If there are so many blocks that lookups wait for
//! memory, the blocks hold hosts.
//!
//! **Writing while other threads read.** A cell is stored as a whole. A block that others may read changes only in the
//! cells of a page or of a half page. For every other change, a new block is written to spare room, and a reference to
//! it is stored into the cell above it (with release ordering; readers use acquire). A block that no cell refers to
//! stays unused for the life of the map. The spare room exists for this reason.

mod build;
mod cells;
mod line;
mod packed_hosts;
mod pool;
mod trie;

pub use cells::MAX_VALUE;
pub(super) use trie::Trie;
