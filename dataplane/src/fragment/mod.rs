//! Fragments: the first one decides for the later ones; packets that are too big are cut.

mod cut;
mod tracker;

pub use cut::fragment;
pub use tracker::FragmentTracker;
