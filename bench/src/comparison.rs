//! The pairs: what is sent, beside what, and what is hoped for.

use std::time::Duration;

use manx_api::Device;
use manx_dataplane::worker::Polling;

use crate::agents::Overlay;
use crate::cores::Cores;
use crate::error::Error;
use crate::filter::Filter;
use crate::goal::Goal;
use crate::ground::{Ground, Paths};
use crate::kernel::Ends;
use crate::path::Path;
use crate::statistics::Pair;
use crate::switch::Switch;
use crate::traffic;

/// How long what was halted may take to carry packets again.
const CATCH_UP: Duration = Duration::from_secs(5);

/// What is sent, and what is measured of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Traffic {
    /// This many TCP streams; gigabits per second.
    Streams(usize),
    /// Small UDP packets one way; millions per second that arrived.
    Flood,
    /// UDP, one packet in flight; the round trip in microseconds that so many of a hundred are faster than.
    PingPong(u8),
}

/// A comparison.
#[derive(Debug, Clone, Copy)]
pub struct Comparison {
    /// What it is called on the command line.
    pub name: &'static str,
    /// Where it is measured.
    pub ground: Ground,
    traffic: Traffic,
    /// What is hoped for.
    pub goal: Option<Goal>,
}

const fn row(
    name: &'static str,
    ground: Ground,
    traffic: Traffic,
    goal: Option<Goal>,
) -> Comparison {
    Comparison { name, ground, traffic, goal }
}

const fn across(overlay: Overlay, whole: bool, ends: Ends) -> Ground {
    Ground::AcrossNodes { overlay, whole, ends }
}

const IPIP: Ground = across(Overlay::Ipip, false, Ends::Nodes);
const IPIP_PODS: Ground = across(Overlay::Ipip, false, Ends::Pods);
const VXLAN: Ground = across(Overlay::Vxlan, false, Ends::Nodes);
const VXLAN_PODS: Ground = across(Overlay::Vxlan, false, Ends::Pods);
const VXLAN_WHOLE: Ground = across(Overlay::Vxlan, true, Ends::Nodes);
const VXLAN_WHOLE_PODS: Ground = across(Overlay::Vxlan, true, Ends::Pods);
const FREE: Ground = Ground::SameNode(None);
const NFTABLES: Ground = Ground::SameNode(Some(Filter::Nftables));
const IPTABLES: Ground = Ground::SameNode(Some(Filter::Iptables));
const TUN: Ground = Ground::Bare(Device::Tun);
const VETH: Ground = Ground::Bare(Device::Veth);
const BUSY: Ground = Ground::Apart(Polling::Busy);
const ADAPTIVE: Ground = Ground::Apart(Polling::Adaptive);

const OVS: Ground = Ground::Switch(Switch::OpenVSwitch { super_packets: false });
const OVS_SUPER: Ground = Ground::Switch(Switch::OpenVSwitch { super_packets: true });
const DPDK: Ground = Ground::Switch(Switch::Testpmd);

const STREAM: Traffic = Traffic::Streams(1);
const STREAMS: Traffic = Traffic::Streams(4);
const PACKETS: Traffic = Traffic::Flood;
const MEDIAN: Traffic = Traffic::PingPong(50);
const P99: Traffic = Traffic::PingPong(99);

