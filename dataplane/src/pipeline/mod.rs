//! A batch on its way through a worker: `input` takes packets out of their tunnels, `parse_and_key` reads them, `passes` holds the passes
//! in order and the fast path, `slow_path` takes what is out of the ordinary, `output` queues and sends, and `handoff` passes
//! packets to the worker that has their flow.

mod context;
mod denials;
pub(crate) mod handoff;
mod input;
pub(crate) mod output;
mod parse_and_key;
mod passes;
mod sizes;
mod slow_path;

pub(crate) use context::Context;
pub(crate) use passes::Pipeline;
pub use sizes::Sizes;
