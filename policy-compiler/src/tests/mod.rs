//! The compiler's laws: each over generated models, each line of the semantics by name, and the output as a golden text.

mod build;
mod generate;
mod golden;
mod identities;
mod laws;
mod mutations;
mod semantics;
