//! Why there is no route: for a prefix ([`NoRoute`]), and to a pod for an address that it names ([`NoRouteToPod`]). Such
//! an address may well be routed, to somebody else.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use manx_ipam::plan::Ipam;
use manx_objects::few;
use manx_policy_compiler::model::ObjectName;

use super::ReservedFor;
use crate::import::Unheld;

/// Why a prefix has no route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoute {
    /// It belongs to a pool and to no node.
    Unclaimed,
    /// Two nodes claim it as a block.
    Contested,
    /// It belongs to a node and lies in no pool.
    Unpooled,
    /// Its node has no address of its family.
    NoAddress,
    /// Its pool requires a tunnel, and only IPv4 travels in tunnels.
    NoTunnel,
    /// It belongs to a pool that holds addresses of nodes, and to no node. The node's own table has no such route.
    HoldsNodes,
    /// It belongs to another node, and not all pools are known.
    UnknownPools,
}

impl fmt::Display for NoRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unclaimed => "is part of an IPPool and of no node's blocks",
            Self::Contested => "is claimed by two nodes",
            Self::Unpooled => {
                "belongs to a node and lies in no IPPool, so it is not known whether it is behind a tunnel"
            }
            Self::NoAddress => "belongs to a node that has no address of this family",
            Self::NoTunnel => "lies in an IPPool that asks for a tunnel, and only IPv4 travels in tunnels",
            Self::HoldsNodes => "is part of an IPPool that holds addresses of nodes, and of no node's blocks",
            Self::UnknownPools => "belongs to a node, and an IPPool is not valid, so it is not known whether it is behind a tunnel",
        })
    }
}

/// Addresses that pods name and that do not lead to them, with the pods.
pub type UnroutedAddresses = BTreeMap<(IpAddr, ObjectName), NoRouteToPod>;

/// Why an address does not lead to a pod that names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoRouteToPod {
    /// The pod does not have it.
    Unheld(Unheld),
    /// It is an address of this node.
    IsOfNode(String),
    /// It is needed for this, and so no pod's.
    Reserved(ReservedFor),
    /// It lies in no pool.
    Unpooled,
}

/// One line for each cause, however many addresses it concerns: all pods of a cluster may have the same one.
pub(super) fn lines(unrouted: &UnroutedAddresses, ipam: Ipam) -> Vec<String> {
    const SHOWN: usize = 5;
    let block = ipam.block();
    let mut causes: BTreeMap<(String, &str), Vec<String>> = BTreeMap::new();
    for ((address, pod), why) in unrouted {
        let of_pod = format!("{address} of Pod {pod}");
        let (cause, remedy, of) = match why {
            NoRouteToPod::Unheld(Unheld::Held(other)) => (
                "because other pods have them".to_owned(),
                "give each pod its own",
                format!("{of_pod} (Pod {other} has it)"),
            ),
            NoRouteToPod::Unheld(Unheld::OutOfPlace) => (
                format!(
                    "because only annotations name them, and they lie in no {block} of the pod's node and in no IPPool, or \
                     are a node's"
                ),
                "remove the annotation, which is the CNI plugin's to write",
                of_pod,
            ),
            NoRouteToPod::IsOfNode(node) => (
                format!("because they are addresses of Node {node:?}"),
                "give the pods other ones",
                of_pod,
            ),
            NoRouteToPod::Reserved(what) => {
                (format!("because {what} has them"), "give the pods other ones", of_pod)
            }
            NoRouteToPod::Unpooled => (
                format!(
                    "because they lie in no {block} of the pod's node and in no IPPool, so it is not known whether they \
                     are behind a tunnel"
                ),
                "make an IPPool around them (ipipMode: Never if they are not)",
                of_pod,
            ),
        };
        causes.entry((cause, remedy)).or_default().push(of);
    }
    let line = |((cause, remedy), all): ((String, &str), Vec<String>)| {
        format!("addresses not routed, {cause}: {}; {remedy}", few(all, SHOWN))
    };
    causes.into_iter().map(line).collect()
}
