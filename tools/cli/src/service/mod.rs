//! `manx service` shows how nodes' tables translate Services.

pub mod asked;
pub mod list;
pub mod show;

use clap::{Args, Subcommand};

use super::Error;

/// `manx service ...`.
#[derive(Debug, Args)]
pub struct Service {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of `manx service`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List every port of every Service: its addresses, its number of backends, and why it has none
    List(list::List),
    /// Show which backends a new connection to one Service may get, and why not the others
    Show(show::Show),
}

pub fn run(service: &Service) -> Result<(), Error> {
    match &service.command {
        Command::List(list) => list::run(list),
        Command::Show(show) => show::run(show),
    }
}

#[cfg(test)]
mod tests;
