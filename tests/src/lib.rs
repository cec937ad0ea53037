//! Helpers that the cross-crate tests share.
//!
//! - [`allocations`]: an allocator that counts.
//! - [`packet`]: packets as hosts send them, built by `etherparse` and not by the code under test.
//! - [`fabric`]: two nodes that run the real worker, its tables made by the real calculation, over ports in memory.
//! - [`shop`]: a small cluster on them.
//! - [`fuzz`]: generated packets through them, and the packets that may come out.

pub mod allocations;
pub mod fabric;
pub mod fuzz;
pub mod packet;
pub mod shop;
