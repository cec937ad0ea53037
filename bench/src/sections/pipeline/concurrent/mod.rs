//! The pipeline while something else happens at the same time: policy is exchanged, pods come and go, another port or
//! another worker is busy. Each figure is compared with the same one without that.

mod churn;
pub(crate) mod load;
pub(crate) mod rows;
mod swap;
mod syn_flood;
mod two_ports;
mod two_workers;
