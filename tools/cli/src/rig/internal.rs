//! The processes of a rig, under `manx internal`.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use manx_policy_compiler::model::Protocol;

use super::Error;
use manx_rig::control_loop;
use manx_rig::plan::port::Port;
use manx_rig::report::event::Event;
use manx_rig::world::enter;
use manx_rig::world::fault::Fault;
use manx_rig::world::prober_process;
use manx_rig::world::supervisor::{self, Bounds, SuperviseError};
use manx_rig::world::workdir::Workdir;

/// The rig's processes.
#[derive(Debug, Subcommand)]
pub enum Internal {
    /// Holds a rig: its user and pid namespaces, its time limits, its folder
    RigSupervisor {
        /// The rig's folder
        #[arg(long)]
        work: PathBuf,
        /// Seconds that the rig may take while its caller waits
        #[arg(long)]
        timeout: u64,
        /// Seconds that the rig may live after its caller has left
        #[arg(long)]
        ttl: u64,
    },
    /// The first process of a rig's pid namespace
    RigInit {
        /// The rig's folder
        #[arg(long)]
        work: PathBuf,
    },
    /// Builds a rig and answers on its socket
    RigCluster {
        /// The rig's folder
        #[arg(long)]
        work: PathBuf,
    },
    /// The process of a pod, a node or the outside host
    RigPod {
        /// Its network namespace
        #[arg(long)]
        netns: PathBuf,
        /// The name with which its servers answer
        #[arg(long)]
        name: String,
        /// The ports that it listens on, e.g. `TCP:80`
        #[arg(long, value_parser = parse_port)]
        serve: Vec<Port>,
        /// The addresses that it listens on; all if none is given
        #[arg(long)]
        at: Vec<IpAddr>,
    },
    /// Run a command in a network namespace
    Enter {
        /// The namespace
        netns: PathBuf,
        /// A host name, in a separate UTS namespace
        #[arg(long)]
        uts_name: Option<String>,
        /// The command
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

fn parse_port(text: &str) -> Result<Port, String> {
    let (name, number) = text.split_once(':').ok_or("expected PROTOCOL:NUMBER")?;
    let protocol = Protocol::ALL.into_iter().find(|protocol| protocol.name() == name);
    let protocol = protocol.ok_or("expected TCP, UDP or SCTP")?;
    Ok(Port { protocol, number: number.parse().map_err(|_| "expected a port number")? })
}

/// Runs one of the rig's processes.
pub fn run_internal(command: Internal) -> Result<(), Error> {
    match command {
        Internal::RigSupervisor { work, timeout, ttl } => {
            let (timeout, ttl) = (Duration::from_secs(timeout), Duration::from_secs(ttl));
            ended(supervisor::supervise(&Workdir::from_path(&work), Bounds { timeout, ttl }))
        }
        Internal::RigInit { work } => ended(supervisor::init(&Workdir::from_path(&work))),
        Internal::RigCluster { work } => control_loop::run(Workdir::from_path(&work))
            .map_err(|error| Error::Failed(error.to_string())),
        Internal::RigPod { netns, name, serve, at } => {
            prober_process::run(&netns, &name, &serve, &at)
                .map_err(|error| Error::Failed(error.to_string()))
        }
        Internal::Enter { netns, uts_name, command } => {
            Err(Error::Failed(enter::become_in(&netns, uts_name.as_deref(), &command).to_string()))
        }
    }
}

/// The result of the supervisor or of init. If it could not start, the caller reads the reason on stdout, as an event of
/// the rig.
fn ended(result: Result<bool, SuperviseError>) -> Result<(), Error> {
    match result {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::Deviation),
        Err(error) => {
            let message = error.to_string();
            let fault = match &error {
                SuperviseError::Workdir(_) => Fault::Own,
                SuperviseError::Refused(_) | SuperviseError::System { .. } => Fault::Environment,
            };
            control_loop::emit(&Event::Failed { fault, message: message.clone() });
            Err(Error::Environment(message))
        }
    }
}
