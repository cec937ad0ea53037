//! The reasons why a prefix has no route ([`NoRoute`]), and why an address does not lead to a pod that names it
//! ([`NoRouteToPod`]). In the second case, the address may still have a route to another destination.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use manx_ipam::plan::Ipam;
use manx_objects::few;
use manx_policy_compiler::model::ObjectName;

use super::ReservedFor;
use crate::import::Unheld;

/// The reason why a prefix has no route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoute {
    /// The prefix belongs to a pool but to no node.
    Unclaimed,
    /// Two nodes claim the prefix as a block.
    Contested,
    /// The prefix belongs to a node but is in no pool.
    Unpooled,
    /// The prefix's node has no address of the prefix's family.
    NoAddress,
    /// The prefix's pool requires a tunnel, and tunnels carry only IPv4.
    NoTunnel,
    /// The prefix belongs to no node, and its pool contains addresses of nodes. The node's kernel has no route for the
    /// prefix.
    HoldsNodes,
    /// The prefix belongs to another node, and not all pools are known.
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

/// Addresses that pods name but that do not lead to these pods.
pub type UnroutedAddresses = BTreeMap<(IpAddr, ObjectName), NoRouteToPod>;

/// The reason why an address does not lead to a pod that names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoRouteToPod {
    /// The pod does not have the address.
    Unheld(Unheld),
    /// The address belongs to the node with this name.
    IsOfNode(String),
    /// A node needs the address for this reason, so no pod may have it.
    Reserved(ReservedFor),
    /// The address is in no pool.
    Unpooled,
}

/// Returns one line for each cause, however many addresses it concerns, because all pods of a cluster may have the same
/// cause.
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
