//! Scenarios: the path through Manx, the path that it is compared with, and the cores of both.

use std::collections::BTreeMap;

use manx_api::{Device, Status};
use manx_dataplane::worker::Polling;

use crate::error::Error;
use crate::host::cores::Cores;
use crate::path::agents::cluster::Cluster;
use crate::path::agents::shape::{Overlay, Shape, Translation};
use crate::path::bare::paths as bare;
use crate::path::ends::Path;
use crate::path::filter::Filter;
use crate::path::gateway::Gateway;
use crate::path::kernel::{self, TunnelEnds};
use crate::path::switch::Switch;
use crate::path::translating;
use crate::path::way::Way;

/// A scenario. Rows of one scenario share its paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scenario {
    /// Both ends are on one node. The other side is kernel routing between veth pairs, with a filter or without.
    SameNode(Option<Filter>),
    /// The ends are on two nodes. The other side is kernel VXLAN devices.
    AcrossNodes {
        /// The encapsulation of Manx.
        overlay: Overlay,
        /// Whether the kernel's devices forward whole super-packets.
        super_packets: bool,
        /// The ends of the kernel's path. Those of Manx are pods.
        ends: TunnelEnds,
    },
    /// Manx translates the packets in this way. The other side is the kernel with veth pods, and with nftables for
    /// filtering and translating.
    Translated(Way),
    /// The packets go through a cluster IP. The ends are on one node, or on two with this overlay. The other side is
    /// Manx from pod to pod.
    ClusterIp(Option<Overlay>),
    /// The packets go from a pod to a host outside. The other side is a program that connects the pod's namespace to
    /// the outside.
    Gateway(Gateway),
    /// Both ends are on one node with many other pods. The other side is Manx with these two pods alone.
    Crowd,
    /// Both ends are on one node. The other side is a bare forwarder over the same devices, which sleeps when Manx
    /// would.
    Bare(Device),
    /// The ends are on two nodes, and Manx uses VXLAN. The other side is a bare forwarder on each node, with datagrams
    /// between them.
    BareTunnel,
    /// Like [`Scenario::Bare`] with TUN, but the forwarder or the worker has a core to itself, and both ends share the
    /// other core. The bare forwarder never sleeps; Manx polls in this way.
    SeparateCore(Polling),
    /// Both ends are on one node, by veth. The other side is a userspace switch of another project. The side that is
    /// measured has a core to itself, and both ends share the other core.
    Switch(Switch),
}

/// The number of pods of a crowd other than the two ends.
const BYSTANDERS: usize = 248;

impl Scenario {
    /// Why it cannot be measured on this machine. `None` if it can.
    pub(super) fn why_missing(self) -> Option<String> {
        match self {
            Self::SameNode(filter) => filter?.why_missing(),
            Self::Switch(switch) => switch.why_missing(),
            Self::Translated(_) => Filter::Nftables.why_missing(),
            Self::Gateway(gateway) => gateway.why_missing(),
            Self::AcrossNodes { .. }
            | Self::ClusterIp(_)
            | Self::Crowd
            | Self::Bare(_)
            | Self::BareTunnel
            | Self::SeparateCore(_) => None,
        }
    }

    /// The path of Manx, and the path that it is compared with.
    pub(super) const fn description(self) -> &'static str {
        match self {
            Self::SameNode(None) => "Same node, beside kernel routing",
            Self::SameNode(Some(Filter::Nftables)) => "Same node, beside nftables",
            Self::SameNode(Some(Filter::Iptables)) => "Same node, beside iptables",
            Self::AcrossNodes { overlay, super_packets, ends } => {
                across_nodes(overlay, super_packets, ends)
            }
            Self::Translated(Way::ClusterIp) => {
                "Through a cluster IP, beside nftables as of kube-proxy"
            }
            Self::Translated(Way::NodePort) => {
                "Through a node port, beside nftables as of kube-proxy"
            }
            Self::Translated(Way::Out) => "The way out, beside nftables' masquerade",
            Self::ClusterIp(None) => "Through a cluster IP, beside the pod's own address",
            Self::ClusterIp(Some(Overlay::Ipip)) => {
                "Through a cluster IP across nodes by IPIP, beside the pod's own address"
            }
            Self::ClusterIp(Some(Overlay::Vxlan)) => {
                "Through a cluster IP across nodes by VXLAN, beside the pod's own address"
            }
            Self::Gateway(Gateway::Pasta) => "The way out, beside pasta",
            Self::Gateway(Gateway::Slirp4netns) => "The way out, beside slirp4netns",
            Self::Crowd => "250 pods, beside 2 pods",
            Self::Bare(Device::Tun) => "By TUN, beside a bare forwarder",
            Self::Bare(Device::Tap) => "By TAP, beside a bare forwarder",
            Self::Bare(Device::Veth) => "By veth, beside a bare forwarder",
            Self::BareTunnel => "Across nodes by VXLAN, beside bare forwarders and UDP",
            Self::SeparateCore(Polling::Busy) => "By TUN, busy, beside a busy bare forwarder",
            Self::SeparateCore(Polling::Adaptive) => {
                "By TUN, adaptive, beside a busy bare forwarder"
            }
            Self::Switch(Switch::OpenVSwitch { super_packets: true }) => {
                "By veth, beside Open vSwitch (netdev, super-packets)"
            }
            Self::Switch(Switch::OpenVSwitch { super_packets: false }) => {
                "By veth, beside Open vSwitch (netdev)"
            }
            Self::Switch(Switch::Testpmd) => "By veth, busy, beside DPDK testpmd (af_packet)",
        }
    }

    /// The core of each part.
    fn cores(self, machine: Cores) -> Cores {
        match self {
            Self::SeparateCore(_) | Self::Switch(_) => machine.with_separate_worker(),
            _ => machine,
        }
    }
}

