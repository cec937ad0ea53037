//! Policies in, classifier tables out.
pub mod model;
