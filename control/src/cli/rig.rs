//! `manx rig`: the commands of the rig.

use std::ffi::OsString;

use clap::{Args, Subcommand};

use super::Error;

/// `manx rig ...`.
#[derive(Debug, Args)]
pub struct Rig {
    /// Which.
    #[command(subcommand)]
    pub command: Command,
}

/// The rig's commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the rigs that run
    List,
}

/// The processes that a rig consists of, under `manx internal`.
#[derive(Debug, Subcommand)]
pub enum Internal {
    /// The first process of a rig
    RigSupervisor {
        /// Its arguments
        #[arg(trailing_var_arg = true)]
        arguments: Vec<OsString>,
    },
    /// The first process of a pod
    RigPod {
        /// Its arguments
        #[arg(trailing_var_arg = true)]
        arguments: Vec<OsString>,
    },
}

/// Runs one of the rig's commands.
pub fn run(rig: Rig) -> Result<(), Error> {
    match rig.command {
        Command::List => Err(Error::Failed("the rig is not part of this build yet".to_owned())),
    }
}

/// Runs one of the rig's processes.
pub fn run_internal(command: Internal) -> Result<(), Error> {
    match command {
        Internal::RigSupervisor { .. } | Internal::RigPod { .. } => {
            Err(Error::Failed("the rig is not part of this build yet".to_owned()))
        }
    }
}
