//! The shape of a cluster of node agents.

use manx_api::Device;
use manx_dataplane::worker::Polling;

use crate::host::cores::Cores;

/// An encapsulation between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlay {
    Ipip,
    Vxlan,
}

/// The shape of a cluster.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// The encapsulation between the two ends if they are on two nodes; `None`: they are on one node.
    pub across: Option<Overlay>,
    /// The number of pods on the first node besides the two ends.
    pub bystanders: usize,
    /// The number of rules of each policy besides the one that allows the traffic.
    pub rules: usize,
    /// How pods are attached.
    pub device: Device,
    /// The way in which idle workers wait for packets.
    pub polling: Polling,
    /// The number of workers of each agent.
    pub workers: usize,
    /// The cores on which the workers run.
    pub cores: Cores,
    /// Whether there is an attacker on the first node. It may send to one pod on its node and to one on the second
    /// node. If the ends are on one node, the second node has no agent, and packets that arrive there are dropped.
    pub attack: bool,
}

impl Shape {
    /// Only the two ends, on one node, by TUN, with one worker.
    pub const fn one_node(rules: usize, cores: Cores) -> Self {
        let (device, polling) = (Device::Tun, Polling::Adaptive);
        let (workers, attack) = (1, false);
        Self { across: None, bystanders: 0, rules, device, polling, workers, cores, attack }
    }
}
