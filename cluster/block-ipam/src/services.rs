//! The addresses of Services of type `LoadBalancer`, as Calico's kube-controllers assign them.
//!
//! The addresses come from the pools with `allowedUses: [LoadBalancer]`. The owner of their blocks is
//! [`Owner::load_balancer`](crate::affinity::Owner::load_balancer). All addresses of a Service have one handle, whose
//! name is derived from the Service's uid. So a Service that is deleted and created again has another handle, and the
//! controllers of Calico and of Manx recognize each other's addresses.
//!
//! - [`wish`]: the addresses and pools that a Service requests in its object. Its functions are pure.
//! - [`terms`]: pools, settings and node addresses, which apply to all Services.
//! - [`ledger`]: the Services that have addresses, as recorded in blocks.
//! - [`reconcile`]: assigns the addresses that a Service requests, and releases addresses to which it has no right.
//!
//! The laws, for any order of events and of reads and writes, a crash at each of them, and two leaders at the same time
//! (`laws.rs`):
//! - An address belongs to one Service, and the status of a Service never names an address that the Service does not
//!   have.
//! - When no more changes come, each Service that wants addresses has one of each family, as far as addresses are
//!   available. Its status names these addresses, and no other Service has any.
//!
//! The order of operations ensures these laws. A Service's object is read before its addresses. An address gets a new
//! sequence number before the status names it. The status is written only if the object has not changed since it was
//! read. An address is released only after the status has stopped naming it, with the sequence number that was read
//! before. So if two leaders disagree, one of them fails and reads again.
//!
//! Source: Calico's `kube-controllers/pkg/controllers/loadbalancer`; its design note "IPAM: other callers".

pub mod ledger;
pub mod reconcile;
pub mod terms;
pub mod wish;

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;
