//! The errors that end an agent, or keep it from starting.

use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use manx_api::ErrorKind;
use manx_calculation::topology::TopologyError;
use manx_datastore::SourceError;
use manx_linux::doctor::Lack;
use manx_linux::netlink;
use manx_linux::{netns, socket};

use manx_devices::device;

/// The reason why an agent cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The Node object is missing, or lacks what the agent needs.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The objects cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The node's ports cannot be claimed for Manx.
    #[error(transparent)]
    Ports(#[from] crate::translation_device::Error),
    /// No interface has the node's address.
    #[error(
        "no interface has an address of Node {node} ({}): found {}; name the interface that leads to the other nodes by --uplink, or \
         correct status.addresses of the Node", list(.wanted), list(.found)
    )]
    NoUplink {
        node: String,
        /// The addresses of the Node object.
        wanted: Vec<IpAddr>,
        /// The addresses of the interfaces.
        found: Vec<IpAddr>,
    },
    /// The node's address has changed, but the agent's sockets still use the former one.
    #[error(
        "the node's address has changed from {from} to {to}, and this agent's sockets are those of {from}: the next agent begins with {to}"
    )]
    AddressChanged { from: IpAddr, to: IpAddr },
    /// The uplink is the loopback interface.
    #[error(
        "{0} is the loopback interface: expected the one that leads to the other nodes; name it by --uplink"
    )]
    Loopback(String),
    /// A worker should be pinned to a core that this process may not use.
    #[error("a worker cannot be pinned to core {asked}: this process may use {}; name one by --pin", list(.usable))]
    Core { asked: usize, usable: Vec<usize> },
    /// The agent cannot listen for BGP.
    #[error(
        "TCP port {port} cannot be listened at for BGP: {source}; another BGP program of the node may have it (BIRD of calico-node): \
         end it, or name another listenPort in BGPConfiguration"
    )]
    Speaker { port: u16, source: io::Error },
    /// The kernel would drop pods' packets that kube-proxy has translated, because it treats their sources as forged.
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
    /// Calico's IPAM stores its objects at an API server, so it needs one.
    #[error(
        "--ipam calico (MANX_IPAM) needs an API server for blocks and handles, found the directory {}: use --ipam host-local",
        .0.display()
    )]
    NoPools(PathBuf),
    /// The devices could not be made.
    #[error(transparent)]
    Devices(#[from] device::Error),
    /// The lock for moving host ends of pods' links could not be made.
    #[error(transparent)]
    Shelter(#[from] manx_devices::shelter::Error),
    /// The environment lacks something.
    #[error(transparent)]
    Lack(#[from] Lack),
    /// The capabilities could not be given up.
    #[error("the capabilities that the agent does not need cannot be given up: {0}")]
    Capabilities(io::Error),
    /// The workers could not be started.
    #[error("the workers could not be started: {0}")]
    Worker(io::Error),
    /// The runtime could not be made.
    #[error("the control thread's runtime could not be made: {0}")]
    Runtime(io::Error),
    /// A worker has ended.
    #[error("a worker has ended: its share of the packets is forwarded no more")]
    WorkerGone,
    /// A port of the node itself failed. An agent without this port would look alive, and pass only part of the
    /// traffic.
    #[error("the device of the node's port {port} failed: {source}; start the agent anew")]
    NodePortLost { port: String, source: io::Error },
    /// No port number is free.
    #[error("all 65,536 port numbers are in use: detach pods")]
    PortsExhausted,
}

impl Error {
    /// The kind of error that the agent's socket and the exit code report.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Socket(socket::Error::Folder(_) | socket::Error::Listen { .. })
            | Self::StrictReversePath
            | Self::Netlink(_)
            | Self::Namespace(_)
            | Self::Shelter(_)
            | Self::Lack(_)
            | Self::Ports(_)
            | Self::AddressChanged { .. }
            | Self::NodePortLost { .. } => ErrorKind::Environment,
            Self::Topology(_)
            | Self::Source(_)
            | Self::NoUplink { .. }
            | Self::Loopback(_)
            | Self::NoPools(_)
            | Self::Core { .. }
            | Self::Speaker { .. }
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
