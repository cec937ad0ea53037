//! The rows: which traffic is sent in which scenario, and the goal for the ratio.

use std::time::Duration;

use manx_api::Device;
use manx_dataplane::worker::Polling;

use super::scenario::{Paths, Scenario};
use crate::error::Error;
use crate::host::cores::Cores;
use crate::path::agents::shape::Overlay;
use crate::path::connections;
use crate::path::ends::{Path, PathEnds};
use crate::path::filter::Filter;
use crate::path::gateway::Gateway;
use crate::path::kernel::TunnelEnds;
use crate::path::switch::Switch;
use crate::path::traffic;
use crate::path::way::{OUT_PORTS, Way};
use crate::report::goal::Goal;
use crate::report::statistics::Pair;

/// The longest time that a halted path may take until it carries packets again.
const CATCH_UP: Duration = Duration::from_secs(5);

/// The traffic, with the quantity that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Traffic {
    /// This many TCP streams. The figure is gigabits per second.
    Streams(usize),
    /// One TCP stream on which the receiver sends. The figure is gigabits per second.
    Backwards,
    /// TCP connections to this many ports. The figure is the thousands that were answered and
    /// closed per second.
    Connections(u16),
    /// Small UDP packets in one direction. The figure is the millions that arrived per second.
    Flood,
    /// UDP with one packet in flight. The figure is this percentile of the round trips in
    /// microseconds.
    PingPong(u8),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// The name of the row on the command line.
    pub(super) name: &'static str,
    /// The path of Manx, and the path that it is compared with.
    pub(super) scenario: Scenario,
    traffic: Traffic,
    /// The goal of the ratio.
    pub(super) goal: Option<Goal>,
}

const fn row(name: &'static str, scenario: Scenario, traffic: Traffic, goal: Option<Goal>) -> Row {
    Row { name, scenario, traffic, goal }
}

const fn across(overlay: Overlay, super_packets: bool, ends: TunnelEnds) -> Scenario {
    Scenario::AcrossNodes { overlay, super_packets, ends }
}

const IPIP: Scenario = across(Overlay::Ipip, false, TunnelEnds::Nodes);
const IPIP_PODS: Scenario = across(Overlay::Ipip, false, TunnelEnds::Pods);
const VXLAN: Scenario = across(Overlay::Vxlan, false, TunnelEnds::Nodes);
const VXLAN_PODS: Scenario = across(Overlay::Vxlan, false, TunnelEnds::Pods);
const VXLAN_WHOLE: Scenario = across(Overlay::Vxlan, true, TunnelEnds::Nodes);
const VXLAN_WHOLE_PODS: Scenario = across(Overlay::Vxlan, true, TunnelEnds::Pods);
const ROUTING: Scenario = Scenario::SameNode(None);
const NFTABLES: Scenario = Scenario::SameNode(Some(Filter::Nftables));
const IPTABLES: Scenario = Scenario::SameNode(Some(Filter::Iptables));
const TUN: Scenario = Scenario::Bare(Device::Tun);
const TAP: Scenario = Scenario::Bare(Device::Tap);
const VETH: Scenario = Scenario::Bare(Device::Veth);
const BUSY: Scenario = Scenario::SeparateCore(Polling::Busy);
const ADAPTIVE: Scenario = Scenario::SeparateCore(Polling::Adaptive);

const SERVICE: Scenario = Scenario::Translated(Way::ClusterIp);
const NODE_PORT: Scenario = Scenario::Translated(Way::NodePort);
const OUT: Scenario = Scenario::Translated(Way::Out);
const STRAIGHT: Scenario = Scenario::ClusterIp(None);
const STRAIGHT_VXLAN: Scenario = Scenario::ClusterIp(Some(Overlay::Vxlan));
const PASTA: Scenario = Scenario::Gateway(Gateway::Pasta);
const SLIRP: Scenario = Scenario::Gateway(Gateway::Slirp4netns);

const OVS: Scenario = Scenario::Switch(Switch::OpenVSwitch { super_packets: false });
const OVS_SUPER: Scenario = Scenario::Switch(Switch::OpenVSwitch { super_packets: true });
const DPDK: Scenario = Scenario::Switch(Switch::Testpmd);

const STREAM: Traffic = Traffic::Streams(1);
const STREAMS: Traffic = Traffic::Streams(4);
const PACKETS: Traffic = Traffic::Flood;
const CONNECTIONS: Traffic = Traffic::Connections(1);
const MEDIAN: Traffic = Traffic::PingPong(50);
const P99: Traffic = Traffic::PingPong(99);

