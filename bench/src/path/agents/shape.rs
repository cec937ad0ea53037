//! The shape of a cluster of node agents.

use manx_api::Device;
use manx_dataplane::worker::Polling;

use crate::host::cores::Cores;
use crate::path::way::Way;

/// An encapsulation between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlay {
    Ipip,
    Vxlan,
}

/// How the agents treat services and the packets that pods send to the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Translation {
    /// They do not translate (`--services none`).
    Off,
    /// They translate (`--services manx`), but the sender sends to the receiver's own address.
    Unused,
    /// They translate, and the sender's packets are translated in this way. With [`Way::NodePort`] and [`Way::Out`],
    /// one end is a host outside, in place of a second node with an agent.
    Used(Way),
}

/// The shape of a cluster.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// The encapsulation between the two ends if they are on two nodes. `None` if they are on one node.
    pub across: Option<Overlay>,
    /// The number of pods on the first node other than the two ends.
    pub bystanders: usize,
    /// The number of rules of each policy, besides the one that allows the traffic.
    pub rules: usize,
    /// How pods are attached.
    pub device: Device,
    /// How idle workers wait for packets.
    pub polling: Polling,
    /// The number of workers of each agent.
    pub workers: usize,
    /// The cores on which the workers run.
    pub cores: Cores,
    /// Whether there is an attacker on the first node. It may send to one pod on its node and to one on the second
    /// node. If the ends are on one node, the second node has no agent, and packets that arrive there are dropped.
    pub attack: bool,
    pub translation: Translation,
}

impl Shape {
    /// A cluster with only the two ends. They are on one node, and are attached by TUN to an agent with one worker.
    pub const fn one_node(rules: usize, cores: Cores) -> Self {
        let (device, polling) = (Device::Tun, Polling::Adaptive);
        let (workers, attack, translation) = (1, false, Translation::Off);
        Self {
            across: None,
            bystanders: 0,
            rules,
            device,
            polling,
            workers,
            cores,
            attack,
            translation,
        }
    }

    /// The way by which the agents translate the sender's packets. `None` if they do not translate them.
    pub const fn way(&self) -> Option<Way> {
        match self.translation {
            Translation::Used(way) => Some(way),
            Translation::Off | Translation::Unused => None,
        }
    }

    /// Whether one end is a host outside.
    pub const fn has_outside(&self) -> bool {
        matches!(self.way(), Some(Way::NodePort | Way::Out))
    }
}
