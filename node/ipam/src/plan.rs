//! The plan of a node's blocks: the addresses for its pods, and its own special addresses.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::block::Block;

/// The allocator of pods' addresses, which also decides where a node's blocks come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Ipam {
    /// Each node allocates by itself, from its Node's `podCIDRs`.
    #[default]
    HostLocal,
    /// Calico's IPAM: a node claims blocks of pools as it needs them. It may have many, or none yet.
    Calico,
}

impl Ipam {
    /// The word for a node's block, in messages to users.
    pub const fn block(self) -> &'static str {
        match self {
            Self::HostLocal => "pod CIDR",
            Self::Calico => "block",
        }
    }
}

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    ipam: Ipam,
    blocks: Vec<IpNet>,
    tunnel_addresses: Vec<IpAddr>,
    masquerade_addresses: Vec<IpAddr>,
}

impl Plan {
    /// The plan of a node that allocates by itself. The node has each block as a whole, and its own addresses are at the
    /// places that [`block`](crate::block) defines. A block without room for pods has no such addresses.
    pub fn host_local(blocks: impl Into<Vec<IpNet>>) -> Self {
        let blocks = blocks.into();
        let with_room = || blocks.iter().copied().filter_map(Block::new);
        let tunnel_addresses = with_room().map(|it| it.tunnel_address()).collect();
        let masquerade_addresses = with_room().map(|it| it.masquerade_address()).collect();
        Self { ipam: Ipam::HostLocal, blocks, tunnel_addresses, masquerade_addresses }
    }

    /// The plan of a node whose addresses Calico's IPAM allocates. Every address of a block is for pods, even the first and
    /// the last, except the node's tunnel addresses. Tunnel addresses may lie outside of the node's blocks. There is no
    /// masquerade address, because no field of Calico's objects reserves one.
    pub fn calico(blocks: impl Into<Vec<IpNet>>, tunnel_addresses: impl Into<Vec<IpAddr>>) -> Self {
        Self {
            ipam: Ipam::Calico,
            blocks: blocks.into(),
            tunnel_addresses: tunnel_addresses.into(),
            masquerade_addresses: Vec::new(),
        }
    }

    /// The blocks for the node's pods. There may be several of one family, and with Calico's IPAM none.
    pub fn blocks(&self) -> &[IpNet] {
        &self.blocks
    }

    /// The sources of the node's own packets to remote pods. No pod gets one.
    pub fn tunnel_addresses(&self) -> &[IpAddr] {
        &self.tunnel_addresses
    }

    /// The tunnel addresses that lie outside of the node's blocks.
    pub fn borrowed_tunnel_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.tunnel_addresses.iter().copied().filter(|address| !self.contains(*address))
    }

    /// The sources of masqueraded packets that the node forwards to pods. No pod gets one, and policy does not treat them
    /// as the node's own addresses.
    pub fn masquerade_addresses(&self) -> &[IpAddr] {
        &self.masquerade_addresses
    }

    /// Whether an address lies in one of the blocks.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.blocks.iter().any(|block| block.contains(&address))
    }

    /// Whether an address can be given to pods.
    pub fn has_for_pods(&self, address: IpAddr) -> bool {
        self.blocks.iter().any(|block| self.is_for_a_pod(*block, address))
    }

    /// Whether an address lies in a block but is not for pods.
    pub fn has_for_others(&self, address: IpAddr) -> bool {
        let mut around = self.blocks.iter().filter(|block| block.contains(&address));
        around.any(|block| !self.is_for_a_pod(*block, address))
    }

    fn is_for_a_pod(&self, block: IpNet, address: IpAddr) -> bool {
        match self.ipam {
            Ipam::HostLocal => {
                Block::new(block).is_some_and(|block| block.number(address).is_some())
            }
            Ipam::Calico => block.contains(&address) && !self.tunnel_addresses.contains(&address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_address_masquerades_and_the_second_is_the_tunnels() {
        let plan = Plan::host_local(
            ["10.244.1.0/24", "fd00:1::/64", "10.9.0.0/31"].map(|it| it.parse().unwrap()),
        );
        let addresses = |texts: [&str; 2]| texts.map(|it| it.parse::<IpAddr>().unwrap()).to_vec();
        assert_eq!(plan.masquerade_addresses(), addresses(["10.244.1.0", "fd00:1::"]));
        assert_eq!(plan.tunnel_addresses(), addresses(["10.244.1.1", "fd00:1::1"]));
        assert_eq!(plan.blocks().len(), 3);
        for (address, of_pods, of_others) in [
            ("10.244.1.2", true, false),
            ("10.244.1.254", true, false),
            ("10.244.1.255", false, true),
            ("10.244.1.1", false, true),
            ("10.9.0.1", false, true),
            ("10.8.0.1", false, false),
            ("fd00:1::", false, true),
            ("fd00:1::2", true, false),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(plan.has_for_pods(address), of_pods, "{address}");
            assert_eq!(plan.has_for_others(address), of_others, "{address}");
            assert_eq!(plan.contains(address), of_pods || of_others, "{address}");
        }
    }

    #[test]
    fn calicos_ipam_leaves_pods_every_address_that_no_tunnel_of_the_node_has() {
        let blocks = ["10.65.0.0/26", "10.65.9.9/32", "fd00:1::/122"].map(|it| it.parse().unwrap());
        let tunnels = ["10.65.0.7", "10.65.1.1"].map(|it| it.parse::<IpAddr>().unwrap());
        let plan = Plan::calico(blocks, tunnels);
        assert_eq!(plan.masquerade_addresses(), [] as [IpAddr; 0]);
        assert_eq!(plan.tunnel_addresses(), tunnels);
        assert_eq!(plan.borrowed_tunnel_addresses().collect::<Vec<_>>(), tunnels[1..]);
        for (address, of_pods, of_others) in [
            ("10.65.0.0", true, false),
            ("10.65.0.1", true, false),
            ("10.65.0.63", true, false),
            ("10.65.0.7", false, true),
            ("10.65.9.9", true, false),
            ("10.65.1.1", false, false),
            ("fd00:1::", true, false),
            ("fd00:1::3f", true, false),
            ("fd00:1::40", false, false),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(plan.has_for_pods(address), of_pods, "{address}");
            assert_eq!(plan.has_for_others(address), of_others, "{address}");
            assert_eq!(plan.contains(address), of_pods || of_others, "{address}");
        }
        assert_eq!(Plan::calico([], []).blocks(), [] as [IpNet; 0]);
    }
}
