//! What an agent is told at its start.

use std::path::PathBuf;

use manx_dataplane::tables::Connections;
use manx_dataplane::worker::Polling;

use manx_datastore::api_server::Access;
use manx_devices::pod_device;
use manx_objects::object::ObjectKey;
pub use manx_observe::Addresses;

/// Where the objects are.
#[derive(Debug, Clone)]
pub enum Datastore {
    /// In a directory of manifests.
    Directory(PathBuf),
    /// At an API server.
    Kubernetes {
        /// How it is reached.
        access: Box<Access>,
        /// The file with the last state, for a start while the server does not answer.
        state: PathBuf,
        /// The service account as which it asks: when that is deleted, Manx is gone from the cluster.
        account: Option<ObjectKey>,
    },
}

/// Who translates service addresses to endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Services {
    /// Nobody: a service address is an address of the world.
    None,
    /// kube-proxy, in the node's kernel.
    KubeProxy,
}

/// Whose network the node's pods are in: who makes their interfaces, gives them addresses, and reaches other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// That of Manx.
    Manx,
    /// Another CNI plugin's. Manx only judges.
    OtherPlugin,
}

/// What an agent is told at its start.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The name of its Node.
    pub name: String,
    /// Where the objects are.
    pub datastore: Datastore,
    /// Where it serves its health and its metrics, beside its health at a socket.
    pub observed_at: Addresses,
    /// Where it listens.
    pub socket: PathBuf,
    /// Whether it waits for the end of an agent that listens there. Else it does not start beside one.
    pub standby: bool,
    /// The interface to other nodes; `None`: the one that has the Node's address.
    pub uplink: Option<String>,
    /// Whether tunnel packets use a packet socket on the uplink, or only the raw socket.
    pub packet_socket: bool,
    /// Who translates service addresses.
    pub services: Services,
    /// Whose network the pods are in.
    pub network: Network,
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
    /// Is called when the start went well.
    pub tell_ready: fn(),
}