/// The description of a scenario across nodes.
const fn across_nodes(overlay: Overlay, super_packets: bool, ends: TunnelEnds) -> &'static str {
    match (overlay, super_packets, ends) {
        (Overlay::Ipip, _, TunnelEnds::Nodes) => "Across nodes by IPIP, beside kernel VXLAN",
        (Overlay::Ipip, _, TunnelEnds::Pods) => "Across nodes by IPIP, beside pods by kernel VXLAN",
        (Overlay::Vxlan, false, TunnelEnds::Nodes) => "Across nodes by VXLAN, beside kernel VXLAN",
        (Overlay::Vxlan, false, TunnelEnds::Pods) => {
            "Across nodes by VXLAN, beside pods by kernel VXLAN"
        }
        (Overlay::Vxlan, true, TunnelEnds::Nodes) => {
            "Across nodes by VXLAN, beside kernel VXLAN with super-packets whole"
        }
        (Overlay::Vxlan, true, TunnelEnds::Pods) => {
            "Across nodes by VXLAN, beside pods by kernel VXLAN with super-packets whole"
        }
    }
}

/// The two paths of a scenario.
#[derive(Debug)]
pub(super) struct Paths {
    /// The path that Manx is compared with. It is halted except while it is measured.
    pub(super) beside: Box<dyn Path>,
    /// The path through Manx. It is halted while the other path is measured.
    pub(super) manx: Cluster,
    /// The core of each part.
    pub(super) cores: Cores,
    pub(super) scenario: Scenario,
}

impl Paths {
    /// Builds both paths. Policies and filters hold this many rules, besides the one that allows the traffic.
    pub(super) fn build(scenario: Scenario, rules: usize, cores: Cores) -> Result<Self, Error> {
        let cores = scenario.cores(cores);
        let (beside, shape) = build_beside(scenario, rules, cores)?;
        beside.set_running(false)?;
        Ok(Self { beside, manx: Cluster::start(shape)?, cores, scenario })
    }

    /// The counters of Manx's agents since their start, one line for each agent.
    pub(super) fn counts(&self) -> Result<Vec<String>, Error> {
        Ok(self.manx.statuses()?.iter().map(describe_counts).collect())
    }
}

/// The path that Manx is compared with, and the shape of Manx's path.
fn build_beside(
    scenario: Scenario,
    rules: usize,
    cores: Cores,
) -> Result<(Box<dyn Path>, Shape), Error> {
    let mut shape = Shape::one_node(rules, cores);
    let beside: Box<dyn Path> = match scenario {
        Scenario::SameNode(filter) => {
            Box::new(kernel::routing(filter.map(|filter| (filter, rules)))?)
        }
        Scenario::AcrossNodes { overlay, super_packets, ends } => {
            shape.across = Some(overlay);
            Box::new(kernel::vxlan(super_packets, ends)?)
        }
        Scenario::Translated(way) => {
            shape.translation = Translation::Used(way);
            Box::new(translating::path(way, rules)?)
        }
        Scenario::ClusterIp(overlay) => {
            shape.across = overlay;
            shape.translation = Translation::Unused;
            let straight = Cluster::start(shape)?;
            shape.translation = Translation::Used(Way::ClusterIp);
            Box::new(straight)
        }
        Scenario::Gateway(gateway) => {
            shape.translation = Translation::Used(Way::Out);
            Box::new(gateway.path(cores)?)
        }
        Scenario::Crowd => {
            let alone = Cluster::start(shape)?;
            shape.bystanders = BYSTANDERS;
            Box::new(alone)
        }
        Scenario::Bare(device) => {
            shape.device = device;
            Box::new(bare::one_node(device, Polling::Adaptive, cores.worker_core(true))?)
        }
        Scenario::BareTunnel => {
            shape.across = Some(Overlay::Vxlan);
            Box::new(bare::two_nodes(cores)?)
        }
        Scenario::SeparateCore(polling) => {
            shape.polling = polling;
            Box::new(bare::one_node(shape.device, Polling::Busy, cores.worker_core(true))?)
        }
        Scenario::Switch(switch) => {
            shape.device = Device::Veth;
            if switch == Switch::Testpmd {
                shape.polling = Polling::Busy;
            }
            Box::new(switch.path(cores)?)
        }
    };
    Ok((beside, shape))
}

/// The numbers of packets by rule and by drop reason.
fn describe_counts(status: &Status) -> String {
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
}
