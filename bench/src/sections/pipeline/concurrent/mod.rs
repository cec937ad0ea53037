//! The pipeline while something else happens: policy is exchanged, pods are added and removed, or another port or
//! another worker is busy. Each figure is compared with the same figure without the event.

mod churn;
pub(crate) mod load;
pub(crate) mod rows;
mod swap;
mod syn_flood;
mod two_ports;
mod two_workers;
