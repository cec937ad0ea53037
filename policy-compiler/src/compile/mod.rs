//! Builds an image from a model and the local endpoints, and builds the next image from the last one.
//!
//! `compiler` builds images; `state` holds the results of the last compilation. Deltas update the state in place.
//! `pod_change` is for one pod of another node, usually in the image in use; `local_delta` is for pods that are
//! attached and detached; `set_delta` is for network sets; and `predicate_delta` is for predicates that come into use.
//! Each of them adds the addresses that it touches to an `address_delta`, which then gives these addresses their new
//! identities. `closed_namespaces` decides which namespaces have their policies compiled.

mod address_delta;
mod closed_namespaces;
mod compiler;
mod local_delta;
mod pod_change;
mod predicate_delta;
mod set_delta;
mod state;
mod term_index;

pub use compiler::{Compiler, DEFAULT_BUDGET};
pub use pod_change::PodChange;
