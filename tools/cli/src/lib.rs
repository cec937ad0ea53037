//! The command line.
//!
//! No thread is started before the chosen command starts one: a user namespace can only be entered while the process
//! has a single thread (setns(2), unshare(2)).
//!
//! A setting comes from its flag, otherwise from its environment variable (`MANX_*`), otherwise it is the default. Exit
//! codes are in [`Error`].

pub mod bench;
pub mod capture;
mod chosen_rig;
pub mod controllers;
pub mod datastore;
pub mod doctor;
pub mod error;
pub mod health;
pub mod internal;
pub mod ipam;
pub mod log;
pub mod node;
mod node_address;
pub mod node_status;
pub mod observed;
pub mod output;
pub mod policy;
pub mod pool;
pub mod rig;
pub mod routes;
pub mod service;
pub mod socket;
pub mod status;
pub mod supervise;
mod usage;
mod values;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::Resettable;
use clap::{CommandFactory, FromArgMatches as _, Parser, Subcommand};

pub use self::error::Error;

/// Kubernetes pod networking and network policy in userspace.
#[derive(Debug, Parser)]
#[command(name = "manx", version, propagate_version = false, max_term_width = 100)]
pub struct Manx {
    /// The command, with its settings.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Build a whole cluster on this machine and check its traffic against its policies
    Rig(rig::settings::Rig),
    /// Evaluate policies, without a cluster
    Policy(policy::Policy),
    /// Show what nodes' tables do with Services, without a cluster
    Service(service::Service),
    /// Run the node agent; `manx node status` shows the BGP sessions of a running agent
    Node(Box<node::Node>),
    /// Make the first IPPool of a cluster that has none
    ///
    /// Waits until the API server answers and has the kind IPPool, makes the pool, and ends.
    /// Existing pools stay as they are.
    Pool(pool::Pool),
    /// Show, check and change the assignments of Calico's IPAM in a cluster
    Ipam(ipam::Ipam),
    /// Release unused addresses, blocks and handles of Calico's IPAM, and assign addresses to
    /// Services
    ///
    /// Runs until SIGTERM. Several processes may run in a cluster; one of them acts.
    Controllers(controllers::Controllers),
    /// Show what an agent does: endpoints, routes, ports, drops, workers, rules
    Status(status::Status),
    /// List where each prefix leads, by which source, and the routes of other sources
    Routes(routes::Routes),
    /// Ask whether an agent is alive or ready, for probes
    Health(health::Health),
    /// Record the packets of one port of an agent
    Capture(capture::Capture),
    /// Measure Manx beside the kernel and other programs on this machine
    Bench(bench::Bench),
    /// Show what this environment allows, what each lack costs and how to fix it
    Doctor(doctor::Doctor),
    /// Print the version
    Version,
    /// Print a shell's completion script
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a directory
    ///
    /// One for each command: manx.1, manx-rig-run.1 and so on. `man -l DIR/manx.1` shows one of them.
    Man {
        /// The directory, which is made if it does not exist
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Commands that manx itself runs
    #[command(hide = true)]
    Internal(internal::Internal),
}

/// Parses the command line, runs the command, prints its error if there is one, and returns the exit code.
pub fn main() -> ExitCode {
    let mut command = without_empty_variables(Manx::command());
    let words: Vec<OsString> = std::env::args_os().collect();
    let parsed = command.try_get_matches_from_mut(&words);
    let manx = match parsed.and_then(|it| Manx::from_arg_matches(&it)) {
        Ok(manx) => manx,
        Err(error) => {
            let error = usage::complete(error, &command, &words);
            // This fails if standard error is closed, and then there is no reader.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(error::INVALID)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    match run(manx.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !error.is_reported() {
                // This fails if standard error is closed, and then there is no reader.
                let _ = writeln!(io::stderr(), "manx: {error}");
            }
            ExitCode::from(error.code())
        }
    }
}

/// Makes an empty environment variable count as not set, because manifests write an absent setting that way.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |name: &OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
    let command = command.mut_args(|arg| {
        if arg.get_env().is_some_and(is_empty) { arg.env(Resettable::Reset) } else { arg }
    });
    command.mut_subcommands(without_empty_variables)
}

fn run(command: Command) -> Result<(), Error> {
    match command {
        Command::Rig(rig) => rig::run(rig),
        Command::Policy(policy) => policy::run(&policy),
        Command::Service(service) => service::run(&service),
        Command::Node(node) => match &node.command {
            Some(node::NodeCommand::Status(status)) => node_status::run(status),
            None => node::run(&node),
        },
        Command::Pool(pool) => pool::run(&pool),
        Command::Ipam(ipam) => ipam::run(&ipam),
        Command::Controllers(controllers) => controllers::run(&controllers),
        Command::Status(status) => status::run(&status),
        Command::Routes(routes) => routes::run(&routes),
        Command::Health(health) => health::run(&health),
        Command::Capture(capture) => capture::run(&capture),
        Command::Bench(bench) => bench::run(&bench, Manx::command()),
        Command::Doctor(doctor) => doctor::run(&doctor),
        Command::Version => output::print(&version()),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Manx::command(), "manx", &mut script);
            output::print(&String::from_utf8_lossy(&script))
        }
        Command::Man { directory } => write_manual(&directory),
        Command::Internal(internal) => internal::run(internal),
    }
}

/// Writes the manual pages.
fn write_manual(directory: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Manx::command(), directory))
        .map_err(|error| {
            Error::Invalid(format!(
                "the manual pages cannot be written to {}: {error}; expected a directory that you may write to",
                directory.display()
            ))
        })
}

/// The version of the program, its commit if it was built in a git checkout, and the version of the agents' protocol.
fn version() -> String {
    let commit = option_env!("MANX_COMMIT").map(|commit| format!(" (commit {commit})"));
    format!(
        "manx {}{}\nagent protocol {}\n",
        env!("CARGO_PKG_VERSION"),
        commit.unwrap_or_default(),
        manx_api::VERSION
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Manx::command().debug_assert();
    }

    #[test]
    fn every_command_has_a_manual_page_and_hidden_ones_have_none() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("man1");
        write_manual(&directory).unwrap();
        let page = |name: &str| std::fs::read_to_string(directory.join(name)).ok();
        assert!(page("manx-rig-run.1").unwrap().contains("sabotage"));
        assert!(page("manx.1").unwrap().contains("doctor"));
        assert!(page("manx-internal.1").is_none());
        std::fs::write(directory.join("file"), "").unwrap();
        let told = write_manual(&directory.join("file")).unwrap_err().to_string();
        assert!(told.contains("expected a directory"), "{told}");
    }

    #[test]
    fn completions_are_generated_for_every_shell() {
        use clap::ValueEnum as _;
        for shell in clap_complete::Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Manx::command(), "manx", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(
                script.contains("doctor")
                    && script.contains("bench")
                    && script.contains("datastore"),
                "{shell}"
            );
        }
    }
}
