//! Model and local endpoints to an image, and from one image to the next.
//!
//! `compiler` makes images; `basis` is what the last image rests on. Deltas change the basis instead of making it anew:
//! `pod_change` one pod of another node, in the image in use; `set_delta` network sets; `predicate_delta` predicates that come
//! into use. These two collect an `address_delta`, which gives the addresses that are touched their new identities.

mod address_delta;
mod basis;
mod compiler;
mod pod_change;
mod predicate_delta;
mod set_delta;
mod term_index;

pub use compiler::{Compiler, DEFAULT_BUDGET};
pub use pod_change::PodChange;
