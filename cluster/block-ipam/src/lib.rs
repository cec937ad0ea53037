//! Calico's IPAM: pools are cut into blocks, nodes claim blocks, and give their addresses to pods.
//!
//! The layers, in order:
//! - [`block`]: the addresses of a block, and who has which. Pure.
//! - [`affinity`], [`handle`], [`config`]: who claims a block, what is released together, the cluster's settings. Values.
//! - [`pool`]: the pools that serve a request. Pure.
//! - `candidates`: the order in which a node looks at the blocks of a pool.
//! - [`store`]: records that are changed by compare-and-swap.
//! - [`claim`], [`assign`], [`release`]: the algorithms over a store.
//! - [`objects`]: the records as Calico's objects at a server.
//! - [`asked`], [`pods`], [`tunnels`]: the addresses of a pod, and of a node's tunnels.
//! - [`services`]: the addresses of Services of type `LoadBalancer`.
//! - [`records`]: all that a store holds.
//! - [`users`]: which allocations nobody uses. Pure.
//! - [`check`]: whether all records agree with each other and with the users. Pure.
//! - [`utilization`], [`split`]: the numbers of pools and blocks; the parts of a pool. Pure.
//! - [`garbage`]: what nobody uses any more, and when it is taken away.
//!
//! Manx and Calico may use one store at the same time. So the records, the order of the writes and the meaning of each state
//! are Calico's; where Calico leaves something behind after a crash, this crate does not.
//!
//! The laws, for any number of nodes, any order of their reads and writes, and a crash at each of them (`laws.rs`): no
//! address is given out twice; none is lost for ever; no block has two owners.
//!
//! No I/O but the store, no clock: callers give the time. Not supported: addresses of virtual machines that keep theirs
//! (handles of `KubeVirt` are never released by others); Windows nodes.

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