/// All rows in the order of the report. Rows of one scenario are adjacent.
#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    row("stream", ROUTING, STREAM, Some(Goal::AtLeast(0.7))),
    row("packets", ROUTING, PACKETS, Some(Goal::AtLeast(0.5))),
    row("latency", ROUTING, MEDIAN, None),
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
    row("service-stream", SERVICE, STREAM, None),
    row("service-packets", SERVICE, PACKETS, None),
    row("service-connections", SERVICE, CONNECTIONS, None),
    row("service-latency", SERVICE, MEDIAN, None),
    row("service-straight-stream", STRAIGHT, STREAM, Some(Goal::AtLeast(0.97))),
    row("service-straight-packets", STRAIGHT, PACKETS, Some(Goal::AtLeast(0.97))),
    row("service-straight-connections", STRAIGHT, CONNECTIONS, None),
    row("service-straight-vxlan", STRAIGHT_VXLAN, STREAM, Some(Goal::AtLeast(0.97))),
    row("node-port-stream", NODE_PORT, STREAM, None),
    row("node-port-packets", NODE_PORT, PACKETS, None),
    row("node-port-connections", NODE_PORT, CONNECTIONS, None),
    row("node-port-latency", NODE_PORT, MEDIAN, None),
    row("out-stream", OUT, STREAM, Some(Goal::AtLeast(0.95))),
    row("out-inward", OUT, Traffic::Backwards, Some(Goal::AtLeast(0.8))),
    row("out-packets", OUT, PACKETS, Some(Goal::AtLeast(1.0))),
    row("out-connections", OUT, Traffic::Connections(OUT_PORTS), None),
    row("out-latency", OUT, MEDIAN, None),
    row("out-pasta", PASTA, STREAM, None),
    row("out-slirp4netns", SLIRP, STREAM, None),
    row("crowd-stream", Scenario::Crowd, STREAM, Some(Goal::AtLeast(0.95))),
    row("crowd-packets", Scenario::Crowd, PACKETS, Some(Goal::AtLeast(0.95))),
    row("crowd-latency", Scenario::Crowd, MEDIAN, None),
    row("bare-stream", TUN, STREAM, Some(Goal::AtLeast(0.9))),
    row("bare-streams", TUN, STREAMS, Some(Goal::AtLeast(0.9))),
    row("bare-packets", TUN, PACKETS, Some(Goal::AtLeast(0.9))),
    row("bare-tap-stream", TAP, STREAM, Some(Goal::AtLeast(0.9))),
    row("bare-tap-packets", TAP, PACKETS, Some(Goal::AtLeast(0.9))),
    row("bare-veth-stream", VETH, STREAM, Some(Goal::AtLeast(0.9))),
    row("bare-veth-packets", VETH, PACKETS, Some(Goal::AtLeast(0.9))),
    row("bare-vxlan", Scenario::BareTunnel, STREAM, None),
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
    /// The measured quantity and its unit.
    const fn what_and_unit(self) -> (&'static str, &'static str) {
        match self {
            Self::Streams(1) => ("TCP, one stream", "Gbit/s"),
            Self::Streams(_) => ("TCP, four streams", "Gbit/s"),
            Self::Backwards => ("TCP, one stream the other way", "Gbit/s"),
            Self::Connections(_) => ("TCP connections that were answered", "k/s"),
            Self::Flood => ("UDP one way, 64-byte packets that arrived", "Mpps"),
            Self::PingPong(50) => ("UDP ping-pong, median round trip", "us"),
            Self::PingPong(_) => ("UDP ping-pong, p99 round trip", "us"),
        }
    }
}

impl Row {
    pub(super) const fn what(&self) -> &'static str {
        self.traffic.what_and_unit().0
    }

    pub(super) const fn unit(&self) -> &'static str {
        self.traffic.what_and_unit().1
    }

    /// A description of the whole row.
    pub(super) fn description(&self) -> String {
        format!("{}: {}, {}", self.scenario.description(), self.what(), self.unit())
    }

    fn measure(&self, ends: &PathEnds, length: Duration, cores: Cores) -> Result<f64, Error> {
        match self.traffic {
            Traffic::Streams(count) => traffic::tcp_streams(ends, count, length, cores),
            Traffic::Backwards => traffic::tcp_backwards(ends, length, cores),
            Traffic::Connections(ports) => connections::tcp_connections(ends, ports, length, cores)
                .map(|per_second| per_second / 1e3),
            Traffic::Flood => traffic::udp_flood(ends, length, cores),
            Traffic::PingPong(percent) => traffic::ping_pong(ends, percent, length, cores),
        }
    }

    /// Measures each side once, with Manx last. The side that is not measured is halted.
    pub(super) fn measure_pair(&self, paths: &Paths, length: Duration) -> Result<Pair, Error> {
        paths.manx.set_running(false)?;
        paths.beside.set_running(true)?;
        traffic::wait_until_carried(paths.beside.ends(), CATCH_UP)?;
        let beside = self.measure(paths.beside.ends(), length, paths.cores)?;
        paths.beside.set_running(false)?;
        paths.manx.set_running(true)?;
        traffic::wait_until_carried(paths.manx.ends(), CATCH_UP)?;
        let manx = self.measure(paths.manx.ends(), length, paths.cores)?;
        Ok(Pair { beside, manx })
    }
}
