//! The addresses of pods: how a node uses each address of its blocks, which pods have addresses, and where this is stored.
//!
//! The layers, in order:
//! - [`block`]: the use of each address of one block. A pure function of the block.
//! - [`plan`]: a node's blocks, and the node's own addresses in them. The topology uses it.
//! - [`free_order`]: the order in which a block's addresses are given out, and the addresses that rest.
//! - [`leases`]: the addresses of each pod. It does no I/O.
//! - [`store`]: records that are changed by compare-and-swap; [`mod@file`] keeps one in a file.
//! - [`host_local`]: the allocator of one host over a store: reserve, then commit or abort; release.
//!
//! An address is reserved before its pod has a device. Then the reservation is committed, or it is aborted because the
//! attachment failed. These steps may use a store, whose calls may fail, hang, or be cut off by a crash. The law: no two
//! pods ever have the same address, and no address is lost for ever. So a reservation is in the store before its caller
//! gets it.
//!
//! The layers before `store` depend on no file, no clock and no Kubernetes. No file of the crate depends on devices or
//! tables.

pub mod block;
pub mod file;
pub mod free_order;
pub mod host_local;
pub mod leases;
pub mod plan;
pub mod store;

mod saved;
