//! The `manx` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    manx::main()
}
