//! Policies in, classifier tables out.
pub mod compile;
pub mod image;
pub mod model;
pub mod prefix_map;
pub mod prove;
pub mod reference;
pub mod resolve;
