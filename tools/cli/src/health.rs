//! `manx health`, the command of kubelet's probes. It starts in a few milliseconds. A thread of the
//! agent that has no other work answers it.

use clap::{Args, ValueEnum};

use super::output;
use super::socket::Socket;
use super::{Error, error};
use manx_api::health::{self, Page};

/// The settings of `manx health`.
#[derive(Debug, Clone, Args)]
pub struct Health {
    /// The kind of health that is asked for
    #[arg(value_enum, default_value_t = Probe::Readiness)]
    pub what: Probe,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub socket: Socket,
}

/// The kind of probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Probe {
    /// Whether the agent's control loop and every worker turn, or the agent is still starting
    Liveness,
    /// Whether tables of all objects are in force, and BGP sessions are established again after a
    /// start
    Readiness,
}

/// Prints the agent's answer. Exit code 1 if the agent is not alive or not ready.
pub fn run(Health { what, socket }: &Health) -> Result<(), Error> {
    let page = match what {
        Probe::Liveness => Page::Liveness,
        Probe::Readiness => Page::Readiness,
    };
    let answer = health::ask(&health::path(&socket.path_of(|_| None)?), page)?;
    output::print(&format!("{}\n", answer.text))?;
    if answer.well { Ok(()) } else { Err(Error::Ended(error::DEVIATION)) }
}
