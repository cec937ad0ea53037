//! The command line.
//!
//! Nothing here starts a thread before the chosen command does: a namespace of users can only be entered while the
//! process has a single thread (setns(2), unshare(2)).
//!
//! Settings: a flag, else its environment variable (`MANX_*`), else the default. Exit codes: see [`Error`].

pub mod error;
pub mod internal;
pub mod node;
pub mod rig;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

pub use self::error::Error;

/// Kubernetes pod networking and network policy in userspace.
#[derive(Debug, Parser)]
#[command(name = "manx", version, propagate_version = false, max_term_width = 100)]
pub struct Manx {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Build a whole cluster on this machine and check its traffic against its policies
    Rig(rig::Rig),
    /// Run the node agent
    Node(node::Node),
    /// Print the version
    Version,
    /// Print a shell's completion script
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// What manx calls itself by
    #[command(hide = true)]
    Internal(internal::Internal),
}

/// Parses the command line, runs the command, prints its error if any, and gives the exit code.
pub fn main() -> ExitCode {
    let manx = match Manx::try_parse() {
        Ok(manx) => manx,
        Err(error) => {
            // Nobody is left to tell when even this cannot be printed.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(error::INVALID)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    match run(manx.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !error.is_told() {
                eprintln!("manx: {error}");
            }
            ExitCode::from(error.code())
        }
    }
}

fn run(command: Command) -> Result<(), Error> {
    match command {
        Command::Rig(rig) => rig::run(rig),
        Command::Node(node) => node::run(&node),
        Command::Version => {
            println!("manx {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Manx::command(), "manx", &mut std::io::stdout());
            Ok(())
        }
        Command::Internal(internal) => internal::run(internal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Manx::command().debug_assert();
    }
}
