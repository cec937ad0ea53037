//! Felix's settings for packets that pods send to destinations outside the cluster, if the pods' pools have
//! `natOutgoing`.

use std::net::Ipv4Addr;

use manx_objects::object::calico::{FelixConfiguration, NatOutgoingExclusions};

/// These settings for one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WayOut {
    /// `natOutgoingAddress`.
    pub address: OutgoingAddress,
    /// Whether packets from pods to the cluster's nodes keep the pods' own addresses
    /// (`natOutgoingExclusions: IPPoolsAndHostIPs`).
    pub excludes_hosts: bool,
}

/// The IPv4 address that a node uses as source for its pods' packets to destinations outside the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutgoingAddress {
    /// The first address of the node.
    #[default]
    First,
    /// This address, if the node has it.
    Named(Ipv4Addr),
    /// The address is not known, because a configuration is invalid and may name one.
    Unknown,
}

impl WayOut {
    /// Returns the settings from these configurations of a node. The node's own configuration takes precedence over
    /// `default`. `None` stands for an invalid configuration.
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
