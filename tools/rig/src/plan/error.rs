//! The reasons why no plan can be made.

use std::net::IpAddr;

use ipnet::IpNet;
use manx_api::PodName;

/// The reason why no rig can be made from the objects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// There is no node.
    #[error("there is no Node object: a rig needs at least one, with an InternalIP and a podCIDR")]
    NoNodes,
    /// A node cannot be reached, because it has no address.
    #[error(
        "Node {0} has no InternalIP in status.addresses: the rig gives it that address on the underlay"
    )]
    NoAddress(String),
    /// The node's pods cannot have addresses.
    #[error("Node {0} has no spec.podCIDRs: the rig takes its pods' addresses from them")]
    NoPodCidr(String),
    /// A node has more than one address of a family.
    #[error(
        "Node {0} has more than one InternalIP of a family: expected at most one for IPv4 and one for IPv6"
    )]
    TooManyAddresses(String),
    /// Two nodes have the same address.
    #[error("Nodes {first} and {second} have the same InternalIP {address}")]
    AddressTwice { first: String, second: String, address: IpAddr },
    /// Two segments have the same subnet.
    #[error(
        "Node {node} puts the subnet {subnet} on another segment than the nodes before it: \
         nodes that share a subnet of one family must share that of the other"
    )]
    SplitSubnet { node: String, subnet: IpNet },
    /// Two nodes' pod ranges overlap.
    #[error("the podCIDRs {first} and {second} overlap: each node needs addresses of its own")]
    OverlappingPodCidrs { first: IpNet, second: IpNet },
    /// A subnet has no free address left.
    #[error(
        "the subnet {0} has no address left for the router or the outside host: take a larger one"
    )]
    SubnetFull(IpNet),
    /// The outside host's address from `rig.yaml` cannot be used.
    #[error("rig.yaml: the outside host's address {0} {1}")]
    OutsideAddress(IpAddr, &'static str),
    /// The pod's node does not exist.
    #[error("Pod {pod} is on node {node}, and there is no Node object of that name")]
    UnknownNode { pod: PodName, node: String },
    /// A pod cannot keep an address that its object gives it.
    #[error(
        "Pod {pod} cannot keep its address {address}: {why}. Change it in the pod's status.podIPs; without any address there \
         (or in its annotations) the rig chooses one"
    )]
    PodAddress { pod: PodName, address: IpAddr, why: AddressConflict },
    /// No address is left for a pod.
    #[error("podCIDR {block} of Node {node} has no address left for Pod {pod}: take a larger one")]
    BlockFull { pod: PodName, node: String, block: IpNet },
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

/// The reason why a pod cannot keep an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressConflict {
    /// Other nodes could not reach the address.
    #[error(
        "Node {0}, on which it runs, has no InternalIP of that family, by which others reach it (give it one)"
    )]
    NoUnderlay(String),
    /// The address is a node's own.
    #[error("it is Node {0}'s own, in its status.addresses or as the second of its podCIDR")]
    OfNode(String),
    /// The address is that of the outside host.
    #[error("rig.yaml gives it to the outside host")]
    OfOutside,
    /// Another pod has the address.
    #[error("Pod {0} has it, too")]
    OfPod(PodName),
    /// The address is not for pods.
    #[error("expected a unicast address, not link-local or loopback")]
    NotForPods,
    /// The pod has another one of that family.
    #[error("the pod has {0}, too, and expected is one of a family")]
    SecondOfFamily(IpAddr),
}
