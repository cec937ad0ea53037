//! `manx service`: what the tables of nodes do with Services.

pub mod asked;
pub mod list;
pub mod show;

use clap::{Args, Subcommand};

use super::Error;

/// `manx service ...`.
#[derive(Debug, Args)]
pub struct Service {
    /// Which.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of `manx service`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List every port of every Service: its addresses, how many backends it has, and why it has none
    List(list::List),
    /// Tell of one Service which backends a new connection may get, and why not the others
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
