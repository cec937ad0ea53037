//! A worker: one core, its ports, its flows.
