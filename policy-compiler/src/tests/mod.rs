//! Tests over more than one module.

mod ask;
mod build;
mod generate;
mod heavy;
mod laws;
mod mutations;
mod semantics;
mod sets;
mod updates;
