//! `manx bench` runs the program `manx-bench` next to `manx`, as git and cargo run commands that are separate programs.
//! It is a separate program because it has more dependencies than `manx`.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use clap::Args;

use super::{Error, output};

const PROGRAM: &str = "manx-bench";

/// The arguments that are passed on.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true)]
pub struct Bench {
    /// Rows to measure, number of repetitions, where to write the results: see `manx bench --help`
    /// once manx-bench is built
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Replaces this process by the program, with its arguments. If the program is absent, the help of `manx` is printed.
pub fn run(bench: &Bench, mut manx: clap::Command) -> Result<(), Error> {
    let own = env::current_exe()
        .map_err(|error| Error::Failed(format!("the folder of manx is not known: {error}")))?;
    let program = own.with_file_name(PROGRAM);
    let error = Command::new(&program).args(&bench.arguments).exec();
    if error.kind() != io::ErrorKind::NotFound {
        return Err(Error::Failed(format!("{} cannot be started: {error}", program.display())));
    }
    if bench.arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        let help = manx.find_subcommand_mut("bench").map(clap::Command::render_long_help);
        output::print(&help.map_or_else(String::new, |help| help.to_string()))?;
        return output::print(&format!("\n{}\n", absent(&program)));
    }
    Err(Error::Environment(absent(&program)))
}

fn absent(program: &Path) -> String {
    format!(
        "{} is not there, which measures: build it in the source's folder, cargo build --release -p manx-bench, and put it \
         beside manx",
        program.display()
    )
}
