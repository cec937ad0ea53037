//! The `manx` command.
fn main() {}
