//! The program `manx-cni`.

use std::process::ExitCode;

fn main() -> ExitCode {
    manx_cni::main()
}
