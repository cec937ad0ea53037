//! `manx policy`: what policies do, without a cluster or in a running agent.

pub mod assume;
pub mod check;
pub mod explain;
pub mod prove;

use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Error;
use assume::{Assume, Completed};
use manx_datastore::{Read, read_with_texts};
use manx_objects::contents::Contents;
use manx_objects::problem::{Problem, Severity};

/// `manx policy ...`.
#[derive(Debug, Args)]
pub struct Policy {
    /// Which.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of `manx policy`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Tell what is wrong with manifests, where, and what it leads to
    Check(check::Check),
    /// Tell whether a connection passes, and what decided, tier by tier and rule by rule
    Explain(explain::Explain),
    /// Prove the tables of every node: each cell says what the objects say, or here is a packet
    Prove(prove::Prove),
}

/// The manifests that a command reads.
#[derive(Debug, Clone, Args)]
pub struct Manifests {
    /// Enter subdirectories of directories, too
    #[arg(long, short = 'R')]
    pub recursive: bool,
    /// Manifests; directories, of which *.yaml, *.yml and *.json are read and subdirectories are not entered; - is standard
    /// input
    #[arg(value_name = "DIR|FILE", required = true)]
    pub paths: Vec<PathBuf>,
}

impl Manifests {
    /// Reads them once.
    fn read(&self) -> Contents {
        self.read_with_texts().contents
    }

    /// Reads them once, and keeps their texts.
    fn read_with_texts(&self) -> Read {
        read_with_texts(self.paths.iter().map(PathBuf::as_path), self.recursive)
    }
}

/// Runs the command.
pub fn run(policy: &Policy) -> Result<(), Error> {
    match &policy.command {
        Command::Check(check) => check::run(check),
        Command::Explain(explain) => explain::run(explain),
        Command::Prove(prove) => prove::run(prove),
    }
}

/// Prints the invalid objects, which fail closed. If not even all objects are known, it is an error.
fn tell_invalid(contents: &Contents) -> Result<(), Error> {
    let errors = contents.problems.iter().filter(|problem| problem.severity == Severity::Error);
    for problem in errors {
        // If standard error is closed, there is no one to tell.
        let _ = writeln!(io::stderr(), "{problem}");
    }
    if contents.in_sync {
        return Ok(());
    }
    let problems: Vec<String> = contents.problems.iter().map(Problem::summary).collect();
    Err(Error::Invalid(format!(
        "not everything can be read, so it is not known what is in force: {}",
        problems.join("; ")
    )))
}
