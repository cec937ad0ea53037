//! What an agent is told at its start.

use std::path::PathBuf;

use manx_dataplane::tables::Connections;
use manx_dataplane::worker::Polling;

use super::pod_device;

/// What an agent is told at its start.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The name of its Node.
    pub name: String,
    /// The directory of manifests.
    pub datastore: PathBuf,
    /// Where it listens.
    pub socket: PathBuf,
    /// The interface to other nodes.
    pub uplink: String,
    /// Whether tunnel packets use a packet socket on the uplink, or only the raw socket.
    pub packet_socket: bool,
    /// How pods are attached.
    pub pod_device: pod_device::Preference,
    /// Whether workers sleep.
    pub polling: Polling,
    /// A worker for each; the core that it is pinned to.
    pub cores: Vec<Option<usize>>,
    /// How connections are followed.
    pub connections: Connections,
    /// Whether tables are proved before they are published.
    pub verify_tables: bool,
}
