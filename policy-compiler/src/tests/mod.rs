//! Tests over more than one module.

mod generate;
mod laws;
mod mutations;
