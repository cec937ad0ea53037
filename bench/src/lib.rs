//! Manx.
