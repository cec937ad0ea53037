//! The plan of a node's blocks: the addresses for its pods, and its own special addresses.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::block::Block;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    blocks: Vec<IpNet>,
    tunnel_addresses: Vec<IpAddr>,
    masquerade_addresses: Vec<IpAddr>,
}

impl Plan {
    /// The plan of a node that allocates by itself: each block is the node's as a whole, and has the node's own addresses at
    /// the places of [`block`](crate::block). A block without room for pods has no such addresses.
    pub fn host_local(blocks: impl Into<Vec<IpNet>>) -> Self {
        let blocks = blocks.into();
        let with_room = || blocks.iter().copied().filter_map(Block::new);
        let tunnel_addresses = with_room().map(|it| it.tunnel_address()).collect();
        let masquerade_addresses = with_room().map(|it| it.masquerade_address()).collect();
        Self { blocks, tunnel_addresses, masquerade_addresses }
    }

    /// The blocks for the node's pods. There may be several of one family.
    pub fn blocks(&self) -> &[IpNet] {
        &self.blocks
    }

    /// The sources of the node's own packets to remote pods. No pod gets one.
    pub fn tunnel_addresses(&self) -> &[IpAddr] {
        &self.tunnel_addresses
    }

    /// The sources of masqueraded packets that the node forwards to pods. No pod gets one, and policy does not take them for
    /// the node's own.
    pub fn masquerade_addresses(&self) -> &[IpAddr] {
        &self.masquerade_addresses
    }

    /// Whether an address lies in one of the blocks.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.blocks.iter().any(|block| block.contains(&address))
    }

    /// Whether an address is one for pods.
    pub fn has_for_pods(&self, address: IpAddr) -> bool {
        self.blocks.iter().any(|block| is_for_a_pod(*block, address))
    }

    /// Whether an address lies in a block, and is not one for pods.
    pub fn has_for_others(&self, address: IpAddr) -> bool {
        let mut around = self.blocks.iter().filter(|block| block.contains(&address));
        around.any(|block| !is_for_a_pod(*block, address))
    }
}

fn is_for_a_pod(block: IpNet, address: IpAddr) -> bool {
    Block::new(block).is_some_and(|block| block.number(address).is_some())
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
}
