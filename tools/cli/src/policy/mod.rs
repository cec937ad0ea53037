//! `manx policy`: commands that evaluate policies, without a cluster or in a running agent.

pub mod assume;
pub mod check;
pub mod explain;
pub mod live;
pub mod manifests;
pub mod matrix;
pub mod prove;
pub mod service_settings;

use clap::{Args, Subcommand};

use super::Error;

/// `manx policy ...`.
#[derive(Debug, Args)]
pub struct Policy {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of `manx policy`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Report what is wrong with manifests, where, and what it leads to
    Check(check::Check),
    /// Explain whether a connection passes, and what decides, tier by tier and rule by rule
    Explain(explain::Explain),
    /// Show for every pair of parties which ports pass
    Matrix(matrix::MatrixSettings),
    /// Prove that each cell of every node's tables decides as the objects do, or show a packet that
    /// differs
    Prove(prove::Prove),
}

pub fn run(policy: &Policy) -> Result<(), Error> {
    match &policy.command {
        Command::Check(check) => check::run(check),
        Command::Explain(explain) => explain::run(explain),
        Command::Matrix(matrix) => matrix::run(matrix),
        Command::Prove(prove) => prove::run(prove),
    }
}
