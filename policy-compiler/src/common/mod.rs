//! Ids, small collections, hashing, and the join of a second thread.
//!
//! `IndexTable` and `SmallList` are 119 lines of our own. With `hashbrown` and `smallvec`, a large cluster takes 3 to 4
//! % longer to compile and to follow changes. The same holds with `Vec` in place of the small list.

mod bit_set;
mod grouped;
mod ids;
mod index_table;
mod join;
mod pinned;
mod ranges;
mod rebuild;
mod small_list;
mod stable_hash;

pub(crate) use bit_set::BitSet;
pub(crate) use grouped::{Grouped, OccupiedGroups};
pub use ids::{ChainId, Identity, PathId};
pub(crate) use index_table::IndexTable;
pub(crate) use join::{LARGE_CLUSTER, join, join_with};
pub(crate) use pinned::Pinned;
pub use ranges::Ranges;
pub(crate) use rebuild::Rebuild;
pub use small_list::SmallList;
pub(crate) use stable_hash::StableHasher;