/// All, those of one ground together, in the order of the report.
#[rustfmt::skip]
pub const ALL: &[Comparison] = &[
    row("stream", FREE, STREAM, Some(Goal::AtLeast(0.7))),
    row("packets", FREE, PACKETS, Some(Goal::AtLeast(0.5))),
    row("latency", FREE, MEDIAN, None),
    row("nft-stream", NFTABLES, STREAM, Some(Goal::AtLeast(0.95))),
    row("nft-streams", NFTABLES, STREAMS, Some(Goal::AtLeast(0.95))),
    row("nft-packets", NFTABLES, PACKETS, Some(Goal::AtLeast(8.0))),
    row("iptables-packets", IPTABLES, PACKETS, Some(Goal::AtLeast(3.0))),
    row("tunnel", IPIP, STREAM, Some(Goal::AtLeast(1.0))),
    row("tunnel-latency", IPIP, MEDIAN, None),
    row("tunnel-pods", IPIP_PODS, STREAM, Some(Goal::AtLeast(1.0))),
    row("vxlan", VXLAN, STREAM, Some(Goal::AtLeast(1.2))),
    row("vxlan-latency", VXLAN, MEDIAN, None),
    row("vxlan-pods", VXLAN_PODS, STREAM, Some(Goal::AtLeast(1.2))),
    row("vxlan-whole", VXLAN_WHOLE, STREAM, Some(Goal::AtLeast(0.8))),
    row("vxlan-whole-pods", VXLAN_WHOLE_PODS, STREAM, Some(Goal::AtLeast(0.8))),
    row("crowd-stream", Ground::Crowd, STREAM, Some(Goal::AtLeast(0.95))),
    row("crowd-packets", Ground::Crowd, PACKETS, Some(Goal::AtLeast(0.95))),
    row("crowd-latency", Ground::Crowd, MEDIAN, None),
    row("bare-stream", TUN, STREAM, Some(Goal::AtLeast(0.9))),
    row("bare-streams", TUN, STREAMS, Some(Goal::AtLeast(0.9))),
    row("bare-packets", TUN, PACKETS, Some(Goal::AtLeast(0.9))),
    row("bare-veth-stream", VETH, STREAM, Some(Goal::AtLeast(0.9))),
    row("bare-veth-packets", VETH, PACKETS, Some(Goal::AtLeast(0.9))),
    row("bare-vxlan", Ground::BareTunnel, STREAM, None),
    row("bare-busy-p50", BUSY, MEDIAN, Some(Goal::AtMost(1.2))),
    row("bare-busy-p99", BUSY, P99, Some(Goal::AtMost(1.5))),
    row("bare-adaptive-p50", ADAPTIVE, MEDIAN, Some(Goal::AtMost(1.2))),
    row("bare-adaptive-p99", ADAPTIVE, P99, Some(Goal::AtMost(2.0))),
    row("ovs-stream", OVS_SUPER, STREAM, Some(Goal::AtLeast(1.0))),
    row("ovs-packets", OVS, PACKETS, Some(Goal::AtLeast(1.0))),
    row("ovs-latency", OVS, MEDIAN, Some(Goal::AtMost(1.0))),
    row("dpdk-stream", DPDK, STREAM, Some(Goal::AtLeast(1.0))),
    row("dpdk-packets", DPDK, PACKETS, Some(Goal::AtLeast(1.0))),
    row("dpdk-latency", DPDK, MEDIAN, Some(Goal::AtMost(1.0))),
];

impl Traffic {
    /// What is measured, and in what.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Streams(1) => ("TCP, one stream", "Gbit/s"),
            Self::Streams(_) => ("TCP, four streams", "Gbit/s"),
            Self::Flood => ("UDP one way, 64-byte packets that arrived", "Mpps"),
            Self::PingPong(50) => ("UDP ping-pong, median round trip", "us"),
            Self::PingPong(_) => ("UDP ping-pong, p99 round trip", "us"),
        }
    }
}

impl Comparison {
    /// What is measured.
    pub const fn what(&self) -> &'static str {
        self.traffic.words().0
    }

    /// In what.
    pub const fn unit(&self) -> &'static str {
        self.traffic.words().1
    }

    /// All of it in words.
    pub fn words(&self) -> String {
        format!("{}: {}, {}", self.ground.words(), self.what(), self.unit())
    }

    fn measure(&self, path: &Path, length: Duration, cores: Cores) -> Result<f64, Error> {
        match self.traffic {
            Traffic::Streams(count) => traffic::streams(path, count, length, cores),
            Traffic::Flood => traffic::flood(path, length, cores),
            Traffic::PingPong(of_100) => traffic::ping_pong(path, of_100, length, cores),
        }
    }

    /// One measurement of each side, Manx's last, the other halted meanwhile.
    pub fn pair(&self, paths: &Paths, length: Duration) -> Result<Pair, Error> {
        paths.manx.let_run(false)?;
        paths.beside.let_run(true)?;
        traffic::wait_until_carried(&paths.beside, CATCH_UP)?;
        let beside = self.measure(&paths.beside, length, paths.cores)?;
        paths.beside.let_run(false)?;
        paths.manx.let_run(true)?;
        traffic::wait_until_carried(&paths.manx, CATCH_UP)?;
        let manx = self.measure(&paths.manx, length, paths.cores)?;
        Ok(Pair { beside, manx })
    }
}
