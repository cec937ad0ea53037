//! Statements about policy that need no packet.
//!
//! - [`check`]: what is wrong in all objects together, or probably not meant.
//! - [`explain`]: whether a connection passes by the objects, step by step.
//! - [`matrix`]: who reaches whom on which ports, every pair.
//! - [`proof`]: that compiled tables and objects agree, in every case.
//!
//! Everything here is calculated from its arguments: no files, no clock. The types of the results that go over the
//! agent's socket are in `manx-api`.

pub mod check;
pub mod explain;
pub mod matrix;
mod pattern;
pub mod proof;
