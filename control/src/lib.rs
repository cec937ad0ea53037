//! The control side of Manx.
pub mod api;
