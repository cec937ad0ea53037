//! Helpers that the cross-crate tests share.
//!
//! - [`allocations`]: an allocator that counts.
//! - [`packet`]: packets as hosts send them, built by `etherparse` and not by the code under test.
//! - [`fabric`]: two nodes that run the real worker over ports in memory, with tables of the real
//!   calculation.
//! - [`shop`]: a small cluster on these nodes.
//! - [`fuzz`]: generated packets through these nodes, and the packets that may come out.

pub mod allocations;
pub mod fabric;
pub mod fuzz;
pub mod packet;
pub mod shop;
