//! `manx health`: what kubelet's probes run. It starts in a few milliseconds, and asks a thread that has nothing else to do.

use clap::{Args, ValueEnum};

use super::output;
use super::socket::Socket;
use super::{Error, error};
use manx_api::health::{self, Page};

/// The settings of `manx health`.
#[derive(Debug, Clone, Args)]
pub struct Health {
    /// What is asked
    #[arg(value_enum, default_value_t = What::Readiness)]
    pub what: What,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub socket: Socket,
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// Whether the agent's control loop and every worker turn, or it still starts
    Liveness,
    /// Whether tables of all objects are in force
    Readiness,
}

/// Prints what the agent answers. Exit code 1: it is not well.
pub fn run(Health { what, socket }: &Health) -> Result<(), Error> {
    let page = match what {
        What::Liveness => Page::Liveness,
        What::Readiness => Page::Readiness,
    };
    let answer = health::ask(&health::path(&socket.path_of(|_| None)?), page)?;
    output::print(&format!("{}\n", answer.text))?;
    if answer.well { Ok(()) } else { Err(Error::Ended(error::DEVIATION)) }
}
