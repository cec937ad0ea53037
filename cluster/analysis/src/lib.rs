//! Answers questions about policy from objects alone, without a running dataplane.
//!
//! - [`check`]: errors of all objects together, and policies that probably do not do what their
//!   author meant.
//! - [`explain`]: whether the objects allow a connection, step by step.
//! - [`matrix`]: the ports on which each party reaches each other party.
//! - [`proof`]: proves that compiled tables and objects agree in every case.
//! - [`services`]: how nodes translate services.
//!
//! All results are calculated from the arguments: this crate reads no files and no clock. `manx-api` has the types of
//! the results that are sent over the agent's socket.

pub mod check;
pub mod explain;
pub mod matrix;
mod pattern;
pub mod proof;
mod routes;
pub mod services;
