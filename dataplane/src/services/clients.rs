//! The clients that a load balancer's address serves (`loadBalancerSourceRanges`).

use std::sync::Arc;

use ipnet::IpNet;

use crate::wire::address::Address;

/// The set of clients that are served.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Clients {
    /// Every client.
    #[default]
    All,
    /// Clients with an address in one of these nets, which are sorted and do not overlap.
    Of(Arc<[IpNet]>),
}

impl Clients {
    /// The clients with an address in one of these nets.
    pub fn of(nets: &[IpNet]) -> Self {
        let mut all = IpNet::aggregate(&nets.to_vec());
        all.sort_unstable();
        Self::Of(all.into())
    }

    /// Whether a client with this address is served.
    pub fn has(&self, client: Address) -> bool {
        let nets = match self {
            Self::All => return true,
            Self::Of(nets) => nets,
        };
        let client = client.to_ip();
        let after = nets.partition_point(|net| net.network() <= client);
        nets[..after].last().is_some_and(|net| net.contains(&client))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    fn net() -> impl Strategy<Value = IpNet> {
        prop_oneof![
            (0u32..64, 26u8..=32)
                .prop_map(|(n, len)| { IpNet::new(Ipv4Addr::from_bits(n).into(), len).unwrap() }),
            (0u128..64, 122u8..=128).prop_map(|(n, len)| {
                IpNet::new(Ipv6Addr::from_bits(n << 64).into(), len - 64).unwrap()
            }),
        ]
    }

    proptest! {
        /// A client is served if one of the nets contains it, whatever the nets are.
        #[test]
        fn a_client_is_served_by_the_nets_that_contain_it(nets in prop::collection::vec(net(), 0..8)) {
            let clients = Clients::of(&nets);
            for n in 0..70u32 {
                let v6 = Ipv6Addr::from_bits(u128::from(n) << 64);
                for client in [Ipv4Addr::from_bits(n).into(), std::net::IpAddr::from(v6)] {
                    let expected = nets.iter().any(|net| net.contains(&client));
                    prop_assert_eq!(clients.has(client.into()), expected, "{}", client);
                    prop_assert!(Clients::All.has(client.into()));
                }
            }
        }
    }
}
