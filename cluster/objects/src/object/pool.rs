//! Pools of pod addresses.

use ipnet::IpNet;

use super::created::Created;

/// Calico's `IPPool`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpPool {
    /// `spec.cidr`, which has no host bits.
    pub cidr: IpNet,
    /// `spec.ipipMode`; Never if absent.
    pub ipip_mode: Option<EncapsulationMode>,
    /// `spec.vxlanMode`; Never if absent, and also if `ipipMode` is not Never.
    pub vxlan_mode: Option<EncapsulationMode>,
    /// `spec.natOutgoing`: outside of all pools its addresses are seen as their node's.
    pub nat_outgoing: bool,
    /// `metadata.creationTimestamp`.
    pub created: Option<Created>,
}

impl IpPool {
    /// A pool that uses IPIP between these nodes.
    pub const fn ipip(cidr: IpNet, mode: EncapsulationMode) -> Self {
        let ipip_mode = Some(mode);
        Self { cidr, ipip_mode, vxlan_mode: None, nat_outgoing: false, created: None }
    }

    /// The nodes between which packets to it are encapsulated, whatever the encapsulation is.
    pub fn mode(&self) -> EncapsulationMode {
        let modes = [self.ipip_mode, self.vxlan_mode];
        let mode = modes.into_iter().flatten().find(|mode| *mode != EncapsulationMode::Never);
        mode.unwrap_or(EncapsulationMode::Never)
    }
}

/// `spec.ipipMode` and `spec.vxlanMode` of an [`IpPool`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncapsulationMode {
    /// Every packet between nodes is encapsulated.
    Always,
    /// Only between nodes whose subnets differ.
    CrossSubnet,
    /// No packet is encapsulated.
    Never,
}
