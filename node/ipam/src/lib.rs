//! Pods' addresses: what the addresses of a node's blocks are for, who has which, and where that is kept.
//!
//! The layers, in order:
//! - [`block`]: what each address of one block is for. A pure function of the block.
//! - [`plan`]: a node's blocks, and which special addresses of them are the node's. The topology asks for it.
//! - [`turn`]: how far a block is given out, and which of its addresses rest.
//! - [`leases`]: who has which address. It does no I/O.
//! - [`store`]: records that are changed by compare-and-swap; [`mod@file`] keeps one in a file.
//! - [`host_local`]: the allocator of one host over a store: reserve, then commit or abort; release.
//!
//! An address is reserved before its pod has a device: then the attachment is committed, or it fails and the reservation
//! is aborted. Both may take calls of a store, which fail, hang, or are cut off by a crash. The law is that no address is
//! ever two pods', and that none is lost for ever. A reservation therefore is in the store before anybody hears of it.
//!
//! The layers before `store` depend on no file, no clock and no Kubernetes. The whole crate depends on no device and no
//! table.

pub mod block;
pub mod file;
pub mod host_local;
pub mod leases;
pub mod plan;
pub mod store;
pub mod turn;

mod saved;
