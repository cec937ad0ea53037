//! Fragments: the decision on the first one applies to the later ones, and packets that are too big
//! are cut.

mod cut;
mod tracker;

pub use cut::fragment;
pub use tracker::FragmentTracker;
