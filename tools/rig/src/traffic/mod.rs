//! The probes between probers, the oracle's expectations, and the observed results.

pub(crate) mod check;
pub(crate) mod crossings;
pub(crate) mod matrix;
pub(crate) mod measure;
pub(crate) mod policy_ports;
