//! Statements about policy that need no packet.
//!
//! - [`check`]: errors of all objects together, and policies that probably do not do what their
//!   author meant.
//! - [`explain`]: whether the objects allow a connection, step by step.
//! - [`matrix`]: the ports on which each party reaches each other party.
//! - [`proof`]: proves that compiled tables and objects agree in every case.
//! - [`services`]: what the tables of nodes do with services.
//!
//! Everything here is calculated from its arguments: no files, no clock. The types of the results that go over the
//! agent's socket are in `manx-api`.

pub mod check;
pub mod explain;
pub mod matrix;
mod pattern;
pub mod proof;
mod routes;
pub mod services;
