//! The pairs: what is sent, beside what, and what is hoped for.

use std::fmt;
use std::time::Duration;

use manx::api::Device;
use manx_dataplane::worker::Polling;

use crate::agents::Overlay;
use crate::cores::Cores;
use crate::error::Error;
use crate::filter::Filter;
use crate::ground::{Ground, Paths};
use crate::path::Path;
use crate::statistics::Pair;
use crate::traffic;

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

/// What is hoped for of the ratio of Manx to the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// More is better.
    AtLeast(f64),
    /// Less is better.
    AtMost(f64),
}

impl Goal {
    /// The limit.
    pub const fn limit(self) -> f64 {
        match self {
            Self::AtLeast(limit) | Self::AtMost(limit) => limit,
        }
    }

    /// Whether this is enough.
    pub fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(limit) => ratio >= limit,
            Self::AtMost(limit) => ratio <= limit,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(limit) => write!(f, ">= {limit}"),
            Self::AtMost(limit) => write!(f, "<= {limit}"),
        }
    }
}

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
    /// What is hoped for.
    pub goal: Option<Goal>,
}

const fn row(
    name: &'static str,
    ground: Ground,
    traffic: Traffic,
    words: &'static str,
    goal: Option<Goal>,
) -> Comparison {
    Comparison { name, ground, traffic, words, goal }
}

const IPIP: Ground = Ground::AcrossNodes { overlay: Overlay::Ipip, whole: false };
const VXLAN: Ground = Ground::AcrossNodes { overlay: Overlay::Vxlan, whole: false };
const VXLAN_WHOLE: Ground = Ground::AcrossNodes { overlay: Overlay::Vxlan, whole: true };
const FREE: Ground = Ground::SameNode(None);
const NFTABLES: Ground = Ground::SameNode(Some(Filter::Nftables));
const IPTABLES: Ground = Ground::SameNode(Some(Filter::Iptables));
const TUN: Ground = Ground::Bare(Device::Tun);
const VETH: Ground = Ground::Bare(Device::Veth);
const BUSY: Ground = Ground::Apart(Polling::Busy);
const ADAPTIVE: Ground = Ground::Apart(Polling::Adaptive);

const STREAM: Traffic = Traffic::Streams(1);
const STREAMS: Traffic = Traffic::Streams(4);
const PACKETS: Traffic = Traffic::Flood;
const MEDIAN: Traffic = Traffic::PingPong(50);
const P99: Traffic = Traffic::PingPong(99);

/// All, those of one ground together, in the order of the report.
#[rustfmt::skip]
pub const ALL: &[Comparison] = &[
    row("stream", FREE, STREAM, "same node, TCP, one stream, Gbit/s", Some(Goal::AtLeast(0.7))),
    row("packets", FREE, PACKETS, "same node, UDP one way, 64-byte packets, Mpps that arrived", Some(Goal::AtLeast(0.5))),
    row("latency", FREE, MEDIAN, "same node, UDP ping-pong, median round trip, us", None),
    row("nft-stream", NFTABLES, STREAM, "beside nftables: same node, TCP, one stream, Gbit/s", Some(Goal::AtLeast(0.95))),
    row("nft-streams", NFTABLES, STREAMS, "beside nftables: same node, TCP, four streams, Gbit/s", Some(Goal::AtLeast(0.95))),
    row("nft-packets", NFTABLES, PACKETS, "beside nftables: same node, UDP one way, 64-byte packets, Mpps that arrived", Some(Goal::AtLeast(8.0))),
    row("iptables-packets", IPTABLES, PACKETS, "beside iptables: same node, UDP one way, 64-byte packets, Mpps that arrived", Some(Goal::AtLeast(3.0))),
    row("tunnel", IPIP, STREAM, "across nodes, IPIP, TCP, one stream, Gbit/s", Some(Goal::AtLeast(0.5))),
    row("tunnel-latency", IPIP, MEDIAN, "across nodes, IPIP, UDP ping-pong, median round trip, us", None),
    row("vxlan", VXLAN, STREAM, "across nodes, VXLAN, TCP, one stream, Gbit/s", Some(Goal::AtLeast(1.2))),
    row("vxlan-latency", VXLAN, MEDIAN, "across nodes, VXLAN, UDP ping-pong, median round trip, us", None),
    row("vxlan-whole", VXLAN_WHOLE, STREAM, "the same, kernel's super-packets whole, TCP, one stream, Gbit/s", Some(Goal::AtLeast(0.8))),
    row("crowd-stream", Ground::Crowd, STREAM, "250 pods beside 2 pods: TCP, one stream, Gbit/s", Some(Goal::AtLeast(0.95))),
    row("crowd-packets", Ground::Crowd, PACKETS, "250 pods beside 2 pods: UDP one way, 64-byte packets, Mpps that arrived", Some(Goal::AtLeast(0.95))),
    row("crowd-latency", Ground::Crowd, MEDIAN, "250 pods beside 2 pods: UDP ping-pong, median round trip, us", None),
    row("bare-stream", TUN, STREAM, "beside a bare forwarder: TUN, TCP, one stream, Gbit/s", Some(Goal::AtLeast(0.9))),
    row("bare-packets", TUN, PACKETS, "beside a bare forwarder: TUN, UDP one way, 64-byte packets, Mpps that arrived", Some(Goal::AtLeast(0.9))),
    row("bare-veth-stream", VETH, STREAM, "beside a bare forwarder: veth, TCP, one stream, Gbit/s", Some(Goal::AtLeast(0.9))),
    row("bare-veth-packets", VETH, PACKETS, "beside a bare forwarder: veth, UDP one way, 64-byte packets, Mpps that arrived", Some(Goal::AtLeast(0.9))),
    row("bare-busy-p50", BUSY, MEDIAN, "beside a bare forwarder: TUN, busy polling, UDP ping-pong, median round trip, us", Some(Goal::AtMost(1.2))),
    row("bare-busy-p99", BUSY, P99, "beside a bare forwarder: TUN, busy polling, UDP ping-pong, p99 round trip, us", Some(Goal::AtMost(1.5))),
    row("bare-adaptive-p50", ADAPTIVE, MEDIAN, "beside a bare forwarder that is busy: TUN, adaptive polling, UDP ping-pong, median round trip, us", Some(Goal::AtMost(1.4))),
    row("bare-adaptive-p99", ADAPTIVE, P99, "beside a bare forwarder that is busy: TUN, adaptive polling, UDP ping-pong, p99 round trip, us", Some(Goal::AtMost(2.0))),
];

impl Comparison {
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
        let beside = self.measure(&paths.beside, length, paths.cores)?;
        paths.beside.let_run(false)?;
        paths.manx.let_run(true)?;
        let manx = self.measure(&paths.manx, length, paths.cores)?;
        Ok(Pair { beside, manx })
    }
}
