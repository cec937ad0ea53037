//! Translated flows: flows to a backend of a service, or to the world with the node's address as their source. They are
//! found by either of their keys. They are judged by their client and by their destination after the translation.
//!
//! A flow's backend is chosen when the flow opens, and does not change. A connection that another node has opened can
//! continue here ([`moved`]).

mod judge;
mod known;
mod moved;
mod open;
mod second_key;
mod source;

#[cfg(test)]
pub(super) use judge::epoch;
pub use known::translated_fast_path;
pub(super) use known::{decide_error, decide_known, judge_restored};
pub(super) use moved::has_moved;
pub(super) use open::{may_open, open};
