//! The flow table.
