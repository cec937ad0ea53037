//! `manx ipam` shows the addresses that Calico's IPAM has assigned, checks them, and releases
//! unused ones.
//!
//! The commands and their options have the names of `calicoctl ipam`.

pub mod check;
pub mod cluster;
pub mod configure;
pub mod release;
pub mod report;
pub mod show;
pub mod split;

use clap::{Args, Subcommand};
use manx_datastore::api_server::{Writer, run_with_writer};

use self::cluster::Cluster;
use super::Error;
use super::datastore::ServerOptions;

/// `manx ipam ...`.
#[derive(Debug, Args)]
pub struct Ipam {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of `manx ipam`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show how many addresses of each IPPool are assigned, or who has an address
    Show(show::Show),
    /// Check that blocks, affinities, handles and the users of addresses agree
    ///
    /// Exit code 1: they do not agree.
    Check(check::Check),
    /// Release unused addresses
    Release(release::Release),
    /// Show or change the settings of the whole cluster
    Configure(configure::Configure),
    /// Split an `IPPool` into smaller ones
    Split(split::Split),
}

/// Runs the command.
pub fn run(ipam: &Ipam) -> Result<(), Error> {
    match &ipam.command {
        Command::Show(it) => at(&it.server, async |cluster| show::run(it, &cluster).await),
        Command::Check(it) => at(&it.server, async |cluster| check::run(it, &cluster).await),
        Command::Release(it) => at(&it.server, async |cluster| release::run(it, &cluster).await),
        Command::Configure(it) => {
            at(&it.server, async |cluster| configure::run(it, &cluster).await)
        }
        Command::Split(it) => at(&it.server, async |cluster| split::run(it, &cluster).await),
    }
}

fn at(
    server: &ServerOptions,
    work: impl AsyncFnOnce(Cluster<Writer>) -> Result<(), Error>,
) -> Result<(), Error> {
    run_with_writer(&server.access(), async |writer| work(Cluster::new(writer)).await)
}

#[cfg(test)]
mod tests;
