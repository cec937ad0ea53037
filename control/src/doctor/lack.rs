//! The one sentence about something that the environment does not allow.

use std::fmt;

use serde::Serialize;

/// What this program may need of its environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Capability {
    /// A user namespace in which this user is root, and which keeps its capabilities.
    UserNamespaces,
    /// A network namespace, and a mount namespace to name it in.
    NetworkNamespaces,
    /// `/dev/net/tun` opens.
    Tun,
    /// TUN devices carry virtio-net headers: TCP super-packets.
    TunTcpOffload,
    /// TUN devices carry UDP super-packets.
    TunUdpOffload,
    /// Packet sockets, with virtio-net headers.
    PacketSockets,
    /// Raw IP sockets of protocol 4.
    RawSockets,
    /// The kernel does not decapsulate IPIP itself.
    NoIpipModule,
    /// `io_uring_setup(2)`.
    IoUring,
    /// A core for each worker.
    Cores,
}

impl Capability {
    /// The name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::UserNamespaces => "user-namespaces",
            Self::NetworkNamespaces => "network-namespaces",
            Self::Tun => "tun",
            Self::TunTcpOffload => "tun-tcp-offload",
            Self::TunUdpOffload => "tun-udp-offload",
            Self::PacketSockets => "packet-sockets",
            Self::RawSockets => "raw-sockets",
            Self::NoIpipModule => "no-ipip-module",
            Self::IoUring => "io-uring",
            Self::Cores => "cores",
        }
    }
}

/// A capability that is missing. Its text is what every command that needs it says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
pub struct Lack {
    /// What is missing.
    pub capability: Capability,
    /// What was found.
    pub found: String,
    /// What it costs.
    pub cost: String,
    /// The command that gets it, or what else to do.
    pub remedy: String,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.found, self.cost, self.remedy)
    }
}
