//! The plan of a rig, which is [made](Plan::make) from its input, and the names that users give to parts of it. Nothing
//! is built here.
//!
//! Nodes whose `InternalIP`s share a subnet are on one segment (a bridge). If there are several segments, a router
//! connects them. An outside host, which is not part of the cluster, is on the first segment.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use manx_api::PodName;

use port::Port;

pub(crate) mod addresses;
pub mod error;
mod host_pods;
pub mod input;
pub(crate) mod make;
pub(crate) mod objects;
pub mod policy_reference;
pub mod port;
pub mod prober;
pub mod settings;
pub(crate) mod spec;
pub mod template;

/// A whole rig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The underlay's MTU in bytes.
    pub mtu: u32,
    /// Whether the agents translate services, and masquerade pods that connect to the outside (the way out).
    pub translates: bool,
    /// The underlay's segments, at least one.
    pub segments: Vec<Segment>,
    /// The nodes by name.
    pub nodes: BTreeMap<String, Host>,
    /// The host outside of the cluster.
    pub outside: Host,
    /// The pods that get a namespace.
    pub pods: BTreeMap<PodName, Pod>,
    /// The pods on their hosts' network.
    pub host_pods: BTreeMap<PodName, HostPod>,
    /// The router's routes: each node's pod ranges, and its pods' addresses outside of these, through that node. Empty
    /// if no router is needed.
    pub router: Vec<Route>,
}

/// One link-layer segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its subnets, at most one of a family.
    pub subnets: Vec<IpNet>,
    /// The router's addresses on it. Empty if there is only one segment.
    pub gateways: Vec<IpNet>,
}

/// A node, or the outside host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    pub segment: usize,
    /// Its addresses, with their subnets' prefix lengths.
    pub addresses: Vec<IpNet>,
    /// A node's addresses in the ranges of its pods. The node sends through tunnels from these.
    pub tunnels: Vec<IpAddr>,
    /// The host's routes to prefixes outside its own subnets.
    pub routes: Vec<Route>,
}

/// A route through a next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// The destination.
    pub prefix: IpNet,
    /// The next hop.
    pub via: IpAddr,
}

/// A pod that gets a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// The node that it runs on.
    pub node: String,
    /// The ports on which the pod listens.
    pub ports: BTreeSet<Port>,
    pub addresses: Vec<IpAddr>,
}

/// A pod on the host's network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPod {
    pub node: String,
    /// The ports on which the pod listens.
    pub ports: BTreeSet<Port>,
    /// The ports that the pod declares but does not get, because another pod of the node (`Some`)
    /// or the agent (`None`) listens there.
    pub lost: BTreeMap<Port, Option<PodName>>,
}
