//! Addresses of Services of type `LoadBalancer`: what Calico's kube-controllers do.
//!
//! The addresses come from the pools with `allowedUses: [LoadBalancer]`. Their blocks belong to one owner,
//! [`Owner::load_balancer`](crate::affinity::Owner::load_balancer), and all addresses of a Service have one handle, whose name
//! is made from the Service's uid. So a Service that is made anew is another one, and the controllers of Calico and of Manx
//! know each other's addresses.
//!
//! - [`wish`]: what a Service asks for, by its object. Pure.
//! - [`terms`]: what counts for all Services: pools, settings, addresses of nodes.
//! - [`ledger`]: which Services have addresses, as blocks say it.
//! - [`settle`]: gives a Service what it asks for, and takes back what it has no right to.
//!
//! The laws, for any order of events and of reads and writes, a crash at each of them, and two leaders at once (`laws.rs`):
//! - An address has one Service, and no Service names an address in its status that it does not have.
//! - When all is quiet, each Service that wants addresses has one of each family, while there are some, and its status names
//!   these; and nobody else has one.
//!
//! They hold by an order: a Service's object is read first, and then its addresses; an address gets a new sequence number
//! before the status names it; the status is written only if the object is still the one that was read; an address is
//! released after the status has stopped naming it, by the sequence number that was read before. So of two that disagree one
//! fails, and reads again.
//!
//! Source: Calico's `kube-controllers/pkg/controllers/loadbalancer`; its design note "IPAM: other callers".

pub mod ledger;
pub mod settle;
pub mod terms;
pub mod wish;

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;
