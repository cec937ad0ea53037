//! Paths on which the kernel translates addresses with nftables, with policy in the same node. Pods are attached by
//! veth pairs.

use std::os::fd::OwnedFd;

use super::constants::MTU;
use super::ends::{KernelPath, PathEnd, PathEnds};
use super::filter::{Filter, load_nftables};
use super::kernel::{PODS, attach};
use super::kube_proxy;
use super::links::{add_address, add_veth, forward_ipv4, namespace};
use super::way::{NODE, OUTSIDE, Way, on_link};
use crate::error::Error;

/// A path by this way, through a filter with this many rules.
pub fn path(way: Way, rules: usize) -> Result<KernelPath, Error> {
    let node = namespace()?;
    forward_ipv4(&node)?;
    let ends = match way {
        Way::ClusterIp => {
            PathEnds::new(attach(&node, "left", 1, MTU)?, attach(&node, "right", 2, MTU)?)
        }
        Way::NodePort => PathEnds::new(outside(&node)?, attach(&node, "right", 2, MTU)?),
        Way::Out => PathEnds::new(attach(&node, "left", 1, MTU)?, outside(&node)?),
    };
    let translation = match way {
        Way::ClusterIp | Way::NodePort => kube_proxy::services(ends.receiver.address, PODS),
        Way::Out => kube_proxy::way_out(PODS),
    };
    load_nftables(&node, &translation)?;
    Filter::Nftables.load(&node, rules, way.ports())?;
    Ok(KernelPath { ends: ends.by(way), between: vec![node] })
}

/// Connects the node to a host outside, and gives addresses to both.
pub(super) fn outside(node: &OwnedFd) -> Result<PathEnd, Error> {
    let netns = namespace()?;
    add_veth(node, "eth0", &netns, "eth0", MTU)?;
    add_address(node, "eth0", on_link(NODE))?;
    add_address(&netns, "eth0", on_link(OUTSIDE))?;
    Ok(PathEnd { netns, address: OUTSIDE.into() })
}
