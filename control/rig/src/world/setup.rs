//! What the caller writes into the rig's folder for the processes inside, and what these write for later callers.

use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::workdir::{Workdir, WorkdirError};
use crate::plan::settings::Settings;

/// The input from which the rig is built.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Setup {
    /// The directory that the objects came from, for messages.
    pub source: PathBuf,
    /// `rig.yaml`.
    pub settings: Settings,
    /// More arguments for every agent.
    pub agent_arguments: Vec<String>,
    /// The folder for exports.
    pub exports: PathBuf,
}

/// What `manx rig list` and `manx rig status` show of a running rig.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The rig's name.
    pub name: String,
    /// The directory that the objects came from.
    pub source: PathBuf,
    /// Seconds since the Unix epoch when it was built.
    pub built_s: u64,
    /// The nodes.
    pub nodes: Vec<NodeState>,
    /// The pods.
    pub pods: Vec<PodState>,
    /// The pods on their nodes' network.
    pub host_pods: Vec<HostPodState>,
    /// The outside host's addresses.
    pub outside: Vec<std::net::IpAddr>,
}

/// A node of a running rig.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    /// Its name.
    pub name: String,
    /// Its addresses.
    pub addresses: Vec<std::net::IpAddr>,
    /// Its agent's socket.
    pub socket: PathBuf,
}

/// A pod of a running rig.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodState {
    /// Its name.
    pub name: manx_api::PodName,
    /// Its node.
    pub node: String,
    /// Its addresses.
    pub addresses: Vec<std::net::IpAddr>,
    /// How it is attached.
    pub device: manx_api::Device,
}

/// A pod on its node's network: it has the node's addresses and namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPodState {
    /// Its name.
    pub name: manx_api::PodName,
    /// Its node.
    pub node: String,
}

impl Setup {
    /// Writes it into the folder.
    pub fn write(&self, workdir: &Workdir) -> Result<(), WorkdirError> {
        write(&workdir.setup(), self)
    }

    /// Reads it.
    pub fn read(workdir: &Workdir) -> Result<Self, WorkdirError> {
        read(&workdir.setup())
    }
}

impl State {
    /// Writes it into the folder.
    pub fn write(&self, workdir: &Workdir) -> Result<(), WorkdirError> {
        write(&workdir.state(), self)
    }

    /// Reads it.
    pub fn read(workdir: &Workdir) -> Result<Self, WorkdirError> {
        read(&workdir.state())
    }
}

fn write(path: &std::path::Path, value: &impl Serialize) -> Result<(), WorkdirError> {
    let file = |source| WorkdirError::File { path: path.to_owned(), source };
    let text = serde_json::to_vec_pretty(value).map_err(|error| file(error.into()))?;
    let draft = path.with_extension("draft");
    fs::write(&draft, text).and_then(|()| fs::rename(&draft, path)).map_err(file)
}

fn read<T: for<'de> Deserialize<'de>>(path: &std::path::Path) -> Result<T, WorkdirError> {
    let file = |source| WorkdirError::File { path: path.to_owned(), source };
    let text = fs::read(path).map_err(file)?;
    serde_json::from_slice(&text).map_err(|error| file(error.into()))
}
