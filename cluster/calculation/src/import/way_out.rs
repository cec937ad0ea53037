//! Felix's settings for the way out: what pods of pools with `natOutgoing` send to the world.

use std::net::Ipv4Addr;

use manx_objects::object::calico::{FelixConfiguration, NatOutgoingExclusions};

/// The settings for the way out of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WayOut {
    /// `natOutgoingAddress`.
    pub address: OutgoingAddress,
    /// Whether nodes of the cluster see pods' own addresses (`natOutgoingExclusions: IPPoolsAndHostIPs`).
    pub excludes_hosts: bool,
}

/// The IPv4 address by which the world sees a node's pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutgoingAddress {
    /// The node's first one.
    #[default]
    First,
    /// This one, if the node has it.
    Named(Ipv4Addr),
    /// A configuration is not valid, and may name one.
    Unknown,
}

impl WayOut {
    /// The settings by the configurations of a node, its own before everybody's. `None`: one that is not valid.
    pub(super) fn new(configurations: &[Option<&FelixConfiguration>]) -> Self {
        let address = configurations.iter().find_map(|felix| match felix {
            Some(felix) => felix.nat_outgoing_address.map(OutgoingAddress::Named),
            None => Some(OutgoingAddress::Unknown),
        });
        let mut valid = configurations.iter().flatten();
        let exclusions = valid.find_map(|felix| felix.nat_outgoing_exclusions);
        Self {
            address: address.unwrap_or_default(),
            excludes_hosts: exclusions == Some(NatOutgoingExclusions::IpPoolsAndHostIps),
        }
    }
}
