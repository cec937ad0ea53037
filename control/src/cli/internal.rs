//! What manx calls itself by; no interface for anybody else.

use clap::{Args, Subcommand};

use super::{Error, rig};

/// `manx internal ...`.
#[derive(Debug, Args)]
pub struct Internal {
    /// Which.
    #[command(subcommand)]
    pub command: Command,
}

/// The internal commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// The rig's own processes.
    #[command(flatten)]
    Rig(rig::Internal),
}

/// Runs one.
pub fn run(internal: Internal) -> Result<(), Error> {
    match internal.command {
        Command::Rig(command) => rig::run_internal(command),
    }
}
