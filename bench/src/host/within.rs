//! A process that becomes another program, in a network namespace and on certain cores, and that ends with its parent.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use manx_linux::netns;

use super::cores;
use super::process;

/// The first argument with which this program starts itself to become another one.
pub const WITHIN: &str = "within";

/// A command that becomes this program, in the namespace and on these cores (any cores if the list is empty).
pub fn command(netns: &Path, cores: &[usize], program: &[String]) -> Command {
    let cores: Vec<String> = cores.iter().map(ToString::to_string).collect();
    let mut command = Command::new("/proc/self/exe");
    command.arg(WITHIN).arg(netns);
    if !cores.is_empty() {
        command.arg(format!("--cores={}", cores.join(",")));
    }
    command.arg("--").args(program);
    command
}

/// The command line of [`WITHIN`].
#[derive(Debug, Parser)]
#[command(name = WITHIN)]
struct Arguments {
    /// The network namespace, if not this one
    netns: Option<PathBuf>,
    /// The cores that it may use
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
    /// The program to become, and its arguments
    #[arg(last = true, required = true)]
    program: Vec<String>,
}

/// Becomes another program in a network namespace (or in the current one) and on certain cores. The program ends with
/// its parent. This returns only with an error. The caller must have a single thread.
pub fn run(arguments: impl Iterator<Item = String>) -> Result<(), String> {
    let arguments = Arguments::parse_from(arguments);
    process::end_with_parent().map_err(|error| error.to_string())?;
    if let Some(netns) = &arguments.netns {
        let netns = netns::open(netns).map_err(|error| error.to_string())?;
        netns::enter(&netns).map_err(|error| error.to_string())?;
    }
    if !cores::pin_to(&arguments.cores) {
        return Err(format!("cannot stay on the cores {:?}", arguments.cores));
    }
    let error = process::become_program(&arguments.program);
    Err(format!("{} cannot be started: {error}", arguments.program.join(" ")))
}
