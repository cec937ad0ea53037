//! The pairs: what stands beside Manx, by which traffic, and what is hoped for.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::agents::{self, Overlay, Shape};
use crate::cores::Cores;
use crate::error::Error;
use crate::filter::Filter;
use crate::kernel;
use crate::path::{Between, Path};
use crate::statistics::Pair;
use crate::traffic;

/// What is sent, and what is measured of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Traffic {
    /// This many TCP streams; gigabits per second.
    Streams(usize),
    /// Small UDP packets one way; millions per second that arrived.
    Flood,
    /// UDP, one packet in flight; the median round trip in microseconds.
    PingPong,
}

/// Where something is measured: comparisons with the same ground share their paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ground {
    /// Both ends on one node; beside Manx kernel routing between veths, with a filter or without.
    SameNode(Option<Filter>),
    /// The ends on two nodes; beside Manx kernel VXLAN devices.
    AcrossNodes {
        /// By what Manx carries the packets.
        overlay: Overlay,
        /// Whether the kernel's side hands super-packets over whole.
        whole: bool,
    },
    /// Both ends on one node that has many pods more; beside it Manx with those two pods alone.
    Crowd,
}

/// Pods of a crowd besides the two ends.
pub const BYSTANDERS: usize = 248;

const IPIP: Ground = Ground::AcrossNodes { overlay: Overlay::Ipip, whole: false };
const VXLAN: Ground = Ground::AcrossNodes { overlay: Overlay::Vxlan, whole: false };
const VXLAN_WHOLE: Ground = Ground::AcrossNodes { overlay: Overlay::Vxlan, whole: true };
const FREE: Ground = Ground::SameNode(None);
const NFTABLES: Ground = Ground::SameNode(Some(Filter::Nftables));
const IPTABLES: Ground = Ground::SameNode(Some(Filter::Iptables));

/// A comparison.
#[derive(Debug, Clone, Copy)]
pub struct Comparison {
    /// What it is called on the command line.
    pub name: &'static str,
    /// Where it is measured.
    pub ground: Ground,
    traffic: Traffic,
    /// What is measured, beside what, and in what unit.
    pub words: &'static str,
    /// The least ratio of Manx to the other that is hoped for.
    pub goal: Option<f64>,
}

/// All, those of one ground together, in the order of the report.
#[rustfmt::skip]
pub const ALL: [Comparison; 15] = [
    Comparison { name: "stream", ground: FREE, traffic: Traffic::Streams(1), words: "same node, TCP, one stream, Gbit/s", goal: Some(0.7) },
    Comparison { name: "packets", ground: FREE, traffic: Traffic::Flood, words: "same node, UDP one way, 64-byte packets, Mpps that arrived", goal: Some(0.5) },
    Comparison { name: "latency", ground: FREE, traffic: Traffic::PingPong, words: "same node, UDP ping-pong, median round trip, us", goal: None },
    Comparison { name: "nft-stream", ground: NFTABLES, traffic: Traffic::Streams(1), words: "beside nftables: same node, TCP, one stream, Gbit/s", goal: Some(0.95) },
    Comparison { name: "nft-streams", ground: NFTABLES, traffic: Traffic::Streams(4), words: "beside nftables: same node, TCP, four streams, Gbit/s", goal: Some(0.95) },
    Comparison { name: "nft-packets", ground: NFTABLES, traffic: Traffic::Flood, words: "beside nftables: same node, UDP one way, 64-byte packets, Mpps that arrived", goal: Some(8.0) },
    Comparison { name: "iptables-packets", ground: IPTABLES, traffic: Traffic::Flood, words: "beside iptables: same node, UDP one way, 64-byte packets, Mpps that arrived", goal: Some(3.0) },
    Comparison { name: "tunnel", ground: IPIP, traffic: Traffic::Streams(1), words: "across nodes, IPIP, TCP, one stream, Gbit/s", goal: Some(0.5) },
    Comparison { name: "tunnel-latency", ground: IPIP, traffic: Traffic::PingPong, words: "across nodes, IPIP, UDP ping-pong, median round trip, us", goal: None },
    Comparison { name: "vxlan", ground: VXLAN, traffic: Traffic::Streams(1), words: "across nodes, VXLAN, TCP, one stream, Gbit/s", goal: Some(1.2) },
    Comparison { name: "vxlan-latency", ground: VXLAN, traffic: Traffic::PingPong, words: "across nodes, VXLAN, UDP ping-pong, median round trip, us", goal: None },
    Comparison { name: "vxlan-whole", ground: VXLAN_WHOLE, traffic: Traffic::Streams(1), words: "the same, kernel's super-packets whole, TCP, one stream, Gbit/s", goal: Some(0.8) },
    Comparison { name: "crowd-stream", ground: Ground::Crowd, traffic: Traffic::Streams(1), words: "250 pods beside 2 pods: TCP, one stream, Gbit/s", goal: Some(0.95) },
    Comparison { name: "crowd-packets", ground: Ground::Crowd, traffic: Traffic::Flood, words: "250 pods beside 2 pods: UDP one way, 64-byte packets, Mpps that arrived", goal: Some(0.95) },
    Comparison { name: "crowd-latency", ground: Ground::Crowd, traffic: Traffic::PingPong, words: "250 pods beside 2 pods: UDP ping-pong, median round trip, us", goal: None },
];

