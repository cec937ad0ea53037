//! The pipeline: the way that a batch takes through a worker.
//!
//! - `passes` holds the passes in their order, and the fast path.
//! - `input` takes packets out of their tunnels.
//! - `parse_and_key` parses packets and forms the keys of their flows.
//! - `translated` is the fast path of translated packets.
//! - `slow_path` decides the packets that the fast path leaves undecided.
//! - `output` queues packets and sends them.
//! - `restore` opens the flows of the last process again, before the first packets arrive.
//! - `handoff` passes packets to the worker that has their flow.

mod context;
mod denials;
pub(crate) mod handoff;
mod input;
pub(crate) mod output;
mod parse_and_key;
mod passes;
mod restore;
mod sizes;
mod slow_path;
mod translated;
mod untranslated;

pub(crate) use context::Context;
pub(crate) use passes::Pipeline;
pub use restore::{RestorePass, Restored};
pub use sizes::Sizes;
