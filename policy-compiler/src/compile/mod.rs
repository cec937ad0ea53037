//! Makes an image of a model and the local endpoints, and the next image from the last one.
//!
//! `compiler` makes images; `state` holds the results of the last compilation. Deltas update the state in place:
//! `pod_change` for one pod of another node, mostly in the image in use; `local_delta` for pods that are attached and
//! detached; `set_delta` for network sets; `predicate_delta` for predicates that come into use. All collect an
//! `address_delta`, which gives the touched addresses their new identities. `admission` says whose policies are
//! compiled at all.

mod address_delta;
mod admission;
mod compiler;
mod local_delta;
mod pod_change;
mod predicate_delta;
mod set_delta;
mod state;
mod term_index;

pub use compiler::{Compiler, DEFAULT_BUDGET};
pub use pod_change::PodChange;
