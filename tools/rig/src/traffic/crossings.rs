//! The nodes' interfaces that a probe passes, and the oracle's verdicts there.
//!
//! The rig checks agents, so this shares no code with them: it derives from the pools and its own segments which
//! packets travel in tunnels. Agents and `manx policy explain` use the topology for that, and a test of the rig
//! compares the two.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::plan::Plan;
use crate::plan::addresses::Addresses;
use crate::plan::prober::Prober;
use crate::world::underlay::UPLINK;
use manx_objects::contents::Contents;
use manx_objects::object::{EncapsulationMode, IpPool, Object};
use manx_oracle::{Crossing, Direction, Oracle, Packet, Verdict};

/// The name of the tunnels as an interface. No host endpoint can have it.
const TUNNEL: &str = "its tunnels";

/// The interfaces that packets between the probers of a plan pass.
pub(crate) struct Crossings<'a> {
    /// The cluster's hosts and pods.
    pub plan: &'a Plan,
    pub addresses: &'a Addresses,
    /// The objects, whose pools determine which packets travel in tunnels.
    pub contents: &'a Contents,
    pub oracle: &'a Oracle,
}

impl Crossings<'_> {
    /// The oracle's verdicts at each interface on the path of a forwarded packet: first where it leaves the source's
    /// node, then where it arrives at the destination's node. There are no verdicts between pods of one node, or
    /// between a node and its own pods.
    pub(crate) fn judge(
        &self,
        (source, from): (&Prober, IpAddr),
        (destination, to): (&Prober, IpAddr),
        packet: Packet,
    ) -> Vec<Verdict> {
        let (leaves, arrives) = (self.node(source), self.node(destination));
        if leaves == arrives {
            return Vec::new();
        }
        let interface = if self.encapsulated(leaves, arrives, to) { TUNNEL } else { UPLINK };
        let at = |prober: &Prober, node: Option<&str>, direction| {
            // A node's own packets are not forwarded, and the outside host has no host endpoint.
            let node = node.filter(|_| matches!(prober, Prober::Pod(_)))?;
            let addresses = self.addresses.get(&Prober::Node(node.to_owned()))?;
            let addresses = if interface == UPLINK { addresses.as_slice() } else { &[] };
            Some(self.oracle.judge_shared(&Crossing {
                node,
                interface,
                addresses,
                direction,
                forwarded: true,
                source: from,
                destination: to,
                packet,
                original: None,
            }))
        };
        let out = at(source, leaves, Direction::Egress);
        out.into_iter().chain(at(destination, arrives, Direction::Ingress)).collect()
    }

    /// The source address of a probe: a node sends through a tunnel from its address in its pods' range. `None` if the
    /// probe would get no answer: a node answers a pod through a tunnel from the address to which the probe was sent,
    /// and the pod's node accepts only the addresses of pods and tunnels from a tunnel.
    pub(crate) fn source_address(
        &self,
        (source, from): (&Prober, IpAddr),
        (destination, to): (&Prober, IpAddr),
    ) -> Option<IpAddr> {
        let (leaves, arrives) = (self.node(source), self.node(destination));
        match (source, destination) {
            _ if leaves == arrives => Some(from),
            (Prober::Node(node), Prober::Pod(_)) if self.encapsulated(leaves, arrives, to) => {
                let tunnels = &self.plan.nodes.get(node)?.tunnels;
                tunnels.iter().copied().find(|it| it.is_ipv4() == to.is_ipv4())
            }
            (Prober::Pod(_), Prober::Node(_)) => {
                let is_answered = !self.encapsulated(arrives, leaves, from)
                    || self.masquerade((source, from), (destination, to)).is_some();
                is_answered.then_some(from)
            }
            _ => Some(from),
        }
    }

    /// The node's address that replaces a pod's source address, if the agents masquerade the packet: they translate,
    /// the pod's pool has `natOutgoing`, and the destination is in no pool and is not the pod's own node.
    pub(crate) fn masquerade(
        &self,
        (source, from): (&Prober, IpAddr),
        (destination, to): (&Prober, IpAddr),
    ) -> Option<IpAddr> {
        let Prober::Pod(_) = source else { return None };
        let node = self.node(source)?;
        let is_out = self.plan.translates
            && self.node(destination) != Some(node)
            && self.pool(from)?.nat_outgoing
            && self.pool(to).is_none();
        let mut addresses = self.plan.nodes.get(node)?.addresses.iter().map(IpNet::addr);
        addresses.find(|it| is_out && it.is_ipv4() == to.is_ipv4())
    }

    /// The pool of an address: the one with the longest prefix.
    fn pool(&self, address: IpAddr) -> Option<&IpPool> {
        let pools = self.contents.all_valid().filter_map(|(_, object)| match object {
            Object::IpPool(pool) if pool.is_for_cluster() => Some(&**pool),
            _ => None,
        });
        pools.filter(|pool| pool.cidr.contains(&address)).max_by_key(|pool| pool.cidr.prefix_len())
    }

    fn node<'p>(&'p self, prober: &'p Prober) -> Option<&'p str> {
        match prober {
            Prober::Pod(name) => self.plan.node_of(name).map(String::as_str),
            Prober::Node(name) => Some(name),
            Prober::Outside => None,
        }
    }

    /// Whether the packet is encapsulated. Packets are encapsulated only between two nodes, and only if the
    /// destination's pool says so. With `CrossSubnet`, packets between nodes on one segment are not encapsulated.
    fn encapsulated(&self, leaves: Option<&str>, arrives: Option<&str>, to: IpAddr) -> bool {
        let (Some(leaves), Some(arrives)) = (leaves, arrives) else { return false };
        match self.pool(to).map(IpPool::mode) {
            Some(EncapsulationMode::Always) => true,
            Some(EncapsulationMode::CrossSubnet) => {
                let segment = |node: &str| self.plan.nodes.get(node).map(|node| node.segment);
                segment(leaves) != segment(arrives)
            }
            Some(EncapsulationMode::Never) | None => false,
        }
    }
}
