//! The proof can fail.
