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
    /// `spec.natOutgoing`: packets from the pool's addresses to destinations outside all pools get their node's address
    /// as source.
    pub nat_outgoing: bool,
    /// `spec.blockSize`: the prefix length of the pool's blocks. `None` if it is absent or 0; see [`Self::block_size`].
    pub block_size: Option<u8>,
    /// `spec.disabled`: no address of the pool is assigned.
    pub disabled: bool,
    /// `spec.nodeSelector`: the nodes that get blocks of the pool. It can be parsed. `None` selects all nodes.
    pub node_selector: Option<String>,
    /// `spec.namespaceSelector`: the namespaces whose pods get addresses of the pool. It can be parsed. `None` selects
    /// all namespaces.
    pub namespace_selector: Option<String>,
    /// `spec.assignmentMode`; Automatic if absent.
    pub assignment_mode: Option<AssignmentMode>,
    /// `spec.allowedUses`; see [`Self::allows`].
    pub allowed_uses: Vec<PoolUse>,
    /// `spec.disableBGPExport`: routes in this pool are not announced to BGP peers.
    pub is_hidden_from_peers: bool,
    /// `metadata.creationTimestamp`.
    pub created: Option<Created>,
}

impl IpPool {
    /// Returns a pool that uses IPIP between these nodes.
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

    /// Returns between which nodes packets to the pool are encapsulated, for IPIP and VXLAN alike.
    pub fn mode(&self) -> EncapsulationMode {
        let modes = [self.ipip_mode, self.vxlan_mode];
        let mode = modes.into_iter().flatten().find(|mode| *mode != EncapsulationMode::Never);
        mode.unwrap_or(EncapsulationMode::Never)
    }

    /// Returns the prefix length of the pool's blocks.
    pub fn block_size(&self) -> u8 {
        self.block_size.unwrap_or(Self::default_block_size(self.cidr))
    }

    /// Returns the default prefix length of a pool's blocks. A block of this length has 64 addresses.
    pub const fn default_block_size(cidr: IpNet) -> u8 {
        match cidr {
            IpNet::V4(_) => 26,
            IpNet::V6(_) => 122,
        }
    }

    /// Returns whether the pool's addresses are for pods or tunnels. The addresses of other pools are for services.
    pub fn is_for_cluster(&self) -> bool {
        self.allows(PoolUse::Workload) || self.allows(PoolUse::Tunnel)
    }

    /// Returns whether the pool's addresses may be used for `what`. A pool without `allowedUses`, or with an empty
    /// list, is for workloads and tunnels.
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
    /// Addresses are also assigned to requests that name no pool.
    Automatic,
    /// Addresses are assigned only to requests that name the pool or the address.
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
    /// Packets are encapsulated only between nodes in different subnets.
    CrossSubnet,
    /// No packet is encapsulated.
    Never,
}
