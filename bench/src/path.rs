//! Two ends that can reach each other.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use tempfile::TempDir;

use crate::agents::Cluster;
use crate::error::Error;
use crate::process::Process;

/// One end of a path.
#[derive(Debug)]
pub struct End {
    /// The network namespace in which its sockets are opened.
    pub netns: OwnedFd,
    /// Its address.
    pub address: IpAddr,
}

/// What lies between the ends, and is held as long as the path.
#[derive(Debug)]
pub enum Between {
    /// A namespace that forwards, between two veth pairs.
    KernelRouting(OwnedFd),
    /// A VXLAN device in each of the ends themselves, over a veth pair; or in these namespaces, with the ends behind them.
    KernelVxlan(Vec<OwnedFd>),
    /// Node agents that hold the ends as their pods.
    Manx(Box<Cluster>),
    /// Processes that hand on what comes, and the folder of the namespaces' names.
    Bare(Vec<Process>, TempDir),
    /// Processes of a switch, and the folder of their files.
    Switch(Vec<Process>, TempDir),
}

/// Two ends, and what lies between them.
#[derive(Debug)]
pub struct Path {
    /// Where traffic starts.
    pub from: End,
    /// Where it goes.
    pub to: End,
    /// What carries it.
    pub between: Between,
}

impl Path {
    /// Lets what carries the path run, or halts it, so that it takes nothing from what is measured meanwhile. The kernel's
    /// own parts do nothing of themselves.
    pub fn let_run(&self, runs: bool) -> Result<(), Error> {
        match &self.between {
            Between::KernelRouting(_) | Between::KernelVxlan(_) => Ok(()),
            Between::Manx(cluster) => cluster.let_run(runs),
            Between::Bare(processes, _) | Between::Switch(processes, _) => {
                processes.iter().try_for_each(|process| process.let_run(runs))
            }
        }
    }
}
