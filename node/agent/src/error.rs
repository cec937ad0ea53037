//! Why an agent cannot start or go on.

use std::fmt::Display;
use std::io;
use std::net::IpAddr;

use manx_api::ErrorKind;
use manx_calculation::topology::TopologyError;
use manx_datastore::SourceError;
use manx_linux::doctor::Lack;
use manx_linux::netlink;
use manx_linux::{netns, socket};

use manx_devices::device;

/// Why an agent cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The Node object is missing or of no use.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The objects cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// No interface has the node's address.
    #[error(
        "no interface has an address of Node {node} ({}): found {}; name the interface that leads to the other nodes by --uplink, or \
         correct status.addresses of the Node", list(.wanted), list(.found)
    )]
    NoUplink {
        /// The node.
        node: String,
        /// Its addresses.
        wanted: Vec<IpAddr>,
        /// The addresses of interfaces.
        found: Vec<IpAddr>,
    },
    /// The uplink leads nowhere.
    #[error(
        "{0} is the loopback interface: expected the one that leads to the other nodes; name it by --uplink"
    )]
    Loopback(String),
    /// No such core.
    #[error("a worker cannot be pinned to core {asked}: this process may use {}; name one by --pin", list(.usable))]
    Core {
        /// The core that was asked for.
        asked: usize,
        /// Those that there are.
        usable: Vec<usize>,
    },
    /// The kernel takes packets of pods that come back from kube-proxy for forged.
    #[error(
        "net.ipv4.conf.all.rp_filter is 1, so the kernel would drop what kube-proxy has translated: expected 0 or 2 for --services kube-proxy; \
         sysctl -w net.ipv4.conf.all.rp_filter=2"
    )]
    StrictReversePath,
    /// An interface or route could not be made.
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    /// The agent's own namespace could not be made.
    #[error(transparent)]
    Namespace(#[from] netns::Error),
    /// The socket could not be opened.
    #[error(transparent)]
    Socket(#[from] socket::Error),
    /// The file of addresses could not be opened.
    #[error(transparent)]
    Addresses(#[from] manx_ipam::host_local::Error),
    /// The devices could not be made.
    #[error(transparent)]
    Devices(#[from] device::Error),
    /// The lock of who moves ends of pods' links.
    #[error(transparent)]
    Shelter(#[from] manx_devices::shelter::Error),
    /// The environment lacks something.
    #[error(transparent)]
    Lack(#[from] Lack),
    /// The capabilities could not be given up.
    #[error("the capabilities that the agent does not need cannot be given up: {0}")]
    Capabilities(io::Error),
    /// The worker could not be started.
    #[error("the workers could not be started: {0}")]
    Worker(io::Error),
    /// The runtime could not be made.
    #[error("the control thread's runtime could not be made: {0}")]
    Runtime(io::Error),
    /// The worker has ended.
    #[error("a worker has ended: its share of the packets is forwarded no more")]
    WorkerGone,
    /// A port of the node itself failed: an agent without it would look alive and pass only part of the traffic.
    #[error("the device of the node's port {port} failed: {source}; start the agent anew")]
    NodePortLost {
        /// The port's name.
        port: String,
        /// Why.
        source: io::Error,
    },
    /// No port number is free.
    #[error("all 65,536 port numbers are in use: detach pods")]
    PortsExhausted,
}

impl Error {
    /// The kind, as the agent's socket and the exit code tell it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Socket(socket::Error::Folder(_) | socket::Error::Listen { .. })
            | Self::StrictReversePath
            | Self::Netlink(_)
            | Self::Namespace(_)
            | Self::Shelter(_)
            | Self::Lack(_)
            | Self::NodePortLost { .. } => ErrorKind::Environment,
            Self::Topology(_)
            | Self::Source(_)
            | Self::NoUplink { .. }
            | Self::Loopback(_)
            | Self::Core { .. }
            | Self::Socket(_) => ErrorKind::Invalid,
            Self::Addresses(error) => error.kind(),
            Self::Devices(error) => error.kind(),
            Self::Capabilities(_)
            | Self::Worker(_)
            | Self::Runtime(_)
            | Self::WorkerGone
            | Self::PortsExhausted => ErrorKind::Internal,
        }
    }
}

fn list(items: &[impl Display]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<String>>().join(", ")
}
