//! The addresses by which other nodes reach a node.

use serde::{Deserialize, Serialize};

/// The address of one family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAddress {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// The address, with the length of its net if that is known. Absent: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// What says so, as the Node's object has it; absent without an address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The interface that has it; absent if none has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The method that has chosen it, or the address that the settings name. Absent: nobody has chosen, the object says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The other addresses of interfaces that are up, 16 at most.
    pub others: Vec<OtherAddress>,
    /// Why the method finds none, or why the one that it finds does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// An address that the node could have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherAddress {
    /// The address, with the length of its net.
    pub address: String,
    /// The interface that has it.
    pub interface: String,
}
