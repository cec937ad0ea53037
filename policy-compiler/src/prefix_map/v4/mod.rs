//! The IPv4 half: a trie with strides of 16, 8 and 8 bits.
//!
//! A *cell* is a value or a reference to the block that refines it. A page holds 256 cells. The block that refines a
//! /24 may be smaller: half a page, in which values take two bytes; one or two cache lines, if there are few runs of
//! equal values or few hosts that differ from the rest (`line`); or some bytes of a cache line (`packed_hosts`).
//!
//! A lookup in a half page takes the fewest instructions, a lookup in runs the next fewest; packed hosts take the least
//! memory. While there are few blocks, all are half pages. If there are so many that a lookup waits for memory, they
//! hold hosts.
//!
//! **Writing while other threads read.** A cell is stored whole. A block that others may read changes only in the cells
//! of a page or of half a page. For every other change a new block is written into spare room, and a reference to it is
//! stored into the cell above it (release; readers acquire). A block that no cell refers to any more stays unused for
//! the life of the map; the spare room is there for that.

mod build;
mod cells;
mod line;
mod packed_hosts;
mod pool;
mod trie;

pub use cells::MAX_VALUE;
pub(super) use trie::Trie;
