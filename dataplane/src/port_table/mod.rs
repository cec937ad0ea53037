//! A worker's ports: their slots and queues (`ports`), which of them are readable (`poller`), which are served
//! (`fairness`), and how often their senders can make the worker send messages (`rate_limit`).

pub(crate) mod fairness;
pub mod poller;
pub(crate) mod ports;
pub(crate) mod rate_limit;
