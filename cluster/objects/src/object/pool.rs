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
    /// `spec.blockSize`: the prefix length of the pool's blocks. `None`: absent or 0; see [`Self::block_size`].
    pub block_size: Option<u8>,
    /// `spec.disabled`: no address is assigned from it.
    pub disabled: bool,
    /// `spec.nodeSelector`, which can be parsed: the nodes that get blocks of it. `None`: all.
    pub node_selector: Option<String>,
    /// `spec.namespaceSelector`, which can be parsed: the namespaces whose pods get addresses of it. `None`: all.
    pub namespace_selector: Option<String>,
    /// `spec.assignmentMode`; Automatic if absent.
    pub assignment_mode: Option<AssignmentMode>,
    /// `spec.allowedUses`; see [`Self::allows`].
    pub allowed_uses: Vec<PoolUse>,
    /// `spec.disableBGPExport`: no BGP peer is told of what is in it.
    pub is_hidden_from_peers: bool,
    /// `metadata.creationTimestamp`.
    pub created: Option<Created>,
}

impl IpPool {
    /// A pool that uses IPIP between these nodes.
    pub const fn ipip(cidr: IpNet, mode: EncapsulationMode) -> Self {
        let ipip_mode = Some(mode);
        Self {
            cidr,
            ipip_mode,
            vxlan_mode: None,
            nat_outgoing: false,
            block_size: None,
            disabled: false,
            node_selector: None,
            namespace_selector: None,
            assignment_mode: None,
            allowed_uses: Vec::new(),
            is_hidden_from_peers: false,
            created: None,
        }
    }

    /// The nodes between which packets to it are encapsulated, whatever the encapsulation is.
    pub fn mode(&self) -> EncapsulationMode {
        let modes = [self.ipip_mode, self.vxlan_mode];
        let mode = modes.into_iter().flatten().find(|mode| *mode != EncapsulationMode::Never);
        mode.unwrap_or(EncapsulationMode::Never)
    }

    /// The prefix length of its blocks.
    pub fn block_size(&self) -> u8 {
        self.block_size.unwrap_or(Self::default_block_size(self.cidr))
    }

    /// The prefix length of the blocks of a pool that says none: 64 addresses are in one.
    pub const fn default_block_size(cidr: IpNet) -> u8 {
        match cidr {
            IpNet::V4(_) => 26,
            IpNet::V6(_) => 122,
        }
    }

    /// Whether pods or tunnels have its addresses. Those of other pools are for services.
    pub fn is_for_cluster(&self) -> bool {
        self.allows(PoolUse::Workload) || self.allows(PoolUse::Tunnel)
    }

    /// Whether its addresses may be used so. A pool without `allowedUses`, or with an empty one, is for workloads and
    /// tunnels.
    pub fn allows(&self, what: PoolUse) -> bool {
        match &self.allowed_uses[..] {
            [] => what != PoolUse::LoadBalancer,
            uses => uses.contains(&what),
        }
    }
}

/// `spec.assignmentMode` of an [`IpPool`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AssignmentMode {
    /// Addresses are assigned to whoever asks for one of any pool.
    Automatic,
    /// Addresses are assigned only to those that name the pool or the address.
    Manual,
}

/// An item of `spec.allowedUses` of an [`IpPool`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PoolUse {
    /// Pods.
    Workload,
    /// The tunnel devices of nodes.
    Tunnel,
    /// Services of type `LoadBalancer`.
    LoadBalancer,
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
