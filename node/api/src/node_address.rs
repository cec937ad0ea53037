//! The addresses by which other nodes reach a node.

use serde::{Deserialize, Serialize};

/// The address of one family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAddress {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// The address, with the prefix length of its net if that is known. `None` if the node has no address of the family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The field or method that gives the address, as in the Node's object; absent without an address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The interface that has the address; absent if no interface has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The autodetection method that chose the address, or the address that the settings name. Absent if the Node's object
    /// alone gives the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The other addresses of interfaces that are up, 16 at most.
    pub others: Vec<OtherAddress>,
    /// The reason why the method finds no address, or why the address that it finds is not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// An address that the node could have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherAddress {
    /// The address, with the prefix length of its net.
    pub address: String,
    /// The interface that has it.
    pub interface: String,
}
