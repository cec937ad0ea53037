//! Calico's IPAM: pools are divided into blocks, nodes claim blocks, and nodes assign the addresses of their blocks to
//! pods.
//!
//! The layers, in order:
//! - [`block`]: the addresses of a block, and their allocations. Its functions are pure.
//! - [`affinity`], [`handle`], [`config`]: the owner of a block, addresses that are released together, and the
//!   cluster's settings. These modules define plain values.
//! - [`pool`]: the pools that serve a request. Its functions are pure.
//! - `candidates`: the order in which a node examines the blocks of a pool.
//! - [`store`]: records that are changed by compare-and-swap.
//! - [`claim`], [`assign`], [`release`]: the algorithms over a store.
//! - [`objects`]: the records as Calico's objects at a server.
//! - [`asked`], [`pods`], [`tunnels`]: the addresses of a pod, and those of a node's tunnels.
//! - [`services`]: the addresses of Services of type `LoadBalancer`.
//! - [`records`]: all records of a store.
//! - [`users`]: the users of allocations, and which allocations have none. Its functions are pure.
//! - [`check`]: whether all records agree with each other and with the users. Its functions are pure.
//! - [`utilization`], [`split`]: how many addresses of pools and blocks are in use; the parts of a pool. Their
//!   functions are pure.
//! - [`garbage`]: removes records that have no user any more.
//!
//! Manx and Calico may use one store at the same time. So the records, the order of the writes and the meaning of each
//! state are the same as Calico's. Calico leaves some records behind after a crash; this crate removes them.
//!
//! The laws (`laws.rs`): no address is assigned twice, no address is lost forever, and no block has two owners. They
//! hold for any number of nodes, any order of their reads and writes, and a crash at each of them.
//!
//! The only I/O is the store, and there is no clock: callers pass the time. Not supported: virtual machines that keep
//! their addresses (other writers never release the handles of `KubeVirt`), and Windows nodes.

pub mod affinity;
pub mod asked;
pub mod assign;
pub mod block;
pub mod check;
pub mod claim;
pub mod config;
pub mod garbage;
pub mod handle;
#[cfg(any(test, feature = "testing"))]
pub mod memory;
pub mod objects;
pub mod pods;
pub mod pool;
pub mod records;
pub mod release;
pub mod services;
pub mod split;
pub mod store;
pub mod tunnels;
pub mod users;
pub mod utilization;

mod addresses;
mod candidates;
mod count;
#[cfg(test)]
mod laws;
