//! Where something is measured: what stands beside Manx, what Manx is like there, and who runs on which core.

use std::collections::BTreeMap;

use manx_api::Device;
use manx_dataplane::worker::Polling;

use crate::agents::{self, Overlay, Shape};
use crate::bare;
use crate::bare_tunnel;
use crate::cores::Cores;
use crate::error::Error;
use crate::filter::Filter;
use crate::kernel::{self, Ends};
use crate::path::{Between, Path};
use crate::switch::Switch;

/// A place; comparisons of one share their paths.
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
        /// Who the kernel's ends are; Manx's are pods.
        ends: Ends,
    },
    /// Both ends on one node that has many pods more; beside it Manx with those two pods alone.
    Crowd,
    /// Both ends on one node; beside Manx a bare forwarder over the same devices, which sleeps when Manx would.
    Bare(Device),
    /// The ends on two nodes; Manx by VXLAN, beside it a bare forwarder on each node, datagrams between them.
    BareTunnel,
    /// As [`Ground::Bare`] by TUN, where the forwarder has a core to itself and both ends share the other. The bare one never sleeps;
    /// Manx polls like this.
    Apart(Polling),
    /// Both ends on one node by veth; beside Manx somebody else's userspace switch. The one that is measured has a core to
    /// itself, and both ends share the other.
    Switch(Switch),
}

/// Pods of a crowd besides the two ends.
pub const BYSTANDERS: usize = 248;

impl Ground {
    /// Why nothing can be measured here, if so.
    pub fn is_missing(self) -> Option<String> {
        match self {
            Self::SameNode(filter) => filter?.is_missing(),
            Self::Switch(switch) => switch.is_missing(),
            Self::AcrossNodes { .. }
            | Self::Crowd
            | Self::Bare(_)
            | Self::BareTunnel
            | Self::Apart(_) => None,
        }
    }

    /// What stands beside Manx, and how Manx is.
    pub const fn words(self) -> &'static str {
        match self {
            Self::SameNode(None) => "Same node, beside kernel routing",
            Self::SameNode(Some(Filter::Nftables)) => "Same node, beside nftables",
            Self::SameNode(Some(Filter::Iptables)) => "Same node, beside iptables",
            Self::AcrossNodes { overlay, whole, ends } => match (overlay, whole, ends) {
                (Overlay::Ipip, _, Ends::Nodes) => "Across nodes by IPIP, beside kernel VXLAN",
                (Overlay::Ipip, _, Ends::Pods) => {
                    "Across nodes by IPIP, beside pods by kernel VXLAN"
                }
                (Overlay::Vxlan, false, Ends::Nodes) => {
                    "Across nodes by VXLAN, beside kernel VXLAN"
                }
                (Overlay::Vxlan, false, Ends::Pods) => {
                    "Across nodes by VXLAN, beside pods by kernel VXLAN"
                }
                (Overlay::Vxlan, true, Ends::Nodes) => {
                    "Across nodes by VXLAN, beside kernel VXLAN with super-packets whole"
                }
                (Overlay::Vxlan, true, Ends::Pods) => {
                    "Across nodes by VXLAN, beside pods by kernel VXLAN with super-packets whole"
                }
            },
            Self::Crowd => "250 pods, beside 2 pods",
            Self::Bare(Device::Tun) => "By TUN, beside a bare forwarder",
            Self::Bare(Device::Veth) => "By veth, beside a bare forwarder",
            Self::BareTunnel => "Across nodes by VXLAN, beside bare forwarders and UDP",
            Self::Apart(Polling::Busy) => "By TUN, busy, beside a busy bare forwarder",
            Self::Apart(Polling::Adaptive) => "By TUN, adaptive, beside a busy bare forwarder",
            Self::Switch(Switch::OpenVSwitch { super_packets: true }) => {
                "By veth, beside Open vSwitch (netdev, super-packets)"
            }
            Self::Switch(Switch::OpenVSwitch { super_packets: false }) => {
                "By veth, beside Open vSwitch (netdev)"
            }
            Self::Switch(Switch::Testpmd) => "By veth, busy, beside DPDK testpmd (af_packet)",
        }
    }

    /// Who runs where.
    pub fn cores(self, of_the_machine: Cores) -> Cores {
        match self {
            Self::Apart(_) | Self::Switch(_) => of_the_machine.apart(),
            _ => of_the_machine,
        }
    }
}

/// The two paths of one ground.
#[derive(Debug)]
pub struct Paths {
    /// What Manx is compared with. Halted but while it is measured.
    pub beside: Path,
    /// Manx's. Halted while the other is measured.
    pub manx: Path,
    /// Who runs where.
    pub cores: Cores,
    /// Where this is.
    pub ground: Ground,
}

impl Paths {
    /// Builds both; policies and filters hold this many rules besides the one that allows the traffic.
    pub fn build(ground: Ground, rules: usize, cores: Cores) -> Result<Self, Error> {
        let cores = ground.cores(cores);
        let mut shape = Shape::one_node(rules, cores);
        let beside = match ground {
            Ground::SameNode(filter) => {
                let path = kernel::routing()?;
                if let (Some(filter), Between::KernelRouting(router)) = (filter, &path.between) {
                    filter.load(router, rules)?;
                }
                path
            }
            Ground::AcrossNodes { overlay, whole, ends } => {
                shape.across = Some(overlay);
                kernel::vxlan(whole, ends)?
            }
            Ground::Crowd => {
                let alone = agents::path(shape)?;
                shape.bystanders = BYSTANDERS;
                alone
            }
            Ground::Bare(device) => {
                shape.device = device;
                bare::path(device, Polling::Adaptive, cores.of_worker(true))?
            }
            Ground::BareTunnel => {
                shape.across = Some(Overlay::Vxlan);
                bare_tunnel::path(cores)?
            }
            Ground::Apart(polling) => {
                shape.polling = polling;
                bare::path(shape.device, Polling::Busy, cores.of_worker(true))?
            }
            Ground::Switch(switch) => {
                shape.device = Device::Veth;
                if switch == Switch::Testpmd {
                    shape.polling = Polling::Busy;
                }
                switch.path(cores)?
            }
        };
        beside.let_run(false)?;
        Ok(Self { beside, manx: agents::path(shape)?, cores, ground })
    }

    /// What Manx's agents counted since they started, one line each.
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
