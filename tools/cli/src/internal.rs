//! The commands that manx itself runs; not an interface for users.

use clap::{Args, Subcommand};

use super::{Error, rig};
use manx_linux::doctor;

/// `manx internal ...`.
#[derive(Debug, Args)]
pub struct Internal {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The internal commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Test what the environment allows, and print it as JSON
    DoctorProbe,
    /// The part of the probe that runs inside a user namespace
    DoctorProbeInside,
    /// The rig's own processes.
    #[command(flatten)]
    Rig(rig::Internal),
}

pub fn run(internal: Internal) -> Result<(), Error> {
    match internal.command {
        Command::DoctorProbe => {
            print(&doctor::probe().map_err(|error| Error::Failed(error.to_string()))?)
        }
        Command::DoctorProbeInside => print(&doctor::probe_inside()),
        Command::Rig(command) => rig::run_internal(command),
    }
}

fn print(found: &doctor::ProbeResults) -> Result<(), Error> {
    let text = serde_json::to_string(found).map_err(|error| Error::Failed(error.to_string()))?;
    println!("{text}");
    Ok(())
}
