//! The settings of an agent.

use std::path::PathBuf;

use ipnet::IpNet;
use manx_analysis::services::{AgentSettings, Translates};
use manx_dataplane::tables::TrackingSettings;
use manx_dataplane::worker::Polling;

pub use crate::port_rules::PortRanges;
use manx_datastore::api_server::Access;
use manx_devices::pod_device;
pub use manx_ipam::plan::Ipam;
use manx_linux::autodetect::Wanted;
pub use manx_linux::netlink::PortRange;
use manx_objects::object::ObjectKey;
pub use manx_observe::Addresses;

/// The source of the objects.
#[derive(Debug, Clone)]
pub enum Datastore {
    /// A directory of manifests.
    Directory(PathBuf),
    /// An API server.
    Kubernetes {
        /// The server's address and the credentials for it.
        access: Box<Access>,
        /// The file with the last known state, which a start uses while the server does not answer.
        state: PathBuf,
        /// The agent's service account. Its deletion means that Manx is removed from the cluster.
        account: Option<ObjectKey>,
    },
}

/// The program that translates service addresses to endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceTranslator {
    /// No program translates. A service address is treated like any address outside of the cluster.
    None,
    /// kube-proxy, in the node's kernel.
    KubeProxy,
    Manx(ManxTranslationSettings),
}

/// The settings of Manx's own translation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManxTranslationSettings {
    /// The ranges of cluster IPs. They are used if the cluster has no `ServiceCIDR`.
    pub ranges: Vec<IpNet>,
    /// The nets from which Services may have `externalIPs`.
    pub external_ips: Vec<IpNet>,
    /// The nets of the node's addresses that have node ports. If empty, its first address of each family has them.
    pub node_port_nets: Vec<IpNet>,
    /// The ports of the node's addresses that are Manx's.
    pub ports: PortRanges,
}

/// The owner of the pod network, which makes interfaces, gives out addresses and reaches other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    Manx,
    /// Another CNI plugin. Manx only judges packets.
    OtherPlugin,
}

/// The settings for the node's IPv4 address and for its IPv6 address. `None`: the Node's object gives the address.
pub type NodeAddressSettings = [Option<Wanted>; 2];

#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct Settings {
    /// The name of the agent's Node.
    pub name: String,
    pub datastore: Datastore,
    /// The addresses of the agent's health and metrics. The agent also serves its health at a socket.
    pub observed_at: Addresses,
    /// The path of the agent's socket.
    pub socket: PathBuf,
    /// Whether the agent waits until another agent that listens at this path has ended. Otherwise it does not start
    /// while there is another agent.
    pub standby: bool,
    /// The settings for the addresses by which other nodes reach this one.
    pub addresses: NodeAddressSettings,
    /// The interface to other nodes. `None`: the one with the Node's address.
    pub uplink: Option<String>,
    /// Whether tunnel packets use a packet socket on the uplink, or only the raw socket.
    pub packet_socket: bool,
    pub services: ServiceTranslator,
    pub network: Network,
    /// The allocator of pods' addresses, if the network is Manx's.
    pub ipam: Ipam,
    /// Whether the node speaks BGP.
    pub bgp: bool,
    pub pod_device: pod_device::Preference,
    /// Whether workers sleep when they have nothing to do.
    pub polling: Polling,
    /// One entry for each worker: the core to which it is pinned, if any.
    pub cores: Vec<Option<usize>>,
    /// The settings of connection tracking.
    pub connections: TrackingSettings,
    /// Whether tables are proved before they are published.
    pub verify_tables: bool,
    /// A function that is called when the agent has started.
    pub report_ready: fn(),
}

impl ServiceTranslator {
    /// The program that translates services, in the form that explanations need. `None` if there is none.
    pub fn translates(&self) -> Option<Translates> {
        match self {
            Self::None => None,
            Self::KubeProxy => Some(Translates::KubeProxy),
            Self::Manx(ManxTranslationSettings { external_ips, ports, .. }) => {
                let node_ports = (ports.node_ports.first(), ports.node_ports.last());
                let external_ips = external_ips.clone();
                Some(Translates::Manx(AgentSettings { node_ports, external_ips }))
            }
        }
    }
}

impl Settings {
    /// Whether packets that the node forwards are sent to Manx: to its pods, or to services that it translates. If another
    /// plugin connects the pods, the node reaches each pod by the pod's own link.
    pub fn takes_forwarded(&self) -> bool {
        self.network == Network::Manx || matches!(self.services, ServiceTranslator::Manx(_))
    }
}
