//! Fragments: the first decides for the later ones; packets too big are cut.

mod cut;
mod tracker;

pub use cut::fragment;
pub use tracker::FragmentTracker;
