//! The pairs: what of the kernel's stands beside what of Manx's, by which traffic, and what is hoped for.

use std::time::Duration;

use clap::ValueEnum;

use crate::agents::{self, Overlay, Shape};
use crate::cores::Cores;
use crate::error::Error;
use crate::kernel;
use crate::path::{Between, Path};
use crate::statistics::Pair;
use crate::traffic;

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Comparison {
    /// One TCP stream on one node, beside kernel routing between veths, MTU 1500
    Stream,
    /// Small UDP packets one way on one node, beside kernel routing
    Packets,
    /// UDP ping-pong on one node, beside kernel routing
    Latency,
    /// One TCP stream across nodes by IPIP, beside a kernel VXLAN device
    Tunnel,
    /// UDP ping-pong across nodes by IPIP, beside a kernel VXLAN device
    TunnelLatency,
    /// One TCP stream across nodes by VXLAN, beside a kernel VXLAN device
    Vxlan,
    /// UDP ping-pong across nodes by VXLAN, beside a kernel VXLAN device
    VxlanLatency,
    /// One TCP stream across nodes by VXLAN, beside a kernel VXLAN device whose super-packets cross the veth whole
    VxlanWhole,
}

/// What of an underlay or a node is compared: two comparisons with the same ground share their paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ground {
    /// Both ends on one node.
    SameNode,
    /// The ends on two nodes.
    AcrossNodes {
        /// By what Manx carries the packets.
        overlay: Overlay,
        /// Whether the kernel's side hands super-packets over whole.
        whole: bool,
    },
}

impl Ground {
    /// All, in the order of the report.
    pub const ALL: [Self; 4] = [
        Self::SameNode,
        Self::AcrossNodes { overlay: Overlay::Ipip, whole: false },
        Self::AcrossNodes { overlay: Overlay::Vxlan, whole: false },
        Self::AcrossNodes { overlay: Overlay::Vxlan, whole: true },
    ];
}

impl Comparison {
    /// Where it is measured.
    pub const fn ground(self) -> Ground {
        match self {
            Self::Stream | Self::Packets | Self::Latency => Ground::SameNode,
            Self::Tunnel | Self::TunnelLatency => {
                Ground::AcrossNodes { overlay: Overlay::Ipip, whole: false }
            }
            Self::Vxlan | Self::VxlanLatency => {
                Ground::AcrossNodes { overlay: Overlay::Vxlan, whole: false }
            }
            Self::VxlanWhole => Ground::AcrossNodes { overlay: Overlay::Vxlan, whole: true },
        }
    }

    /// What is measured, and in what unit.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Stream => "same node, TCP, one stream, Gbit/s",
            Self::Packets => "same node, UDP one way, 64-byte packets, Mpps that arrived",
            Self::Latency => "same node, UDP ping-pong, median round trip, us",
            Self::Tunnel => "across nodes, IPIP, TCP, one stream, Gbit/s",
            Self::TunnelLatency => "across nodes, IPIP, UDP ping-pong, median round trip, us",
            Self::Vxlan => "across nodes, VXLAN, TCP, one stream, Gbit/s",
            Self::VxlanLatency => "across nodes, VXLAN, UDP ping-pong, median round trip, us",
            Self::VxlanWhole => "the same, kernel's super-packets whole, TCP, one stream, Gbit/s",
        }
    }

    /// The least (for times: no) ratio of Manx to the kernel that is hoped for.
    pub const fn goal(self) -> Option<f64> {
        match self {
            Self::Stream => Some(0.7),
            Self::Packets | Self::Tunnel => Some(0.5),
            Self::Vxlan => Some(1.2),
            Self::VxlanWhole => Some(0.8),
            Self::Latency | Self::TunnelLatency | Self::VxlanLatency => None,
        }
    }

    fn measure(self, path: &Path, length: Duration, cores: Cores) -> Result<f64, Error> {
        match self {
            Self::Stream | Self::Tunnel | Self::Vxlan | Self::VxlanWhole => {
                traffic::stream(path, length, cores)
            }
            Self::Packets => traffic::flood(path, length, cores),
            Self::Latency | Self::TunnelLatency | Self::VxlanLatency => {
                traffic::ping_pong(path, length, cores)
            }
        }
    }

    /// One measurement of each side, the kernel's first.
    pub fn pair(self, paths: &Paths, length: Duration, cores: Cores) -> Result<Pair, Error> {
        let kernel = self.measure(&paths.kernel, length, cores)?;
        let manx = self.measure(&paths.manx, length, cores)?;
        Ok(Pair { kernel, manx })
    }
}

/// The two paths of one ground.
#[derive(Debug)]
pub struct Paths {
    /// The kernel's.
    pub kernel: Path,
    /// Manx's.
    pub manx: Path,
}

impl Paths {
    /// Builds both.
    pub fn build(ground: Ground, rules: usize, cores: Cores) -> Result<Self, Error> {
        let (kernel, across) = match ground {
            Ground::SameNode => (kernel::routing()?, None),
            Ground::AcrossNodes { overlay, whole } => (kernel::vxlan(whole)?, Some(overlay)),
        };
        let manx = agents::path(Shape { across, rules, cores })?;
        Ok(Self { kernel, manx })
    }

    /// What Manx's agents counted since they started, one line each; empty for a path that is not Manx's.
    pub fn accounts(&self) -> Result<Vec<String>, Error> {
        let Between::Manx(cluster) = &self.manx.between else { return Ok(Vec::new()) };
        Ok(cluster
            .statuses()?
            .iter()
            .map(|status| {
                let rules: Vec<String> = status
                    .rules
                    .iter()
                    .filter(|rule| rule.packets > 0)
                    .map(|rule| format!("{} {} {}", rule.packets, rule.verdict, rule.rule))
                    .collect();
                let mut drops = std::collections::BTreeMap::<&str, u64>::new();
                for (reason, count) in status.ports.iter().flat_map(|port| &port.drops) {
                    *drops.entry(reason).or_default() += count;
                }
                format!("{}: packets by rule: {}; drops: {drops:?}", status.node, rules.join(", "))
            })
            .collect())
    }
}
