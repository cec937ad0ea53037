//! The tables that a worker judges by: one immutable value, published whole.
