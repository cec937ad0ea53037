//! The ports that are attached to one worker: their slots and queues (`ports`), which of them are readable (`poller`), whose turn it is
//! (`fairness`), and how often their senders may make the worker say something (`rate_limit`).

pub(crate) mod fairness;
pub mod poller;
pub(crate) mod ports;
pub(crate) mod rate_limit;
