//! A worker: one core, its queue of every port, and its flows. Other threads can read its counters. The workers of a
//! node share the mailboxes for handoffs, and the table that says which flow belongs to which worker
//! ([`Shards`](crate::flow::Shards)).
//!
//! A turn takes a batch from each hot port whose share of the worker's time allows it, decides every packet, and sends
//! the queued packets (`turn`, `serve`). The tables are read once per batch, so new tables take effect between two
//! batches. A worker that finds nothing for a while sleeps in epoll (`idle`). The control loop starts workers on
//! threads (`thread`, `workers`) and sends them commands (`commands`, `run_commands`). Another thread closes ports
//! (`closer`).

mod clock;
mod closer;
mod commands;
mod idle;
mod run_commands;
mod serve;
mod settings;
mod thread;
mod turn;
mod workers;

pub use clock::Clock;
pub use commands::{Command, Commands, Restoration, Wrap};
pub use idle::Idle;
pub use settings::{Polling, Settings, SharedState};
pub use thread::{Handle, spawn};
pub use turn::Worker;
pub use workers::Workers;

#[cfg(test)]
mod tests;
