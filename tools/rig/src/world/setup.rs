//! The files that the caller writes into the rig's folder for the processes inside, and the files
//! that these processes write for later callers.

use std::fs;
use std::path::PathBuf;

use manx_linux::whole_file;
use serde::{Deserialize, Serialize};

use super::workdir::{Workdir, WorkdirError};
use crate::plan::settings::Settings;

/// The input from which the rig is built.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Setup {
    /// The directory or file of the objects, or `-`, for messages.
    pub source: PathBuf,
    /// `rig.yaml`.
    pub settings: Settings,
    /// Additional arguments for every agent.
    pub agent_arguments: Vec<String>,
    /// The folder for exports.
    pub exports: PathBuf,
    /// Whether the nodes are connected to the caller's network ([`pasta`](super::pasta)).
    pub pasta: bool,
}

/// The state of a running rig for `manx rig list` and `manx rig status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    pub name: String,
    /// The directory or file of the objects, or `-`.
    pub source: PathBuf,
    /// The time when the rig was built, in seconds since the Unix epoch.
    pub built_s: u64,
    pub nodes: Vec<NodeState>,
    pub pods: Vec<PodState>,
    /// The pods on their nodes' network.
    pub host_pods: Vec<HostPodState>,
    /// The outside host's addresses.
    pub outside: Vec<std::net::IpAddr>,
}

/// A node of a running rig.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    pub name: String,
    pub addresses: Vec<std::net::IpAddr>,
    /// The socket of the node's agent.
    pub socket: PathBuf,
}

/// A pod of a running rig.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodState {
    pub name: manx_api::PodName,
    pub node: String,
    pub addresses: Vec<std::net::IpAddr>,
    /// The device by which the pod is attached.
    pub device: manx_api::Device,
}

/// A pod on its node's network. It has the node's addresses and namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPodState {
    pub name: manx_api::PodName,
    pub node: String,
}

impl Setup {
    /// Writes the setup into the folder.
    pub fn write(&self, workdir: &Workdir) -> Result<(), WorkdirError> {
        write(&workdir.setup(), self)
    }

    pub fn read(workdir: &Workdir) -> Result<Self, WorkdirError> {
        read(&workdir.setup())
    }
}

impl State {
    /// Writes the state into the folder.
    pub fn write(&self, workdir: &Workdir) -> Result<(), WorkdirError> {
        write(&workdir.state(), self)
    }

    pub fn read(workdir: &Workdir) -> Result<Self, WorkdirError> {
        read(&workdir.state())
    }
}

fn write(path: &std::path::Path, value: &impl Serialize) -> Result<(), WorkdirError> {
    let file = |source| WorkdirError::File { path: path.to_owned(), source };
    let text = serde_json::to_vec_pretty(value).map_err(|error| file(error.into()))?;
    whole_file::replace(path, &text).map_err(file)
}

fn read<T: for<'de> Deserialize<'de>>(path: &std::path::Path) -> Result<T, WorkdirError> {
    let file = |source| WorkdirError::File { path: path.to_owned(), source };
    let text = fs::read(path).map_err(file)?;
    serde_json::from_slice(&text).map_err(|error| file(error.into()))
}
