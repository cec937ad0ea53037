//! One node agent in its own process.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use manx::node::{self, Node};
use manx_api::Status;
use manx_api::client::Client;
use manx_dataplane::worker::Polling;
use manx_linux::netns;

use super::shape::{Shape, Translation};
use crate::error::{Error, errno, io};
use crate::host::process::{self, Process, tail};
use crate::path::way::SERVICE_RANGE;

/// The first argument with which this program starts itself as an agent.
pub const AGENT: &str = "agent";
/// The folder of the manifests that all agents read.
pub(super) const MANIFESTS: &str = "manifests";
/// The longest time that an agent may take to start, and to enforce its objects.
const PATIENCE: Duration = Duration::from_secs(20);

/// The command line of an agent: the options of `manx node`, and the namespace of its node.
#[derive(Debug, Parser)]
#[command(name = AGENT)]
struct Arguments {
    /// The node's network namespace
    #[arg(long)]
    netns: PathBuf,
    #[command(flatten)]
    node: Node,
}

/// Runs as an agent with the arguments of `Agent::start`, and returns when the agent ends. The caller must have a
/// single thread.
pub fn run(arguments: impl Iterator<Item = String>) -> Result<(), String> {
    let arguments = Arguments::parse_from(arguments);
    process::end_with_parent().map_err(|error| error.to_string())?;
    let netns = netns::open(&arguments.netns).map_err(|error| error.to_string())?;
    netns::enter(&netns).map_err(|error| error.to_string())?;
    node::run(&arguments.node).map_err(|error| error.to_string())
}

/// An agent. The agent ends when this value is dropped.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) process: Process,
    pub(super) socket: PathBuf,
    log: PathBuf,
}

impl Agent {
    /// Starts the agent of a node, with its files in `folder`, and waits until it has read its datastore.
    pub(super) fn start(
        folder: &Path,
        name: &str,
        shape: Shape,
        holds_receiver: bool,
    ) -> Result<Self, Error> {
        let socket = folder.join(format!("{name}.sock"));
        let log = folder.join(format!("{name}.log"));
        let out = File::create(&log).map_err(io("no log for the agent"))?;
        let error = out.try_clone().map_err(io("no log for the agent"))?;
        let mut command = Command::new("/proc/self/exe");
        command.arg(AGENT).arg("--netns").arg(folder.join(name));
        command.args(["--name", name, "--uplink", "eth0"]);
        command.arg("--datastore").arg(folder.join(MANIFESTS));
        command.arg("--socket").arg(&socket);
        command.args(arguments(shape, holds_receiver));
        // Environment variables that configure an agent of the user must not configure this one.
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"MANX_") {
                command.env_remove(name);
            }
        }
        let process = Process::start(command.stdin(Stdio::null()).stdout(out).stderr(error))?;
        let mut agent = Self { process, socket, log };
        agent.wait_until("its datastore is read", |status| status.in_sync)?;
        Ok(agent)
    }

    pub(super) fn status(&self) -> Result<Status, Error> {
        Ok(Client::connect(&self.socket)?.status()?)
    }

    /// Waits until `ready` accepts the status.
    pub(super) fn wait_until(
        &mut self,
        what: &str,
        ready: impl Fn(&Status) -> bool,
    ) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            if self.status().is_ok_and(|status| ready(&status)) {
                return Ok(());
            }
            let ended = self.process.ended()?;
            if ended.is_some() || start.elapsed() > PATIENCE {
                return Err(Error::Process {
                    what: match ended {
                        Some(status) => format!("the agent ended before {what}: {status}"),
                        None => format!("after {PATIENCE:?} it is not so that {what}"),
                    },
                    log: tail(&self.log),
                });
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The user and system time of the process, in seconds (`proc(5)`, stat: fields 14 and 15, in ticks).
    pub(super) fn cpu_seconds(&self) -> Result<f64, Error> {
        let text = self.proc_file("stat")?;
        // The name in parentheses may contain spaces, so fields are counted from its end, starting with 3.
        let fields: Vec<&str> =
            text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
        let ticks = |field: usize| fields.get(field - 3).and_then(|text| text.parse::<f64>().ok());
        let hertz = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)
            .map_err(errno("the length of a tick is unknown"))?
            .unwrap_or(100);
        Ok((ticks(14).unwrap_or(0.0) + ticks(15).unwrap_or(0.0)) / hertz as f64)
    }

    /// The resident memory of the process, in MiB.
    pub(super) fn resident_mib(&self) -> Result<f64, Error> {
        let text = self.proc_file("status")?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        Ok(kib.unwrap_or(0.0) / 1024.0)
    }

    fn proc_file(&self, name: &str) -> Result<String, Error> {
        let path = format!("/proc/{}/{name}", self.process.id());
        fs::read_to_string(&path).map_err(io(path.clone()))
    }
}

/// The options of `manx node` that follow from the shape.
fn arguments(shape: Shape, holds_receiver: bool) -> Vec<String> {
    let polling = match shape.polling {
        Polling::Adaptive => "adaptive",
        Polling::Busy => "busy",
    };
    let workers = shape.workers.to_string();
    let options = ["--pod-device", shape.device.name(), "--poll", polling, "--workers", &workers];
    let mut options: Vec<String> = options.map(str::to_owned).into();
    if shape.translation != Translation::Off {
        let services = ["--services", "manx", "--service-cidr", SERVICE_RANGE];
        options.extend(services.map(str::to_owned));
    }
    let cores = shape.cores.worker_cores(holds_receiver, shape.workers);
    if !cores.is_empty() {
        let cores: Vec<String> = cores.iter().map(ToString::to_string).collect();
        options.extend(["--pin".to_owned(), cores.join(",")]);
    }
    options
}