impl Comparison {
    fn measure(self, path: &Path, length: Duration, cores: Cores) -> Result<f64, Error> {
        match self.traffic {
            Traffic::Streams(count) => traffic::streams(path, count, length, cores),
            Traffic::Flood => traffic::flood(path, length, cores),
            Traffic::PingPong => traffic::ping_pong(path, length, cores),
        }
    }

    /// One measurement of each side, Manx's last.
    pub fn pair(self, paths: &Paths, length: Duration, cores: Cores) -> Result<Pair, Error> {
        let beside = self.measure(&paths.beside, length, cores)?;
        let manx = self.measure(&paths.manx, length, cores)?;
        Ok(Pair { beside, manx })
    }
}

impl Ground {
    /// Why nothing can be measured here, if so.
    pub fn is_missing(self) -> Option<String> {
        match self {
            Self::SameNode(filter) => filter?.is_missing(),
            Self::AcrossNodes { .. } | Self::Crowd => None,
        }
    }
}

/// The two paths of one ground.
#[derive(Debug)]
pub struct Paths {
    /// What Manx is compared with.
    pub beside: Path,
    /// Manx's.
    pub manx: Path,
}

impl Paths {
    /// Builds both; policies and filters hold this many rules besides the one that allows the traffic.
    pub fn build(ground: Ground, rules: usize, cores: Cores) -> Result<Self, Error> {
        let shape = Shape { across: None, bystanders: 0, rules, cores };
        let (beside, shape) = match ground {
            Ground::SameNode(filter) => {
                let path = kernel::routing()?;
                if let (Some(filter), Between::KernelRouting(router)) = (filter, &path.between) {
                    filter.load(router, rules)?;
                }
                (path, shape)
            }
            Ground::AcrossNodes { overlay, whole } => {
                (kernel::vxlan(whole)?, Shape { across: Some(overlay), ..shape })
            }
            Ground::Crowd => (agents::path(shape)?, Shape { bystanders: BYSTANDERS, ..shape }),
        };
        Ok(Self { beside, manx: agents::path(shape)? })
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
                let mut drops = BTreeMap::<&str, u64>::new();
                for (reason, count) in status.ports.iter().flat_map(|port| &port.drops) {
                    *drops.entry(reason).or_default() += count;
                }
                format!("{}: packets by rule: {}; drops: {drops:?}", status.node, rules.join(", "))
            })
            .collect())
    }
}
