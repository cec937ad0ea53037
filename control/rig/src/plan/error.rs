//! Why no plan can be made.

use std::net::IpAddr;

use ipnet::IpNet;
use manx_api::PodName;

/// Why no rig can be made from the objects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// There is no node.
    #[error("there is no Node object: a rig needs at least one, with an InternalIP and a podCIDR")]
    NoNodes,
    /// The node cannot be reached.
    #[error(
        "Node {0} has no InternalIP in status.addresses: the rig gives it that address on the underlay"
    )]
    NoAddress(String),
    /// The node's pods cannot have addresses.
    #[error("Node {0} has no spec.podCIDRs: the rig takes its pods' addresses from them")]
    NoPodCidr(String),
    /// More than one address of a family.
    #[error(
        "Node {0} has more than one InternalIP of a family: expected at most one for IPv4 and one for IPv6"
    )]
    TooManyAddresses(String),
    /// Two nodes with one address.
    #[error("Nodes {first} and {second} have the same InternalIP {address}")]
    AddressTwice {
        /// A node.
        first: String,
        /// Another one.
        second: String,
        /// The address.
        address: IpAddr,
    },
    /// A subnet in two places.
    #[error(
        "Node {node} puts the subnet {subnet} on another segment than the nodes before it: \
         nodes that share a subnet of one family must share that of the other"
    )]
    SplitSubnet {
        /// The node.
        node: String,
        /// The subnet.
        subnet: IpNet,
    },
    /// Two pod ranges that overlap.
    #[error("the podCIDRs {first} and {second} overlap: each node needs addresses of its own")]
    OverlappingPodCidrs {
        /// A range.
        first: IpNet,
        /// Another one.
        second: IpNet,
    },
    /// No address is left.
    #[error(
        "the subnet {0} has no address left for the router or the outside host: take a larger one"
    )]
    SubnetFull(IpNet),
    /// The outside host's address from `rig.yaml` cannot be used.
    #[error("rig.yaml: the outside host's address {0} {1}")]
    OutsideAddress(IpAddr, &'static str),
    /// The pod's node does not exist.
    #[error("Pod {pod} is on node {node}, and there is no Node object of that name")]
    UnknownNode {
        /// The pod.
        pod: PodName,
        /// The node.
        node: String,
    },
    /// A pod cannot keep an address that its object gives it.
    #[error(
        "Pod {pod} cannot keep its address {address}: {why}. Change it in the pod's status.podIPs; without any address there \
         (or in its annotations) the rig chooses one"
    )]
    PodAddress {
        /// The pod.
        pod: PodName,
        /// The address.
        address: IpAddr,
        /// Why.
        why: AddressConflict,
    },
    /// No address is left for a pod.
    #[error("podCIDR {block} of Node {node} has no address left for Pod {pod}: take a larger one")]
    BlockFull {
        /// The pod.
        pod: PodName,
        /// Its node.
        node: String,
        /// The block.
        block: IpNet,
    },
    /// `rig.yaml` adds ports to no pod.
    #[error(
        "{at}: no pod matches {wanted}: expected a pod or workload of that name, or pods with those labels, that are not finished"
    )]
    PortsOfNoPod {
        /// The place in `rig.yaml`.
        at: String,
        /// The workload or selector.
        wanted: String,
    },
    /// There are no pods to send traffic between.
    #[error(
        "there is no Pod object with addresses of its own: a rig without pods has nothing to check"
    )]
    NoPods,
}

/// Why a pod cannot keep an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressConflict {
    /// Other nodes could not reach it.
    #[error(
        "Node {0}, on which it runs, has no InternalIP of that family, by which others reach it (give it one)"
    )]
    NoUnderlay(String),
    /// It is a node's own address.
    #[error("it is Node {0}'s own, in its status.addresses or as the second of its podCIDR")]
    OfNode(String),
    /// It is the outside host's address.
    #[error("rig.yaml gives it to the outside host")]
    OfOutside,
    /// Another pod has it.
    #[error("Pod {0} has it, too")]
    OfPod(PodName),
    /// It is not for pods.
    #[error("expected a unicast address, not link-local or loopback")]
    NotForPods,
    /// The pod has another one of that family.
    #[error("the pod has {0}, too, and expected is one of a family")]
    SecondOfFamily(IpAddr),
}
