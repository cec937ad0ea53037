//! The message for each missing capability of the environment.

use serde::{Deserialize, Serialize};

/// A capability that this program may need from its environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Capability {
    /// A kernel that is new enough.
    Kernel,
    /// A user namespace in which this user is root, and which keeps its capabilities.
    UserNamespaces,
    /// Network, mount, pid, IPC and host name namespaces, and interfaces and mounts in them.
    NetworkNamespaces,
    /// The settings of such namespaces, under `/proc/sys/net`, can be written.
    Settings,
    /// Folders for rigs and for their results.
    Folders,
    /// `/dev/net/tun` opens and makes devices that carry TCP super-packets.
    Tun,
    /// TUN devices carry UDP super-packets too.
    TunUdpOffload,
    /// Packet sockets with virtio-net headers.
    PacketSockets,
    /// Raw IP sockets of protocol 4.
    RawSockets,
    /// Routing rules that name ports, before the rule for the node's own addresses.
    PortRules,
    /// The kernel does not decapsulate IPIP itself.
    NoIpipModule,
    Ipv6,
    /// BGP's port is free, and this process may listen there.
    BgpPort,
    /// `io_uring_setup(2)`.
    IoUring,
    /// A core for the worker, and one for everything else.
    Cores,
}

impl Capability {
    /// The name in tables and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::UserNamespaces => "user-namespaces",
            Self::NetworkNamespaces => "network-namespaces",
            Self::Settings => "settings",
            Self::Folders => "folders",
            Self::Tun => "tun",
            Self::TunUdpOffload => "tun-udp-offload",
            Self::PacketSockets => "packet-sockets",
            Self::RawSockets => "raw-sockets",
            Self::PortRules => "port-rules",
            Self::NoIpipModule => "no-ipip-module",
            Self::Ipv6 => "ipv6",
            Self::BgpPort => "bgp-port",
            Self::IoUring => "io-uring",
            Self::Cores => "cores",
        }
    }

    /// Whether the rig cannot run at all without this capability.
    pub const fn needed_by_rig(self) -> bool {
        match self {
            Self::UserNamespaces
            | Self::NetworkNamespaces
            | Self::Settings
            | Self::Folders
            | Self::PacketSockets
            | Self::RawSockets
            | Self::NoIpipModule => true,
            Self::Kernel
            | Self::Tun
            | Self::TunUdpOffload
            | Self::PortRules
            | Self::Ipv6
            | Self::BgpPort
            | Self::IoUring
            | Self::Cores => false,
        }
    }
}

/// A missing capability. Its text is the message of every command that needs the capability.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{found}: {cost}; {remedy}")]
pub struct Lack {
    pub capability: Capability,
    pub found: String,
    /// The consequence.
    pub cost: String,
    /// The command that provides the capability, or other advice.
    pub remedy: String,
}

/// The result of one check: a text about what was found, or the missing capability.
pub type Check = Result<String, Lack>;
