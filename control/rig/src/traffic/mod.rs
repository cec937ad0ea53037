//! What is asked of which prober, what the oracle expects to come of it, and what did.

pub(crate) mod check;
pub(crate) mod crossings;
pub(crate) mod matrix;
pub(crate) mod measure;
pub(crate) mod policy_ports;
