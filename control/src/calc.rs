//! The calculation: model and node state to the dataplane's tables.
